// Sizes, durations and pairs as people type them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace wstore::cli {

// "5GB", "512MiB", "1.5 GB", "4096": bytes, at least 1. Units are decimal (kB, MB, GB, TB) or
// binary (KiB, MiB, GiB, TiB), in any case; a number alone is bytes.
//   kInvalidArgument: anything else, a fraction of a byte, or more than 2^63 - 1 bytes
absl::StatusOr<uint64_t> ParseSize(std::string_view text);

// "500ms", "5s", "2m", "1h": milliseconds, at most 24 hours. A unit is needed, except for "0".
//   kInvalidArgument: anything else
absl::StatusOr<int64_t> ParseDurationMs(std::string_view text);

// "KEY=VALUE" with a non-empty key.
//   kInvalidArgument: no "=", or no key
absl::StatusOr<std::pair<std::string, std::string>> ParsePair(std::string_view text);

}  // namespace wstore::cli
