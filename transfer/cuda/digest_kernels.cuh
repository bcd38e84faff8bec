// The digests of tiles: SHA-256 trees with leaves of 4 KiB, a thread for each leaf and then a
// thread for each tile.
#pragma once

#include <cstdint>

#include "transfer/cuda/device_math.cuh"
#include "transfer/cuda/tables.h"
#include "transfer/cuda/tree_digest.cuh"

namespace wstore::cuda {

// A grid of any size. Warps of leaves go round the multiprocessors: there may be no more than two
// for each of their parts, and small blocks were not spread that evenly.
__global__ void __launch_bounds__(kLeafThreads, 1) LeafKernel(const DiffTables tables) {
  if (tables.counters->slab_used > tables.slab_bytes) return;
  // Whole leaves, and behind them the others, so that the threads of a warp have equal work.
  const uint32_t first_whole = tables.before->whole_leaves;
  const uint32_t first_last = tables.before->last_leaves;
  const uint32_t whole = tables.counters->whole_leaves - first_whole;
  const uint32_t all = whole + tables.counters->last_leaves - first_last;
  const uint32_t warp = threadIdx.x / kWarpLanes * gridDim.x + blockIdx.x;
  for (uint32_t i = warp * kWarpLanes + threadIdx.x % kWarpLanes; i < all;
       i += gridDim.x * kLeafThreads) {
    const LeafJob job =
        tables
            .leaves[i < whole ? first_whole + i : tables.max_leaves - 1 - first_last - (i - whole)];
    const uint4* const sixteens = reinterpret_cast<const uint4*>(tables.slab + job.slab_at);
    const ShaState state = LeafHash([sixteens](uint32_t k) { return sixteens[k]; }, job.bytes);
#pragma unroll
    for (uint32_t k = 0; k < 8; ++k) tables.leaf_digests[8 * uint64_t{job.leaf} + k] = state.h[k];
  }
}

// A grid of any size.
__global__ void __launch_bounds__(kRootThreads) RootKernel(const DiffTables tables) {
  if (tables.counters->slab_used > tables.slab_bytes) return;
  for (uint64_t i = tables.first_tile + blockIdx.x * kRootThreads + threadIdx.x;
       i < tables.end_tile; i += gridDim.x * kRootThreads) {
    const TileRecord& tile = tables.tiles[i];
    if (tile.bytes == 0) {
      // The digests of all tiles are copied in one piece.
#pragma unroll
      for (uint32_t k = 0; k < 8; ++k) tables.tile_digests[8 * i + k] = 0;
      continue;
    }
    const uint32_t count = (tile.bytes + kLeafBytes - 1) / kLeafBytes;
    const ShaState state =
        RootHash(tables.leaf_digests + 8 * uint64_t{tile.leaf}, count, tile.bytes);
#pragma unroll
    for (uint32_t k = 0; k < 8; ++k) tables.tile_digests[8 * i + k] = SwapBytes(state.h[k]);
  }
}

}  // namespace wstore::cuda
