// The XOR of several encoded changes of one tile.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "transfer/codec/lazy_memory.h"
#include "transfer/codec/span_overlay.h"
#include "wstore/chunk.h"

namespace wstore {

// Buffers are kept between uses. Not thread-safe.
class TileSum {
 public:
  TileSum();

  // Sums the changes of a tile of `elements` elements. Elements that cancel drop out. Spoils
  // the dense bytes of `tile`. Returns the number of changed elements.
  uint32_t Compute(const SpanOverlay::Tile& tile, uint32_t elements, uint32_t element_bytes);

  // The result of the last Compute.
  absl::Span<const uint16_t> offsets() const { return {offsets_.get(), changed_}; }
  const uint8_t* values() const { return values_.get(); }

 private:
  template <typename Element>
  void SumSparse(absl::Span<const EncodedTile> tiles);

  uint32_t changed_ = 0;
  std::unique_ptr<uint16_t[]> offsets_;
  std::unique_ptr<uint8_t[]> values_;

  // For a few changes: bits by offset, all zero between uses; a bit for each element touched; and a
  // bit for each word of `touched_` that is not zero.
  LazyMemory sparse_;
  std::array<uint64_t, kTileElements / 64> touched_{};
  std::array<uint64_t, kTileElements / 64 / 64> touched_words_{};
  TileChanges changes_;

  LazyMemory dense_;  // for many changes
};

}  // namespace wstore
