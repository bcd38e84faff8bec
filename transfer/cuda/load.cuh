// Sixteen bytes at a time from tensors at any address.
#pragma once

#include <cstdint>

#include "transfer/cuda/device_math.cuh"

namespace wstore::cuda {

// Bytes of one tile of a tensor: `begin` may lie at any multiple of the element's width. Those that
// are there: from `first`, a multiple of sixteen, to `end`.
struct TileBytes {
  const uint8_t* begin;
  uint32_t first;
  uint32_t end;
};

__device__ __forceinline__ uint4 LoadStreaming(const uint8_t* at) {
  return __ldcs(reinterpret_cast<const uint4*>(at));
}

// Sixteen bytes from `shift` on, of the thirty-two in `low` and `high`.
__device__ __forceinline__ uint4 Realign(const uint4& low, const uint4& high, uint32_t shift) {
  uint32_t a = low.x, b = low.y, c = low.z, d = low.w, e = high.x;
  // The whole warp takes one of these branches.
  switch (shift / 4) {
    case 1:
      a = low.y, b = low.z, c = low.w, d = high.x, e = high.y;
      break;
    case 2:
      a = low.z, b = low.w, c = high.x, d = high.y, e = high.z;
      break;
    case 3:
      a = low.w, b = high.x, c = high.y, d = high.z, e = high.w;
      break;
  }
  const uint32_t bits = shift % 4 * 8;
  return make_uint4(__funnelshift_r(a, b, bits), __funnelshift_r(b, c, bits),
                    __funnelshift_r(c, d, bits), __funnelshift_r(d, e, bits));
}

// Sixteen bytes one by one, those past the end as zero.
__device__ __noinline__ inline uint4 LoadEnd(const uint8_t* begin, uint32_t end, uint32_t at) {
  uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
  for (uint32_t i = 0; i < 16; ++i) {
    if (at + i < end) words[i / 4] |= uint32_t{begin[at + i]} << (i % 4 * 8);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// The sixteen bytes of the tile from `at` on, zero for those that are not there. It reads nothing
// else.
__device__ __forceinline__ uint4 LoadSixteen(const TileBytes& tile, uint32_t at) {
  const uint8_t* const from = tile.begin + at;
  const uint32_t shift = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(tile.begin)) % 16;
  if (at < tile.first || at >= tile.end) return make_uint4(0, 0, 0, 0);
  if (shift == 0 && at + 16 <= tile.end) return LoadStreaming(from);
  if (at == tile.first || at + 32 > tile.end) return LoadEnd(tile.begin, tile.end, at);
  const uint4* const aligned = reinterpret_cast<const uint4*>(from - shift);
  return Realign(aligned[0], aligned[1], shift);
}

// Copies sixteen bytes to shared memory without passing registers, in the background. A thread that
// has waited sees what it copied itself.
__device__ __forceinline__ void CopySixteen(uint4* shared, const uint8_t* from) {
#if defined(__CUDA_ARCH__)
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#else
  *shared = *reinterpret_cast<const uint4*>(from);
#endif
}

// Closes a group of copies; it may be empty.
__device__ __forceinline__ void CommitCopies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;");
#endif
}

// Waits until at most the last kOpen groups of this thread are under way.
template <int kOpen>
__device__ __forceinline__ void WaitForCopies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
#endif
}

}  // namespace wstore::cuda
