#include "tools/wstore/table.h"

#include <algorithm>
#include <utility>

#include "tools/wstore/format.h"

namespace wstore::cli {
namespace {

constexpr size_t kGap = 2;
constexpr size_t kMinLastColumn = 12;

void TrimRight(std::string* line) { line->erase(line->find_last_not_of(' ') + 1); }

}  // namespace

std::string Table::Render(size_t width) const {
  std::vector<size_t> widths(columns_.size());
  for (size_t i = 0; i < columns_.size(); ++i) {
    widths[i] = columns_[i].title.size();
    for (const auto& row : rows_) widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  }
  if (width > 0) {
    size_t before_last = 0;
    for (size_t i = 0; i + 1 < widths.size(); ++i) before_last += widths[i] + kGap;
    const size_t least = std::max(columns_.back().title.size(), kMinLastColumn);
    const size_t room = std::max(width > before_last ? width - before_last : 0, least);
    widths.back() = std::min(widths.back(), room);
  }

  std::string out;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const std::string cell = Ellipsize(cell_of(i), widths[i]);
      const std::string padding(widths[i] - DisplayWidth(cell), ' ');
      if (i > 0) line.append(kGap, ' ');
      line += columns_[i].align == Align::kRight ? padding + cell : cell + padding;
    }
    TrimRight(&line);
    out += line + "\n";
  };
  add_line([&](size_t i) { return columns_[i].title; });
  for (const auto& row : rows_) add_line([&](size_t i) { return row[i]; });
  return out;
}

std::string RenderFacts(const std::vector<std::pair<std::string, std::string>>& facts) {
  size_t width = 0;
  for (const auto& [name, value] : facts) width = std::max(width, DisplayWidth(name));
  std::string out;
  for (const auto& [name, value] : facts) {
    std::string line = name + std::string(width - DisplayWidth(name) + kGap, ' ') + value;
    TrimRight(&line);
    out += line + "\n";
  }
  return out;
}

}  // namespace wstore::cli
