// Sizes of a tile's forms and which is chosen, and how positions are laid out: as
// transfer/codec/tile_codec.h has it, for the device.
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

// Writes the positions of form kBlocks or kOffsets in place of the bitmap, which is in `bits`: a
// thread for each block of 256 elements.
__device__ inline void LayOutPositions(const TileShape& shape, uint32_t form,
                                       const uint32_t (&bits)[8], uint32_t count,
                                       uint32_t changes_below, uint32_t escapes_below,
                                       uint32_t thread, uint8_t* positions) {
  const uint32_t capped = count < kEscaped ? count : kEscaped;
  const uint32_t next = __shfl_down_sync(kFullWarp, capped, 1);
  uint8_t* bytes = positions;
  if (form == kFormBlocks) {
    if (thread % 2 == 0 && thread / 2 < shape.count_bytes()) {
      positions[thread / 2] = static_cast<uint8_t>(capped | next << 4);
    }
    if (count >= kEscaped) {
      positions[shape.count_bytes() + escapes_below] = static_cast<uint8_t>(count - kEscaped);
    }
    bytes += shape.count_bytes() + shape.escapes;
  }
  uint32_t at = changes_below;
#pragma unroll
  for (uint32_t word = 0; word < 8; ++word) {
    for (uint32_t left = bits[word]; left != 0; left &= left - 1) {
      const uint32_t offset = word * 32 + __ffs(static_cast<int>(left)) - 1;
      if (form == kFormBlocks) {
        bytes[at++] = static_cast<uint8_t>(offset);
      } else {
        reinterpret_cast<uint16_t*>(bytes)[at++] =
            static_cast<uint16_t>(thread * kBlockElementCount + offset);
      }
    }
  }
}

}  // namespace wstore::cuda
