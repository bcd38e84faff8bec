#include "transfer/codec/tile_sum.h"

#include <bit>
#include <cstring>

#include "common/bytes.h"

namespace wstore {
namespace {

constexpr uint64_t kMaxTileBytes = kTileElements * 8;
// With fewer changes than one in this many elements, it is faster to visit only what changes.
constexpr uint64_t kSparseElements = 64;

// Never written to: its pages all stay the one zero page of the system, and in the cache.
uint8_t zero_tile[kMaxTileBytes];

}  // namespace

TileSum::TileSum()
    : offsets_(new uint16_t[kTileElements]),
      values_(new uint8_t[kMaxTileBytes]),
      sparse_(kMaxTileBytes),
      dense_(kMaxTileBytes) {}

uint32_t TileSum::Compute(const SpanOverlay::Tile& tile, uint32_t elements,
                          uint32_t element_bytes) {
  uint64_t changes = 0;
  for (const EncodedTile& held : tile.held) changes += held.changed;
  if (tile.dense == nullptr && changes < elements / kSparseElements) {
    WithElementType(element_bytes, [&](auto zero) { SumSparse<decltype(zero)>(tile.held); });
    return changed_;
  }
  uint8_t* dense = tile.dense;
  if (dense == nullptr) {
    dense = dense_.data();
    std::memset(dense, 0, uint64_t{elements} * element_bytes);
  }
  XorTiles(tile.held, dense);
  changed_ = DiffTile(zero_tile, dense, elements, element_bytes, offsets_.get(), values_.get());
  return changed_;
}

// Costs in proportion to the changes, not to the tile, and needs no sorting.
template <typename Element>
void TileSum::SumSparse(absl::Span<const EncodedTile> tiles) {
  uint8_t* const sums = sparse_.data();
  for (const EncodedTile& tile : tiles) {
    DecodeTile(tile, &changes_);
    const uint8_t* value = changes_.values.data();
    for (const uint16_t offset : changes_.offsets) {
      uint8_t* const sum = sums + offset * sizeof(Element);
      StoreLe<Element>(LoadLe<Element>(sum) ^ LoadLe<Element>(value), sum);
      value += sizeof(Element);
      touched_[offset / 64] |= uint64_t{1} << (offset % 64);
      touched_words_[offset / 64 / 64] |= uint64_t{1} << (offset / 64 % 64);
    }
  }
  uint16_t* next_offset = offsets_.get();
  uint8_t* next_value = values_.get();
  for (uint32_t i = 0; i < touched_words_.size(); ++i) {
    for (uint64_t words = touched_words_[i]; words != 0; words &= words - 1) {
      const uint32_t word = i * 64 + std::countr_zero(words);
      for (uint64_t bits = touched_[word]; bits != 0; bits &= bits - 1) {
        const uint32_t offset = word * 64 + std::countr_zero(bits);
        uint8_t* const sum = sums + offset * sizeof(Element);
        const Element value = LoadLe<Element>(sum);
        StoreLe<Element>(0, sum);
        if (value == 0) continue;
        *next_offset++ = static_cast<uint16_t>(offset);
        StoreLe(value, next_value);
        next_value += sizeof(Element);
      }
      touched_[word] = 0;
    }
    touched_words_[i] = 0;
  }
  changed_ = static_cast<uint32_t>(next_offset - offsets_.get());
}

}  // namespace wstore
