#include "wstore/types.h"

#include <charconv>

namespace wstore {

std::string ToString(VersionId version) { return "v" + std::to_string(version.value()); }

std::optional<VersionId> ParseVersionId(std::string_view text) {
  if (text.size() < 2 || text[0] != 'v' || (text[1] == '0' && text.size() > 2)) return std::nullopt;
  const char* const end = text.data() + text.size();
  uint64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data() + 1, end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return VersionId(value);
}

}  // namespace wstore
