#include "transfer/codec/tile_codec.h"

#include <algorithm>
#include <vector>

#include "transfer/codec/bit_table.h"

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
  uint32_t end_so_far = 0;
  for (const uint16_t offset : offsets) ends[offset / kBlockElements] = ++end_so_far;
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
  uint16_t faults = 0;
  const uint16_t* const data = offsets.data();
  for (size_t i = 1; i < offsets.size(); ++i) faults |= data[i - 1] >= data[i];
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

void EncodeBlocks(absl::Span<const uint16_t> offsets, const BlockCounts& counts,
                  const TileShape& shape, uint8_t* positions) {
  // Counts past the last block are zero, and so is the unused half of the last byte.
  for (uint32_t i = 0; i < shape.count_bytes(); ++i) {
    const uint32_t low = std::min<uint32_t>(counts[2 * i], kEscapedCount);
    const uint32_t high = std::min<uint32_t>(counts[2 * i + 1], kEscapedCount);
    positions[i] = static_cast<uint8_t>(low | high << 4);
  }
  uint8_t* out = positions + shape.count_bytes();
  for (uint32_t block = 0; shape.escapes != 0 && block < shape.blocks(); ++block) {
    if (counts[block] < kEscapedCount) continue;
    *out++ = static_cast<uint8_t>(counts[block] - kEscapedCount);
  }
  for (const uint16_t offset : offsets) *out++ = static_cast<uint8_t>(offset);
}

void EncodeBitmap(absl::Span<const uint16_t> offsets, uint32_t bitmap_bytes, uint8_t* bitmap) {
  uint64_t word = 0;
  uint32_t at = 0;
  const auto flush = [&] {
    std::memcpy(bitmap + at, &word, std::min<size_t>(sizeof(word), bitmap_bytes - at));
  };
  for (const uint16_t offset : offsets) {
    const uint32_t start = offset / 64 * 8;
    if (start != at) {
      flush();
      word = 0;
      at = start;
    }
    word |= uint64_t{1} << (offset % 64);
  }
  flush();
}

bool DecodeCounts(const uint8_t* positions, const TileShape& shape, BlockCounts* counts) {
  const uint32_t blocks = shape.blocks();
  for (uint32_t i = 0; i < shape.count_bytes(); ++i) {
    (*counts)[2 * i] = positions[i] & 15;
    (*counts)[2 * i + 1] = positions[i] >> 4;
  }
  if (blocks % 2 != 0 && (*counts)[blocks] != 0) return false;
  if (CountEscapes(*counts, blocks) != shape.escapes) return false;
  const uint8_t* escape = positions + shape.count_bytes();
  for (uint32_t block = 0; shape.escapes != 0 && block < blocks; ++block) {
    if ((*counts)[block] == kEscapedCount) (*counts)[block] += *escape++;
  }
  uint32_t total = 0;
  for (uint32_t block = 0; block < blocks; ++block) total += (*counts)[block];
  return total == shape.changed;
}

namespace {

// Writes eight bytes as offsets from `base`. The vector types of GCC and Clang, because loops over
// arrays were not recognised as the two instructions this is.
inline void Widen8(const uint8_t* bytes, uint32_t base, uint16_t* offsets) {
  using Bytes = uint8_t __attribute__((vector_size(8)));
  using Words = uint16_t __attribute__((vector_size(16)));
  const auto words = __builtin_convertvector(LoadLe<Bytes>(bytes), Words);
  StoreLe<Words>(words + static_cast<uint16_t>(base), offsets);
}

}  // namespace

void DecodeBlocks(const uint8_t* block_offsets, const BlockCounts& counts, uint32_t blocks,
                  absl::Span<uint16_t> offsets) {
  const size_t changed = offsets.size();
  uint16_t* const out = offsets.data();
  uint32_t block = 0;
  size_t begin = 0;
  // Eight at a time, most of them for nothing, costs less than a branch that depends on the count.
  // Ends where that would reach past the buffers.
  for (; block < blocks; ++block) {
    const size_t end = begin + counts[block];
    if (end + 8 > changed) break;
    size_t i = begin;
    do {
      Widen8(block_offsets + i, block * kBlockElements, out + i);
      i += 8;
    } while (i < end);
    begin = end;
  }
  for (; block < blocks; ++block) {
    const size_t end = begin + counts[block];
    for (size_t i = begin; i < end; ++i) {
      out[i] = static_cast<uint16_t>(block * kBlockElements + block_offsets[i]);
    }
    begin = end;
  }
}

bool DecodeBitmap(const uint8_t* bitmap, const TileShape& shape, uint16_t* offsets) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < shape.bitmap_bytes(); ++i) {
    const auto& bits = kBitTable.bits[bitmap[i]];
    const uint32_t end = found + kBitTable.count[bitmap[i]];
    if (end > shape.changed) return false;
    if (found + 8 <= shape.changed) {
      Widen8(bits.data(), 8 * i, offsets + found);
    } else {
      for (uint32_t j = 0; j < end - found; ++j) {
        offsets[found + j] = static_cast<uint16_t>(8 * i + bits[j]);
      }
    }
    found = end;
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
                 absl::MakeSpan(offsets, shape.changed));
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
  thread_local std::vector<uint16_t> buffer(kTileElements);
  // Copies, since a store to `dense` might change anything that is not.
  const uint16_t* const offsets = buffer.data();
  const uint8_t* const values = tile.bytes.data();
  const uint32_t changed = tile.changed;
  DecodeOffsets(tile, buffer.data());
  WithElementType(tile.element_bytes, [=](auto zero) {
    using Element = decltype(zero);
    for (uint32_t i = 0; i < changed; ++i) {
      uint8_t* const at = dense + size_t{offsets[i]} * sizeof(Element);
      const auto value = LoadLe<Element>(values + size_t{i} * sizeof(Element));
      StoreLe<Element>(LoadLe<Element>(at) ^ value, at);
    }
  });
}

}  // namespace wstore
