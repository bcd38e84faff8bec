// The fingerprint on the device. A lane reads the same four words of every block of 512 bytes, so
// it keeps, for each of them, the sum of A x word over all blocks; each is multiplied by its B only
// at the end. A comes by the warp.
#pragma once

#include <cstdint>

#include "transfer/cuda/device_math.cuh"
#include "transfer/cuda/tables.h"

namespace wstore::cuda {

struct WordSums {
  uint64_t sums[2][4] = {};

  // a: of the block that `words` are from.
  __device__ __forceinline__ void Add(const Multipliers& a, const uint4& words) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      AddProduct(a.lane[k], words.x, &sums[k][0]);
      AddProduct(a.lane[k], words.y, &sums[k][1]);
      AddProduct(a.lane[k], words.z, &sums[k][2]);
      AddProduct(a.lane[k], words.w, &sums[k][3]);
    }
  }

  // This lane's part of lane `k` of the fingerprint. b: DiffTables::multipliers.
  __device__ __forceinline__ uint64_t Total(const unsigned long long* b, uint32_t lane,
                                            int k) const {
    uint64_t total = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) total += b[128 * k + 4 * lane + i] * sums[k][i];
    return total;
  }
};

}  // namespace wstore::cuda
