// The inner loop of the fingerprint: one dot product with B per block and lane. Every
// implementation gives the same numbers; Dots() picks the fastest that the processor has.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace wstore::internal {

inline constexpr size_t kBlockWords = 128;
inline constexpr size_t kBlockBytes = 4 * kBlockWords;

// B of both lanes.
using BlockMultipliers = std::array<std::array<uint64_t, kBlockWords>, 2>;

// For each of `blocks` blocks of 128 little-endian words at `data` (of any alignment), writes to
// dots: the sum over i of B(i) x word i, mod 2^64, for lane 0 and lane 1.
using DotsFunction = void(const BlockMultipliers& b, const uint8_t* data, size_t blocks,
                          std::array<uint64_t, 2>* dots);

DotsFunction DotsPortable;
#if defined(__x86_64__)
DotsFunction DotsAvx2;  // only where the processor has AVX2
#endif

DotsFunction* Dots();

}  // namespace wstore::internal
