// The encoding of one tile: sizes of its forms, which of them is chosen, and the loops that write
// and read it. Shared by the writer, the reader and the form at rest.
#pragma once

#include <array>
#include <cstdint>

#include "absl/types/span.h"
#include "common/bytes.h"
#include "wstore/chunk.h"

namespace wstore {

inline constexpr uint32_t kBlockElements = 256;
inline constexpr uint32_t kMaxBlocks = kTileElements / kBlockElements;
// A block's count of this much or more is escaped.
inline constexpr uint32_t kEscapedCount = 15;

// What the sizes of a tile's forms follow from.
struct TileShape {
  uint32_t elements = 0;
  uint32_t element_bytes = 1;
  uint32_t changed = 0;
  uint32_t escapes = 0;  // blocks with kEscapedCount changes or more

  uint32_t blocks() const { return (elements + kBlockElements - 1) / kBlockElements; }
  uint32_t count_bytes() const { return (blocks() + 1) / 2; }
  uint32_t bitmap_bytes() const { return (elements + 7) / 8; }
};

// Where the positions begin within the canonical bytes of a form other than kDense.
inline uint32_t PositionsStart(const TileShape& shape) {
  return static_cast<uint32_t>(AlignUp(uint64_t{shape.changed} * shape.element_bytes, 4));
}

// Length of the canonical bytes.
uint32_t CanonicalBytes(TileForm form, const TileShape& shape);

// The smallest form; the lower number among equals.
TileForm ChooseForm(const TileShape& shape);

// The number of escaped blocks of a tile in form kBlocks follows from the length of its bytes.
TileShape ShapeOf(const EncodedTile& tile);

using BlockCounts = std::array<uint16_t, kMaxBlocks>;

// Counts the changes in each block; zero past the last one. Offsets ascend and lie within the tile.
void CountBlocks(absl::Span<const uint16_t> offsets, BlockCounts* counts);

// Blocks with kEscapedCount changes or more.
uint32_t CountEscapes(const BlockCounts& counts, uint32_t blocks);

// Each offset is larger than the one before it.
bool IsAscending(absl::Span<const uint16_t> offsets);

// Elements of `values` whose bits are not all zero.
uint32_t CountNonZero(const uint8_t* values, uint32_t elements, uint32_t element_bytes);

// Writes the positions of form kBlocks. `counts` is what CountBlocks gives.
void EncodeBlocks(absl::Span<const uint16_t> offsets, const BlockCounts& counts,
                  const TileShape& shape, uint8_t* positions);

// Writes the positions of form kBitmap into zeroed bytes.
void EncodeBitmap(absl::Span<const uint16_t> offsets, uint32_t bitmap_bytes, uint8_t* bitmap);

// Reads the counts of form kBlocks. False: they do not add up to shape.changed, or not
// shape.escapes of them are escaped, or the unused half of the last byte is not zero.
bool DecodeCounts(const uint8_t* positions, const TileShape& shape, BlockCounts* counts);

// Joins counts and the offsets within blocks to offsets within the tile. The counts add up to
// offsets.size().
void DecodeBlocks(const uint8_t* block_offsets, const BlockCounts& counts, uint32_t blocks,
                  absl::Span<uint16_t> offsets);

// Reads the offsets of form kBitmap. False: there are not exactly shape.changed bits. A bit past
// the last element becomes an offset past it.
bool DecodeBitmap(const uint8_t* bitmap, const TileShape& shape, uint16_t* offsets);

}  // namespace wstore
