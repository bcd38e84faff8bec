// What work on weights cannot take less time than: reading them, and a plain scatter.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "tools/bench/gpu/gpu.h"

namespace wstore::bench {

// Seconds that one pass takes which only reads `size_bytes` (a multiple of 16).
absl::StatusOr<double> TimeRead(const Gpu& gpu, const void* memory, uint64_t size_bytes);

// Seconds of a scatter of values of two bytes, by ready flat indices, into a random `density` of
// `elements` elements.
absl::StatusOr<double> TimeScatter(const Gpu& gpu, double density, uint64_t elements, uint16_t* to);

}  // namespace wstore::bench
