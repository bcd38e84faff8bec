#include "tools/wstore/format.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "common/strings.h"

namespace wstore::cli {
namespace {

// Three significant digits without an exponent: 7.46, 41.2, 812.
std::string ThreeDigits(double value) {
  if (value < 9.995) return absl::StrFormat("%.2f", value);
  if (value < 99.95) return absl::StrFormat("%.1f", value);
  return absl::StrFormat("%.0f", value);
}

// Bytes of the UTF-8 sequence at the start of `text`, or 0 if there is none.
size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  size_t length = 0;
  if (byte(0) < 0x80) {
    length = 1;
  } else if (byte(0) >= 0xc2 && byte(0) < 0xe0) {
    length = 2;
  } else if (byte(0) >= 0xe0 && byte(0) < 0xf0) {
    length = 3;
  } else if (byte(0) >= 0xf0 && byte(0) < 0xf5) {
    length = 4;
  }
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

std::string FormatCount(uint64_t count) {
  std::string digits = absl::StrCat(count);
  for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string FormatCountOf(uint64_t count, std::string_view singular) {
  return absl::StrCat(FormatCount(count), " ", ToAbsl(singular), count == 1 ? "" : "s");
}

std::string FormatBytes(uint64_t bytes) {
  if (bytes < 1000) return absl::StrCat(bytes, " B");
  constexpr std::array<const char*, 6> kUnits = {"kB", "MB", "GB", "TB", "PB", "EB"};
  double value = static_cast<double>(bytes) / 1000;
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return absl::StrCat(ThreeDigits(value), " ", kUnits[unit]);
}

std::string FormatRate(uint64_t bytes, int64_t duration_micros) {
  if (duration_micros <= 0) return "";
  const double rate = static_cast<double>(bytes) * 1e6 / static_cast<double>(duration_micros);
  return absl::StrCat(FormatBytes(static_cast<uint64_t>(rate)), "/s");
}

std::string FormatPercent(uint64_t part, uint64_t whole) {
  if (part == 0 || whole == 0) return "0%";
  if (part == whole) return "100%";
  const double percent = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  if (percent < 0.0001) return "<0.0001%";
  // Never rounded up to all, nor anything but the last digits of a small share cut off.
  if (percent >= 99.9) return absl::StrFormat("%.1f%%", std::min(percent, 99.9));
  if (percent >= 0.995) return absl::StrCat(ThreeDigits(percent), "%");
  const int digits = std::min(4, 2 - static_cast<int>(std::floor(std::log10(percent))));
  return absl::StrFormat("%.*f%%", digits, percent);
}

std::string FormatDuration(int64_t micros) {
  const double ms = static_cast<double>(micros) / 1000;
  if (ms < 9.95) return absl::StrFormat("%.1f ms", ms);
  if (ms < 999.5) return absl::StrFormat("%.0f ms", ms);
  const double seconds = ms / 1000;
  if (seconds < 9.95) return absl::StrFormat("%.1f s", seconds);
  if (seconds < 59.5) return absl::StrFormat("%.0f s", seconds);
  const int64_t whole = std::llround(seconds);
  if (whole < 3600) return absl::StrFormat("%d min %d s", whole / 60, whole % 60);
  return absl::StrFormat("%d h %d min", whole / 3600, whole % 3600 / 60);
}

std::string FormatTime(int64_t unix_micros) {
  std::string text = FormatRfc3339(unix_micros).substr(0, 19);
  text[10] = ' ';
  return text;
}

std::string Printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const auto first = static_cast<uint8_t>(text.front());
    // U+0080 to U+009f are control characters too: c2 80 to c2 9f.
    const bool is_control = length <= 1 ? (first < 0x20 || first >= 0x7f)
                                        : (first == 0xc2 && static_cast<uint8_t>(text[1]) < 0xa0);
    if (!is_control) {
      out.append(text.substr(0, length));
      text.remove_prefix(length);
    } else {
      if (first == '\n') {
        out += "\\n";
      } else if (first == '\t') {
        out += "\\t";
      } else {
        absl::StrAppend(&out, absl::StrFormat("\\x%02x", first));
      }
      text.remove_prefix(1);
    }
  }
  return out;
}

size_t DisplayWidth(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
}

std::string Ellipsize(std::string_view text, size_t width) {
  if (DisplayWidth(text) <= width) return std::string(text);
  const size_t keep = width > 3 ? width - 3 : 0;
  std::string out;
  size_t columns = 0;
  for (const char c : text) {
    if ((static_cast<uint8_t>(c) & 0xc0) != 0x80 && ++columns > keep) break;
    out += c;
  }
  return out + std::string(std::min<size_t>(width, 3), '.');
}

}  // namespace wstore::cli
