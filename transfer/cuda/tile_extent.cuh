// Which elements a tile has, and which of them are held.
#pragma once

#include <cstdint>

#include "transfer/cuda/device_math.cuh"
#include "transfer/cuda/tables.h"

namespace wstore::cuda {

struct TileExtent {
  uint64_t first;     // element of the tensor
  uint32_t elements;  // of the tile, held or not
  // From the tile's first one.
  uint32_t held_first;
  uint32_t held_end;
};

// Of a tile with elements that are held. Without kShare, all of it is.
template <bool kShare>
__device__ __forceinline__ TileExtent ExtentOf(const TensorEntry& tensor, uint64_t number) {
  const uint64_t first = (number - tensor.first_tile) * kTileElementCount;
  const auto within = [first](uint64_t element) {
    const uint64_t left = element - first;
    return left < kTileElementCount ? static_cast<uint32_t>(left) : kTileElementCount;
  };
  const uint32_t elements = within(tensor.elements);
  if constexpr (!kShare) return {first, elements, 0, elements};
  return {first, elements,
          tensor.held_first > first ? static_cast<uint32_t>(tensor.held_first - first) : 0,
          within(tensor.held_end)};
}

// The number of a tile from its place among those that are held.
__device__ __forceinline__ uint32_t HeldTile(const uint32_t* held_tiles, uint64_t held) {
  return held_tiles == nullptr ? static_cast<uint32_t>(held) : held_tiles[held];
}

}  // namespace wstore::cuda
