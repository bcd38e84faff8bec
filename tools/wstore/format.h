// Numbers and texts as people read them. JSON output uses none of this.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "wstore/digest.h"

namespace wstore::cli {

// "24,797".
std::string FormatCount(uint64_t count);
// "1 tensor", "13 tensors".
std::string FormatCountOf(uint64_t count, std::string_view singular);
// Three digits and a decimal unit: "812 B", "41.2 kB", "7.46 GB".
std::string FormatBytes(uint64_t bytes);
// "55.1 MB/s"; empty if no time has passed.
std::string FormatRate(uint64_t bytes, int64_t duration_micros);
// Three digits at most: "5.86%", "0.0213%", "0%", "100%"; "<0.0001%" for less. `whole` 0: "0%".
std::string FormatPercent(uint64_t part, uint64_t whole);
// "0.41 ms", "31 ms", "3.2 s", "2 min 5 s", "1 h 12 min".
std::string FormatDuration(int64_t micros);
// UTC: "2026-11-29 14:28:22".
std::string FormatTime(int64_t unix_micros);

// Text that came from elsewhere, safe for a terminal: control characters, and bytes that are not
// UTF-8, are shown as \n, \t or \x1b.
std::string Printable(std::string_view text);

// Columns that a text takes, counting a code point as one.
size_t DisplayWidth(std::string_view text);
// At most `width` columns of `text`, ending in "..." if it was cut.
std::string Ellipsize(std::string_view text, size_t width);

}  // namespace wstore::cli
