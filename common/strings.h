// Debian 12's Abseil has a string_view of its own; the public API uses the standard one.
#pragma once

#include <string_view>

#include "absl/strings/string_view.h"

namespace wstore {

inline absl::string_view ToAbsl(std::string_view s) { return {s.data(), s.size()}; }
inline std::string_view ToStd(absl::string_view s) { return {s.data(), s.size()}; }

}  // namespace wstore
