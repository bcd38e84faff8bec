// Sizes of a tile's forms and which is chosen: as transfer/codec/tile_codec.h has it, for the
// device.
#pragma once

#include <cstdint>

#include "transfer/cuda/device_math.cuh"
#include "transfer/cuda/tables.h"

namespace wstore::cuda {

// TileForm.
inline constexpr uint32_t kFormBlocks = 0;
inline constexpr uint32_t kFormOffsets = 1;
inline constexpr uint32_t kFormBitmap = 2;
inline constexpr uint32_t kFormDense = 3;
// A block's count of this much or more is escaped.
inline constexpr uint32_t kEscaped = 15;

struct TileShape {
  uint32_t elements;
  uint32_t element_bytes;
  uint32_t changed;
  uint32_t escapes;

  __device__ __forceinline__ uint32_t blocks() const {
    return (elements + kBlockElementCount - 1) / kBlockElementCount;
  }
  __device__ __forceinline__ uint32_t count_bytes() const { return (blocks() + 1) / 2; }
  __device__ __forceinline__ uint32_t positions_at() const {
    return (changed * element_bytes + 3) / 4 * 4;
  }
  __device__ __forceinline__ uint32_t CanonicalBytes(uint32_t form) const {
    switch (form) {
      case kFormBlocks:
        return positions_at() + count_bytes() + escapes + changed;
      case kFormOffsets:
        return positions_at() + 2 * changed;
      case kFormBitmap:
        return positions_at() + (elements + 7) / 8;
      default:
        return elements * element_bytes;
    }
  }
};

// The smallest; the lower number among equals.
__device__ __forceinline__ uint32_t ChooseForm(const TileShape& shape) {
  uint32_t best = kFormBlocks;
  for (uint32_t form = kFormOffsets; form <= kFormDense; ++form) {
    if (shape.CanonicalBytes(form) < shape.CanonicalBytes(best)) best = form;
  }
  return best;
}

}  // namespace wstore::cuda
