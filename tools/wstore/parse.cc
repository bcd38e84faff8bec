#include "tools/wstore/parse.h"

#include <array>
#include <limits>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/strings.h"

namespace wstore::cli {
namespace {

struct Unit {
  std::string_view name;
  uint64_t scale;
};

constexpr std::array kSizeUnits = {
    Unit{"", 1},
    Unit{"b", 1},
    Unit{"kb", 1'000},
    Unit{"mb", 1'000'000},
    Unit{"gb", 1'000'000'000},
    Unit{"tb", 1'000'000'000'000},
    Unit{"kib", uint64_t{1} << 10},
    Unit{"mib", uint64_t{1} << 20},
    Unit{"gib", uint64_t{1} << 30},
    Unit{"tib", uint64_t{1} << 40},
};

constexpr std::array kDurationUnits = {
    Unit{"ms", 1},
    Unit{"s", 1'000},
    Unit{"m", 60'000},
    Unit{"h", 3'600'000},
};

constexpr uint64_t kMaxDurationMs = 24 * 3'600'000;

// A decimal number followed by a unit, in the smallest unit; nothing if it is not one, is not
// whole, or is above `max`. Exact: no floating point.
template <size_t N>
std::optional<uint64_t> ParseQuantity(std::string_view text, const std::array<Unit, N>& units,
                                      uint64_t max) {
  const size_t end = text.find_first_not_of("0123456789.");
  const std::string_view number = text.substr(0, end);
  std::string_view unit = end == std::string_view::npos ? std::string_view() : text.substr(end);
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  const std::string lower = absl::AsciiStrToLower(ToAbsl(unit));

  for (const Unit& candidate : units) {
    if (candidate.name != lower) continue;
    unsigned __int128 value = 0;
    uint64_t divisor = 1;
    bool after_point = false;
    bool any_digit = false;
    for (const char c : number) {
      if (c == '.') {
        if (after_point) return std::nullopt;
        after_point = true;
        any_digit = false;
        continue;
      }
      any_digit = true;
      if (after_point && divisor > std::numeric_limits<uint64_t>::max() / 10) return std::nullopt;
      if (after_point) divisor *= 10;
      value = value * 10 + static_cast<unsigned>(c - '0');
      if (value / divisor > max) return std::nullopt;
    }
    if (!any_digit) return std::nullopt;
    value *= candidate.scale;
    if (value % divisor != 0 || value / divisor > max) return std::nullopt;
    return static_cast<uint64_t>(value / divisor);
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<uint64_t> ParseSize(std::string_view text) {
  const std::optional<uint64_t> size =
      ParseQuantity(text, kSizeUnits, std::numeric_limits<int64_t>::max());
  if (!size.has_value() || *size == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", ToAbsl(text),
                     "\" is not a size: write a number of at least one byte and a unit, such as "
                     "5GB, 512MiB or 1.5TB"));
  }
  return *size;
}

absl::StatusOr<int64_t> ParseDurationMs(std::string_view text) {
  if (text == "0") return 0;
  const std::optional<uint64_t> duration = ParseQuantity(text, kDurationUnits, kMaxDurationMs);
  if (!duration.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", ToAbsl(text),
        "\" is not a duration: write a number and a unit, such as 500ms, 5s or 2m; at most 24h"));
  }
  return static_cast<int64_t>(*duration);
}

absl::StatusOr<std::pair<std::string, std::string>> ParsePair(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", ToAbsl(text), "\" is not of the form KEY=VALUE, such as step=1200"));
  }
  return std::make_pair(std::string(text.substr(0, equals)), std::string(text.substr(equals + 1)));
}

}  // namespace wstore::cli
