// SHA-256 of leaves and roots of a tile, each by one thread.
#pragma once

#include <cstdint>

#include "transfer/cuda/device_math.cuh"

namespace wstore::cuda {

// One block a multiprocessor, for all leaves: see LeafKernel.
inline constexpr uint32_t kLeafThreads = 1024;
inline constexpr uint32_t kRootThreads = 128;

// FIPS 180-4.
__device__ constexpr uint32_t kShaConstants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

struct ShaState {
  uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
};

__device__ __forceinline__ uint32_t RotateRight(uint32_t value, uint32_t bits) {
  return __funnelshift_r(value, value, bits);
}

__device__ __forceinline__ uint32_t SwapBytes(uint32_t value) {
  return __byte_perm(value, 0, 0x0123);
}

// A sum, taken by the multipliers: shifts and logic keep the adders' pipe busy.
__device__ __forceinline__ uint32_t AddAside(uint32_t x, uint32_t y) {
#if defined(__CUDA_ARCH__)
  // One, as only the launch knows.
  uint32_t sum;
  asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(sum) : "r"(x), "r"(gridDim.y), "r"(y));
  return sum;
#else
  return x + y;
#endif
}

// One block of sixteen big-endian words, which are overwritten.
__device__ __forceinline__ void ShaBlock(ShaState* state, uint32_t (&w)[16]) {
  uint32_t a = state->h[0], b = state->h[1], c = state->h[2], d = state->h[3];
  uint32_t e = state->h[4], f = state->h[5], g = state->h[6], h = state->h[7];
#pragma unroll
  for (uint32_t i = 0; i < 64; ++i) {
    if (i >= 16) {
      const uint32_t x = w[(i + 1) % 16];
      const uint32_t y = w[(i + 14) % 16];
      const uint32_t mixed = AddAside(RotateRight(x, 7) ^ RotateRight(x, 18) ^ x >> 3,
                                      RotateRight(y, 17) ^ RotateRight(y, 19) ^ y >> 10);
      w[i % 16] = AddAside(AddAside(w[(i + 9) % 16], w[i % 16]), mixed);
    }
    const uint32_t first = AddAside(w[i % 16], AddAside(kShaConstants[i], h)) +
                           (RotateRight(e, 6) ^ RotateRight(e, 11) ^ RotateRight(e, 25)) +
                           ((e & f) ^ (~e & g));
    const uint32_t second = (RotateRight(a, 2) ^ RotateRight(a, 13) ^ RotateRight(a, 22)) +
                            ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = AddAside(first, d);
    d = c;
    c = b;
    b = a;
    a = first + second;
  }
  state->h[0] += a;
  state->h[1] += b;
  state->h[2] += c;
  state->h[3] += d;
  state->h[4] += e;
  state->h[5] += f;
  state->h[6] += g;
  state->h[7] += h;
}

// SHA-256 over `size` bytes and a byte 0. sixteen(i): bytes from 16 i on, which is below `size`;
// those past `size` are zero.
template <typename Sixteen>
__device__ __forceinline__ ShaState LeafHash(const Sixteen& sixteen, uint32_t size) {
  ShaState state;
  // The byte 0, the end mark and the length take ten bytes. One place for all blocks: the code of a
  // block is long.
  const uint32_t blocks = (size + 10 + 63) / 64;
  const uint32_t mark = size + 1;
  uint4 next[4];
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    next[i] = i * 16 < size ? sixteen(i) : make_uint4(0, 0, 0, 0);
  }
#pragma unroll 1
  for (uint32_t block = 0; block < blocks; ++block) {
    uint32_t w[16];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t at = block * 64 + i * 16;
      w[4 * i] = SwapBytes(next[i].x);
      w[4 * i + 1] = SwapBytes(next[i].y);
      w[4 * i + 2] = SwapBytes(next[i].z);
      w[4 * i + 3] = SwapBytes(next[i].w);
      // The next block is on its way while this one is hashed.
      next[i] = at + 64 < size ? sixteen(block * 4 + 4 + i) : make_uint4(0, 0, 0, 0);
    }
    if (block + 2 >= blocks) {
#pragma unroll
      for (uint32_t i = 0; i < 16; ++i) {
        if (mark / 4 == block * 16 + i) w[i] |= 0x80000000u >> (mark % 4 * 8);
      }
      if (block + 1 == blocks) w[15] = (size + 1) * 8;
    }
    ShaBlock(&state, w);
  }
  return state;
}

// The root: the leaf digests, the length (u64) and a byte 1.
__device__ inline ShaState RootHash(const uint32_t* leaves, uint32_t count, uint32_t size) {
  ShaState state;
  uint32_t w[16];
  const uint32_t words = 8 * count;
  // The length has two words and the byte 1 with the end mark one; the length in bits takes two.
  const uint32_t blocks = (words + 5 + 15) / 16;
  for (uint32_t block = 0; block < blocks; ++block) {
#pragma unroll
    for (uint32_t i = 0; i < 16; ++i) {
      const uint32_t at = block * 16 + i;
      w[i] = 0;
      if (at < words) {
        w[i] = leaves[at];
      } else if (at == words) {
        w[i] = SwapBytes(size);
      } else if (at == words + 2) {
        w[i] = 0x01800000;
      } else if (at == blocks * 16 - 1) {
        w[i] = (words * 4 + 9) * 8;
      }
    }
    ShaBlock(&state, w);
  }
  return state;
}

}  // namespace wstore::cuda
