// The fingerprints of whole tensors, at the speed of memory.
#pragma once

#include <cstdint>

#include "transfer/cuda/device_math.cuh"
#include "transfer/cuda/load.cuh"
#include "transfer/cuda/sums.cuh"
#include "transfer/cuda/tables.h"
#include "transfer/cuda/tile_extent.cuh"

namespace wstore::cuda {

inline constexpr uint32_t kAuditThreads = 256;
inline constexpr uint32_t kAuditBlocksPerMultiprocessor = 4;
// Steps of a warp whose bytes are under way.
inline constexpr uint32_t kAuditSteps = 4;
// Tiles that a block takes in a row.
inline constexpr uint32_t kAuditRun = 8;

// Adds the sums over a warp's part of a tile to those of a lane. first_block: of the part. kWhole:
// all bytes are there, at aligned addresses.
template <bool kWhole>
__device__ __forceinline__ void SumPart(const TileBytes& tile, uint32_t start, uint32_t blocks,
                                        const TensorEntry& tensor, uint64_t first_block,
                                        uint32_t lane, Multipliers* multipliers, WordSums* sums) {
  constexpr uint32_t kAtOnce = kWhole ? kAuditSteps : 1;
  const uint32_t at = start + lane * 16;
  uint4 words[kAtOnce];
  if constexpr (kWhole) {
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      words[i] = LoadStreaming(tile.begin + at + i * kSumBlockBytes);
    }
  }
  for (uint32_t group = 0; group < blocks; group += kWarpLanes) {
    __syncwarp();
    multipliers[lane] =
        BlockMultipliers(tensor.philox_key, tensor.philox_high, first_block + group + lane);
    __syncwarp();
    const uint32_t end = blocks - group < kWarpLanes ? blocks - group : kWarpLanes;
#pragma unroll 1
    for (uint32_t step = 0; step < end; step += kAtOnce) {
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        const uint32_t from = at + (group + step + i) * kSumBlockBytes;
        if constexpr (!kWhole) words[i] = LoadSixteen(tile, from);
        sums->Add(multipliers[step + i], words[i]);
        // The next ones are on their way while these are summed.
        if constexpr (kWhole) {
          if (group + step + kAtOnce < blocks) {
            words[i] = LoadStreaming(tile.begin + from + kAtOnce * kSumBlockBytes);
          }
        }
      }
    }
  }
}

// A grid of any size: blocks take stretches of kAuditRun tiles in turn, so that all of them read
// near each other, and sums stay in registers until the tensor changes.
__global__ void __launch_bounds__(kAuditThreads, kAuditBlocksPerMultiprocessor)
    AuditKernel(const AuditTables tables) {
  constexpr uint32_t kWarps = kAuditThreads / kWarpLanes;
  __shared__ Multipliers multipliers[kWarps][kWarpLanes];
  const uint32_t lane = threadIdx.x % kWarpLanes;
  const uint32_t warp = threadIdx.x / kWarpLanes;
  uint32_t open_tensor = UINT32_MAX;
  WordSums sums;
  const auto flush = [&] {
    if (open_tensor == UINT32_MAX) return;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint64_t sum = WarpSum(sums.Total(tables.multipliers, lane, k));
      if (lane == 0) {
        atomicAdd(&tables.sums[open_tensor].after[k], static_cast<unsigned long long>(sum));
      }
    }
    sums = WordSums();
  };
  const uint64_t tiles = tables.end_held - tables.first_held;
  for (uint64_t i = blockIdx.x * kAuditRun; i < tiles;
       i += i % kAuditRun == kAuditRun - 1 ? (gridDim.x - 1) * kAuditRun + 1 : 1) {
    const uint64_t number = HeldTile(tables.held_tiles, tables.first_held + i);
    const uint32_t tensor_at = tables.tile_tensors[number];
    if (tensor_at != open_tensor) {
      flush();
      open_tensor = tensor_at;
    }
    const TensorEntry& tensor = tables.tensors[tensor_at];
    const TileExtent extent = ExtentOf<true>(tensor, number);
    const uint32_t width = tensor.element_bytes;
    const TileBytes tile{tensor.new_data + extent.first * width, extent.held_first * width,
                         extent.held_end * width};
    const uint32_t part = kTileElementCount / kWarps * width;
    const uint32_t start = warp * part;
    const uint64_t first_block = (extent.first * width + start) / kSumBlockBytes;
    const bool is_aligned = reinterpret_cast<uintptr_t>(tile.begin) % 16 == 0;
    if (is_aligned && extent.held_end - extent.held_first == kTileElementCount) {
      SumPart<true>(tile, start, part / kSumBlockBytes, tensor, first_block, lane,
                    multipliers[warp], &sums);
    } else if (start < tile.end) {
      SumPart<false>(tile, start, part / kSumBlockBytes, tensor, first_block, lane,
                     multipliers[warp], &sums);
    }
  }
  flush();
}

}  // namespace wstore::cuda
