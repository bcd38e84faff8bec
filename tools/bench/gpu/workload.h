// Random weights in device memory, and the plain operations that the GPU benchmarks are compared
// with.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "wstore/cuda.h"

namespace wstore::bench {

// Fills memory with random bits. `size_bytes` is a multiple of 8.
absl::Status FillRandom(void* memory, uint64_t size_bytes, uint64_t seed, CudaStream stream);

// Reads `size_bytes`, a multiple of 16, and does nothing with them. `sink` gets four bytes.
absl::Status ReadAll(const void* memory, uint64_t size_bytes, uint32_t* sink, CudaStream stream);

// Copies `from` to `to` and changes elements of `element_bytes` bytes with probability `density`,
// by their lowest bit or their lowest two.
absl::Status CopyAndChange(const void* from, void* to, uint64_t elements, uint32_t element_bytes,
                           double density, uint64_t seed, CudaStream stream);

// The plain scatter: to[indices[i]] = values[i], of two bytes each.
absl::Status Scatter(const uint32_t* indices, const uint16_t* values, uint64_t count, uint16_t* to,
                     CudaStream stream);

// Indices of a random `density` of `elements` elements, ascending, and values for them. Both have
// room for `elements`; `count` is a number in device memory, zero at first. Slow.
absl::Status MakeScatter(uint64_t elements, double density, uint64_t seed, uint32_t* indices,
                         uint16_t* values, unsigned long long* count, CudaStream stream);

}  // namespace wstore::bench
