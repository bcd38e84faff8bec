#include "transfer/codec/tile_codec.h"

#include <algorithm>
#include <bit>

namespace wstore {

uint32_t CanonicalBytes(TileForm form, const TileShape& shape) {
  switch (form) {
    case TileForm::kBlocks:
      return PositionsStart(shape) + shape.count_bytes() + shape.escapes + shape.changed;
    case TileForm::kOffsets:
      return PositionsStart(shape) + 2 * shape.changed;
    case TileForm::kBitmap:
      return PositionsStart(shape) + shape.bitmap_bytes();
    case TileForm::kDense:
      break;
  }
  return shape.elements * shape.element_bytes;
}

TileForm ChooseForm(const TileShape& shape) {
  TileForm best = TileForm::kBlocks;
  for (const TileForm form : {TileForm::kOffsets, TileForm::kBitmap, TileForm::kDense}) {
    if (CanonicalBytes(form, shape) < CanonicalBytes(best, shape)) best = form;
  }
  return best;
}

TileShape ShapeOf(const EncodedTile& tile) {
  TileShape shape{tile.elements, tile.element_bytes, tile.changed, 0};
  if (tile.form == TileForm::kBlocks) {
    shape.escapes =
        static_cast<uint32_t>(tile.bytes.size()) - CanonicalBytes(TileForm::kBlocks, shape);
  }
  return shape;
}

void CountBlocks(absl::Span<const uint16_t> offsets, BlockCounts* counts) {
  // Where each block ends among the offsets. Stores alone: no increment waits for the one before
  // it.
  counts->fill(0);
  std::array<uint32_t, kMaxBlocks> ends{};
  for (size_t i = 0; i < offsets.size(); ++i) {
    ends[offsets[i] / kBlockElements] = static_cast<uint32_t>(i + 1);
  }
  uint32_t begin = 0;
  for (uint32_t block = 0; block < kMaxBlocks; ++block) {
    const uint32_t end = std::max(begin, ends[block]);
    (*counts)[block] = static_cast<uint16_t>(end - begin);
    begin = end;
  }
}

uint32_t CountEscapes(const BlockCounts& counts, uint32_t blocks) {
  uint32_t escapes = 0;
  for (uint32_t block = 0; block < blocks; ++block) escapes += counts[block] >= kEscapedCount;
  return escapes;
}

bool IsAscending(absl::Span<const uint16_t> offsets) {
  // Without an early exit, so that it vectorises.
  uint32_t faults = 0;
  for (size_t i = 1; i < offsets.size(); ++i) faults |= offsets[i - 1] >= offsets[i];
  return faults == 0;
}

uint32_t CountNonZero(const uint8_t* values, uint32_t elements, uint32_t element_bytes) {
  uint32_t count = 0;
  WithElementType(element_bytes, [&](auto zero) {
    for (uint32_t i = 0; i < elements; ++i) {
      count += LoadLe<decltype(zero)>(values + size_t{i} * sizeof(zero)) != zero;
    }
  });
  return count;
}

namespace {

void EncodeBlocks(const TileShape& shape, absl::Span<const uint16_t> offsets,
                  const BlockCounts& counts, uint8_t* positions) {
  uint8_t* escape = positions + shape.count_bytes();
  for (uint32_t block = 0; block < shape.blocks(); ++block) {
    const uint32_t count = counts[block];
    const uint32_t nibble = std::min(count, kEscapedCount);
    positions[block / 2] |= static_cast<uint8_t>(nibble << (block % 2 * 4));
    if (nibble == kEscapedCount) *escape++ = static_cast<uint8_t>(count - kEscapedCount);
  }
  for (size_t i = 0; i < offsets.size(); ++i) escape[i] = static_cast<uint8_t>(offsets[i]);
}

}  // namespace

void EncodePositions(TileForm form, const TileShape& shape, absl::Span<const uint16_t> offsets,
                     const BlockCounts& counts, uint8_t* positions) {
  switch (form) {
    case TileForm::kBlocks:
      return EncodeBlocks(shape, offsets, counts, positions);
    case TileForm::kOffsets:
      std::memcpy(positions, offsets.data(), offsets.size() * sizeof(uint16_t));
      return;
    case TileForm::kBitmap:
      for (const uint16_t offset : offsets) {
        positions[offset / 8] |= static_cast<uint8_t>(1u << (offset % 8));
      }
      return;
    case TileForm::kDense:
      return;
  }
}

bool DecodeCounts(const uint8_t* positions, const TileShape& shape, BlockCounts* counts) {
  const uint8_t* const escapes = positions + shape.count_bytes();
  const uint32_t blocks = shape.blocks();
  uint32_t escaped = 0;
  uint32_t total = 0;
  for (uint32_t block = 0; block < blocks; ++block) {
    uint32_t count = positions[block / 2] >> (block % 2 * 4) & 15;
    if (count == kEscapedCount) {
      if (escaped == shape.escapes) return false;
      count += escapes[escaped++];
    }
    (*counts)[block] = static_cast<uint16_t>(count);
    total += count;
  }
  const bool is_padded = blocks % 2 == 0 || positions[blocks / 2] >> 4 == 0;
  return total == shape.changed && escaped == shape.escapes && is_padded;
}

void DecodeBlocks(const uint8_t* block_offsets, const BlockCounts& counts, uint32_t blocks,
                  uint32_t changed, uint16_t* offsets) {
  static_cast<void>(changed);
  for (uint32_t block = 0; block < blocks; ++block) {
    const uint32_t base = block * kBlockElements;
    for (uint32_t i = 0; i < counts[block]; ++i) {
      *offsets++ = static_cast<uint16_t>(base + *block_offsets++);
    }
  }
}

bool DecodeBitmap(const uint8_t* bitmap, const TileShape& shape, uint16_t* offsets) {
  uint32_t found = 0;
  for (uint32_t base = 0; base < shape.elements; base += 64) {
    uint64_t bits = 0;
    std::memcpy(&bits, bitmap + base / 8, std::min<size_t>(8, shape.bitmap_bytes() - base / 8));
    if (found + static_cast<uint32_t>(std::popcount(bits)) > shape.changed) return false;
    for (; bits != 0; bits &= bits - 1) {
      offsets[found++] =
          static_cast<uint16_t>(base + static_cast<uint32_t>(std::countr_zero(bits)));
    }
  }
  return found == shape.changed;
}

namespace {

void DecodeDense(const EncodedTile& tile, TileChanges* changes) {
  WithElementType(tile.element_bytes, [&](auto zero) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < tile.elements && found < tile.changed; ++i) {
      const auto value = LoadLe<decltype(zero)>(tile.bytes.data() + size_t{i} * sizeof(zero));
      changes->offsets[found] = static_cast<uint16_t>(i);
      StoreLe(value, changes->values.data() + size_t{found} * sizeof(zero));
      found += value != zero;
    }
  });
}

void DecodeOffsets(const EncodedTile& tile, uint16_t* offsets) {
  const TileShape shape = ShapeOf(tile);
  const uint8_t* const positions = tile.bytes.data() + PositionsStart(shape);
  if (tile.form == TileForm::kOffsets) {
    std::memcpy(offsets, positions, tile.changed * sizeof(uint16_t));
  } else if (tile.form == TileForm::kBitmap) {
    DecodeBitmap(positions, shape, offsets);
  } else {
    BlockCounts counts;
    DecodeCounts(positions, shape, &counts);
    DecodeBlocks(positions + shape.count_bytes() + shape.escapes, counts, shape.blocks(),
                 shape.changed, offsets);
  }
}

}  // namespace

void DecodeTile(const EncodedTile& tile, TileChanges* changes) {
  changes->offsets.resize(tile.changed);
  changes->values.resize(size_t{tile.changed} * tile.element_bytes);
  if (tile.form == TileForm::kDense) return DecodeDense(tile, changes);
  std::memcpy(changes->values.data(), tile.bytes.data(), changes->values.size());
  DecodeOffsets(tile, changes->offsets.data());
}

void XorTile(const EncodedTile& tile, uint8_t* dense) {
  if (tile.form == TileForm::kDense) {
    for (size_t i = 0; i < tile.bytes.size(); ++i) dense[i] ^= tile.bytes[i];
    return;
  }
  uint16_t offsets[kTileElements];
  DecodeOffsets(tile, offsets);
  WithElementType(tile.element_bytes, [&](auto zero) {
    using Element = decltype(zero);
    for (uint32_t i = 0; i < tile.changed; ++i) {
      uint8_t* const at = dense + size_t{offsets[i]} * sizeof(Element);
      const auto value = LoadLe<Element>(tile.bytes.data() + size_t{i} * sizeof(Element));
      StoreLe<Element>(LoadLe<Element>(at) ^ value, at);
    }
  });
}

}  // namespace wstore
