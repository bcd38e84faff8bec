// XORs the encoded tiles of a pass into one side of it.
#pragma once

#include <cstdint>

#include "transfer/cuda/device_math.cuh"
#include "transfer/cuda/tables.h"
#include "transfer/cuda/tile_extent.cuh"
#include "transfer/cuda/tile_shape.cuh"

namespace wstore::cuda {

inline constexpr uint32_t kApplyThreads = kTileElementCount / kBlockElementCount;

struct ApplyShared {
  uint32_t warp_totals[kApplyThreads / kWarpLanes];
};

// The sum over the block's threads below this one, of numbers whose sums do not overflow.
__device__ inline uint32_t BlockExclusiveSum(uint32_t value, ApplyShared& shared) {
  const uint32_t lane = threadIdx.x % kWarpLanes;
  const uint32_t warp = threadIdx.x / kWarpLanes;
  const uint32_t up_to = WarpInclusiveSum(value, lane);
  if (lane == kWarpLanes - 1) shared.warp_totals[warp] = up_to;
  __syncthreads();
  uint32_t below = up_to - value;
  for (uint32_t i = 0; i < warp; ++i) below += shared.warp_totals[i];
  __syncthreads();
  return below;
}

template <typename Element>
__device__ void XorBitmap(const TileShape& shape, const uint8_t* tile, Element* out,
                          ApplyShared& shared) {
  const Element* const values = reinterpret_cast<const Element*>(tile);
  const uint32_t* const bitmap = reinterpret_cast<const uint32_t*>(tile + shape.positions_at());
  const uint32_t words = (shape.elements + 31) / 32;
  uint32_t bits[8];
  uint32_t count = 0;
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    bits[i] = threadIdx.x * 8 + i < words ? bitmap[threadIdx.x * 8 + i] : 0;
    count += __popc(bits[i]);
  }
  uint32_t at = BlockExclusiveSum(count, shared);
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    for (uint32_t left = bits[i]; left != 0; left &= left - 1) {
      const uint32_t bit = __ffs(static_cast<int>(left)) - 1;
      out[threadIdx.x * kBlockElementCount + i * 32 + bit] ^= values[at++];
    }
  }
}

template <typename Element>
__device__ void XorBlocks(const TileShape& shape, const uint8_t* tile, Element* out,
                          ApplyShared& shared) {
  const Element* const values = reinterpret_cast<const Element*>(tile);
  const uint8_t* const counts = tile + shape.positions_at();
  const uint8_t* const escapes = counts + shape.count_bytes();
  const uint8_t* const offsets = escapes + shape.escapes;
  const uint32_t block = threadIdx.x;
  uint32_t count = block < shape.blocks() ? counts[block / 2] >> (block % 2 * 4) & 15 : 0;
  const bool is_escaped = count == kEscaped;
  const uint32_t escape = BlockExclusiveSum(is_escaped ? 1 : 0, shared);
  if (is_escaped) count += escapes[escape];
  const uint32_t first = BlockExclusiveSum(count, shared);
  for (uint32_t i = first; i < first + count; ++i) {
    out[block * kBlockElementCount + offsets[i]] ^= values[i];
  }
}

template <typename Element>
__device__ void XorTile(const TileRecord& record, const uint8_t* tile, const TileExtent& extent,
                        Element* out, ApplyShared& shared) {
  const uint32_t form = record.packed >> 16 & 3;
  const TileShape shape{extent.elements, sizeof(Element), record.changed, record.packed >> 18};
  const Element* const values = reinterpret_cast<const Element*>(tile);
  switch (form) {
    case kFormBlocks:
      return XorBlocks(shape, tile, out, shared);
    case kFormOffsets: {
      const uint16_t* const offsets =
          reinterpret_cast<const uint16_t*>(tile + shape.positions_at());
      for (uint32_t i = threadIdx.x; i < shape.changed; i += kApplyThreads) {
        out[offsets[i]] ^= values[i];
      }
      return;
    }
    case kFormBitmap:
      return XorBitmap(shape, tile, out, shared);
    default:
      for (uint32_t i = extent.held_first + threadIdx.x; i < extent.held_end; i += kApplyThreads) {
        out[i] ^= values[i];
      }
  }
}

// Takes the old side of a finished pass to the new one. A grid of any size.
__global__ void __launch_bounds__(kApplyThreads) MoveKernel(const DiffTables tables) {
  __shared__ ApplyShared shared;
  for (uint64_t number = tables.first_tile + blockIdx.x; number < tables.end_tile;
       number += gridDim.x) {
    const TileRecord record = tables.tiles[number];
    if (record.bytes == 0) continue;
    const TensorEntry& tensor = tables.tensors[tables.tile_tensors[number]];
    const TileExtent extent = ExtentOf<true>(tensor, number);
    const uint8_t* const tile = tables.slab + record.slab_at;
    uint8_t* const out =
        const_cast<uint8_t*>(tensor.old_data) + extent.first * tensor.element_bytes;
    switch (tensor.element_bytes) {
      case 1:
        XorTile(record, tile, extent, out, shared);
        break;
      case 2:
        XorTile(record, tile, extent, reinterpret_cast<uint16_t*>(out), shared);
        break;
      case 4:
        XorTile(record, tile, extent, reinterpret_cast<uint32_t*>(out), shared);
        break;
      default:
        XorTile(record, tile, extent, reinterpret_cast<uint64_t*>(out), shared);
        break;
    }
  }
}

}  // namespace wstore::cuda
