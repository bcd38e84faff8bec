#include "transfer/codec/span_overlay.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/check.h"
#include "transfer/codec/chunk_layout.h"

namespace wstore {
namespace {

// Many times the largest tile, so that little is left unused at the end of a block.
constexpr uint64_t kBlockBytes = 4 << 20;

// dense ^= other, both of `size_bytes`.
void XorBytes(uint8_t* dense, const uint8_t* other, uint64_t size_bytes) {
  for (uint64_t i = 0; i < size_bytes; ++i) dense[i] ^= other[i];
}

}  // namespace

ZeroedBytes AllocateZeroed(uint64_t size_bytes) {
  ZeroedBytes bytes(static_cast<uint8_t*>(std::calloc(size_bytes, 1)));
  WSTORE_CHECK(bytes != nullptr);
  return bytes;
}

SpanOverlay::SpanOverlay(const Manifest& manifest, uint32_t span, uint64_t budget_bytes)
    : manifest_(manifest),
      span_(span),
      first_tile_(uint64_t{span} * kSpanTiles),
      budget_bytes_(budget_bytes),
      places_(manifest.SpanPlaces(span)),
      tiles_(places_.size()) {}

absl::Status SpanOverlay::Add(const PatchSource& patches) {
  return patches.ReadSpan(span_, [this](const ChunkView& chunk) {
    for (const EncodedTile& tile : chunk.tiles()) {
      const uint64_t index = IndexOf(tile.place);
      if (index >= tiles_.size()) {
        return absl::InternalError(
            absl::StrCat("asked for span ", span_, ", a patch source gave tile ", tile.place.tile,
                         " of tensor ", tile.place.tensor, ", which is not in it"));
      }
      Hold(index, tile);
    }
    return absl::OkStatus();
  });
}

void SpanOverlay::Hold(size_t index, const EncodedTile& tile) {
  uint8_t* const bytes = Allocate(AlignUp(tile.bytes.size(), kTileAlignment));
  std::memcpy(bytes, tile.bytes.data(), tile.bytes.size());
  EncodedTile& held = tiles_[index].held.emplace_back(tile);
  held.bytes = absl::MakeConstSpan(bytes, tile.bytes.size());
  is_empty_ = false;
  held_bytes_ += tile.bytes.size() + sizeof(EncodedTile);
  if (held_bytes_ > budget_bytes_) Fold();
}

void SpanOverlay::Fold() {
  for (size_t i = 0; i < tiles_.size(); ++i) {
    Tile& tile = tiles_[i];
    if (tile.held.empty()) continue;
    if (tile.dense == nullptr) tile.dense = AllocateZeroed(manifest_.TileBytes(places_[i]));
    for (const EncodedTile& held : tile.held) XorTile(held, tile.dense.get());
    tile.held.clear();
  }
  held_bytes_ = 0;
  open_block_ = 0;
  open_used_ = 0;
}

void SpanOverlay::XorInto(size_t index, uint8_t* dense) const {
  WSTORE_CHECK(index < tiles_.size());
  const Tile& tile = tiles_[index];
  if (tile.dense != nullptr) {
    XorBytes(dense, tile.dense.get(), manifest_.TileBytes(places_[index]));
  }
  for (const EncodedTile& held : tile.held) XorTile(held, dense);
}

uint8_t* SpanOverlay::Allocate(uint64_t size_bytes) {
  while (open_block_ < blocks_.size() &&
         open_used_ + size_bytes > blocks_[open_block_].size_bytes) {
    ++open_block_;
    open_used_ = 0;
  }
  if (open_block_ == blocks_.size()) {
    const uint64_t block_bytes = std::max(kBlockBytes, size_bytes);
    blocks_.push_back({std::unique_ptr<uint8_t[]>(new uint8_t[block_bytes]), block_bytes});
  }
  uint8_t* const bytes = blocks_[open_block_].bytes.get() + open_used_;
  open_used_ += size_bytes;
  return bytes;
}

}  // namespace wstore
