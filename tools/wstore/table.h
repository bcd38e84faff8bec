// Tables with aligned columns.
#pragma once

#include <string>
#include <vector>

namespace wstore::cli {

class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // One cell a column.
  void AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  // All lines, each ended. `width` is that of the terminal: the last column is cut so that lines
  // fit, but never below its title or 12 columns; 0 cuts nothing.
  std::string Render(size_t width) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// "name   value" lines, values aligned. A pair with an empty name goes on with the value before it.
std::string RenderFacts(const std::vector<std::pair<std::string, std::string>>& facts);

}  // namespace wstore::cli
