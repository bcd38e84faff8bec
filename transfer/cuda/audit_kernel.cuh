// The fingerprints of whole tensors, at the speed of memory.
#pragma once

#include <cstdint>

#include "transfer/cuda/device_math.cuh"
#include "transfer/cuda/load.cuh"
#include "transfer/cuda/sums.cuh"
#include "transfer/cuda/tables.h"

namespace wstore::cuda {

inline constexpr uint32_t kAuditThreads = 256;
inline constexpr uint32_t kAuditBlocksPerMultiprocessor = 4;

// Adds the sums over a warp's part of a tile to those of a lane. first_block: of the part. kWhole:
// all bytes are there, at aligned addresses.
template <bool kWhole>
__device__ __forceinline__ void SumPart(const TileBytes& tile, uint32_t start, uint32_t blocks,
                                        const TensorEntry& tensor, uint64_t first_block,
                                        const LaneMultipliers& b, uint32_t lane,
                                        uint64_t (&sums)[2]) {
  constexpr uint32_t kAtOnce = kWhole ? 4 : 1;
  for (uint32_t group = 0; group < blocks; group += kWarpLanes) {
    const Multipliers own =
        BlockMultipliers(tensor.philox_key, tensor.philox_high, first_block + group + lane);
    const uint32_t end = blocks - group < kWarpLanes ? blocks - group : kWarpLanes;
    for (uint32_t step = 0; step < end; step += kAtOnce) {
      uint4 words[kAtOnce];
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        const uint32_t at = start + (group + step + i) * kSumBlockBytes + lane * 16;
        words[i] = kWhole ? LoadStreaming(tile.begin + at) : LoadSixteen(tile, at);
      }
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          sums[k] += Shuffle64(own.lane[k], step + i) * Dot(b.b[k], words[i]);
        }
      }
    }
  }
}

// A grid of any size: a stretch of tiles for each block, so that sums stay in registers until the
// tensor changes.
__global__ void __launch_bounds__(kAuditThreads, kAuditBlocksPerMultiprocessor)
    AuditKernel(const AuditTables tables) {
  const uint32_t lane = threadIdx.x % kWarpLanes;
  const uint32_t warp = threadIdx.x / kWarpLanes;
  constexpr uint32_t kWarps = kAuditThreads / kWarpLanes;
  LaneMultipliers b;
  b.Load(tables.multipliers, lane);
  const uint64_t tiles = tables.end_tile - tables.first_tile;
  const uint64_t begin = tables.first_tile + tiles * blockIdx.x / gridDim.x;
  const uint64_t end = tables.first_tile + tiles * (blockIdx.x + 1) / gridDim.x;
  uint32_t open_tensor = UINT32_MAX;
  uint64_t sums[2] = {0, 0};
  const auto flush = [&] {
    if (open_tensor == UINT32_MAX) return;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint64_t sum = WarpSum(sums[k]);
      if (lane == 0) {
        atomicAdd(&tables.sums[open_tensor].after[k], static_cast<unsigned long long>(sum));
      }
      sums[k] = 0;
    }
  };
  for (uint64_t number = begin; number < end; ++number) {
    const uint32_t tensor_at = tables.tile_tensors[number];
    if (tensor_at != open_tensor) {
      flush();
      open_tensor = tensor_at;
    }
    const TensorEntry& tensor = tables.tensors[tensor_at];
    const uint64_t first = (number - tensor.first_tile) * kTileElementCount;
    const uint64_t left = tensor.elements - first;
    const uint32_t width = tensor.element_bytes;
    const uint32_t elements =
        left < kTileElementCount ? static_cast<uint32_t>(left) : kTileElementCount;
    const TileBytes tile{tensor.new_data + first * width, elements * width};
    const uint32_t part = kTileElementCount / kWarps * width;
    const uint32_t start = warp * part;
    const uint64_t first_block = (first * width + start) / kSumBlockBytes;
    const bool is_aligned = reinterpret_cast<uintptr_t>(tile.begin) % 16 == 0;
    if (is_aligned && elements == kTileElementCount) {
      SumPart<true>(tile, start, part / kSumBlockBytes, tensor, first_block, b, lane, sums);
    } else if (start < tile.size) {
      SumPart<false>(tile, start, part / kSumBlockBytes, tensor, first_block, b, lane, sums);
    }
  }
  flush();
}

}  // namespace wstore::cuda
