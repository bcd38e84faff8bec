// The digests of tiles where they lie in chunks, at multiples of 8.
#pragma once

#include <cstdint>

#include "transfer/cuda/device_math.cuh"
#include "transfer/cuda/stage_tables.h"
#include "transfer/cuda/tree_digest.cuh"

namespace wstore::cuda {

// Sixteen bytes, or the last eight of `size` and zeros.
struct EightByEight {
  const uint2* words;
  uint32_t size;

  __device__ __forceinline__ uint4 operator()(uint32_t i) const {
    const uint2 low = words[2 * i];
    if (16 * i + 8 >= size) return make_uint4(low.x, low.y, 0, 0);
    const uint2 high = words[2 * i + 1];
    return make_uint4(low.x, low.y, high.x, high.y);
  }
};

// A grid of any size; see LeafKernel.
__global__ void __launch_bounds__(kLeafThreads, 1) StageLeafKernel(const StageTables tables) {
  const uint32_t warp = threadIdx.x / kWarpLanes * gridDim.x + blockIdx.x;
  for (uint32_t i = warp * kWarpLanes + threadIdx.x % kWarpLanes; i < tables.leaf_count;
       i += gridDim.x * kLeafThreads) {
    const StageLeaf leaf = tables.leaves[i];
    const EightByEight sixteen{reinterpret_cast<const uint2*>(leaf.data), leaf.bytes};
    const ShaState state = LeafHash(sixteen, leaf.bytes);
#pragma unroll
    for (uint32_t k = 0; k < 8; ++k) tables.leaf_digests[8 * uint64_t{leaf.leaf} + k] = state.h[k];
  }
}

// A grid of any size.
__global__ void __launch_bounds__(kRootThreads) StageRootKernel(const StageTables tables) {
  for (uint32_t i = blockIdx.x * kRootThreads + threadIdx.x; i < tables.root_count;
       i += gridDim.x * kRootThreads) {
    const StageRoot root = tables.roots[i];
    const uint32_t count = (root.bytes + kLeafBytes - 1) / kLeafBytes;
    const ShaState state =
        RootHash(tables.leaf_digests + 8 * uint64_t{root.leaf}, count, root.bytes);
#pragma unroll
    for (uint32_t k = 0; k < 8; ++k) {
      tables.tile_digests[8 * uint64_t{i} + k] = SwapBytes(state.h[k]);
    }
  }
}

}  // namespace wstore::cuda
