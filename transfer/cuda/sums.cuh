// The fingerprint on the device: dot products with B in registers, A by the warp.
#pragma once

#include <cstdint>

#include "transfer/cuda/device_math.cuh"
#include "transfer/cuda/tables.h"

namespace wstore::cuda {

// B of the four words that a lane reads in every block of 512 bytes.
struct LaneMultipliers {
  uint64_t b[2][4];

  __device__ __forceinline__ void Load(const unsigned long long* all, uint32_t lane) {
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      b[0][i] = all[4 * lane + i];
      b[1][i] = all[128 + 4 * lane + i];
    }
  }
};

// The sum of word x B over a lane's four words of one block.
__device__ __forceinline__ uint64_t Dot(const uint64_t (&b)[4], const uint4& words) {
  return b[0] * words.x + b[1] * words.y + b[2] * words.z + b[3] * words.w;
}

}  // namespace wstore::cuda
