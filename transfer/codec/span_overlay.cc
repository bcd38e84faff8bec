#include "transfer/codec/span_overlay.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "transfer/codec/chunk_layout.h"

namespace wstore {
namespace {

// dense ^= other, both of `size_bytes`.
void XorBytes(uint8_t* dense, const uint8_t* other, uint64_t size_bytes) {
  for (uint64_t i = 0; i < size_bytes; ++i) dense[i] ^= other[i];
}

// Held tiles are a few kilobytes each, scattered over more memory than the cache has: too short for
// the processor to see them coming.
void Prefetch(absl::Span<const uint8_t> bytes) {
  constexpr size_t kCacheLineBytes = 64;
  constexpr size_t kMostBytes = 4096;
  for (size_t i = 0; i < std::min(bytes.size(), kMostBytes); i += kCacheLineBytes) {
    __builtin_prefetch(bytes.data() + i);
  }
}

}  // namespace

void XorTiles(absl::Span<const EncodedTile> tiles, uint8_t* dense) {
  for (size_t i = 0; i < tiles.size(); ++i) {
    if (i + 1 < tiles.size()) Prefetch(tiles[i + 1].bytes);
    XorTile(tiles[i], dense);
  }
}

SpanOverlay::SpanOverlay(const Manifest& manifest, uint64_t budget_bytes)
    : manifest_(manifest), budget_bytes_(budget_bytes) {}

absl::Status SpanOverlay::Open(uint32_t span, absl::Span<const PatchSource* const> patches) {
  first_tile_ = uint64_t{span} * kSpanTiles;
  places_ = manifest_.SpanPlaces(span);
  tiles_.resize(places_.size());
  for (Tile& tile : tiles_) {
    tile.dense = nullptr;
    tile.held.clear();
  }
  is_empty_ = true;
  held_bytes_ = held_tiles_ = 0;
  for (const PatchSource* const source : patches) {
    RETURN_IF_ERROR(source->ReadSpan(span, [&](const ChunkView& chunk) {
      for (const EncodedTile& tile : chunk.tiles()) {
        const uint64_t index = manifest_.GlobalTile(tile.place) - first_tile_;
        if (index >= tiles_.size()) {
          return absl::InternalError(
              absl::StrCat("asked for span ", span, ", a patch source gave tile ", tile.place.tile,
                           " of tensor ", tile.place.tensor, ", which is not in it"));
        }
        Hold(index, tile);
      }
      return absl::OkStatus();
    }));
  }
  return absl::OkStatus();
}

void SpanOverlay::Hold(size_t index, const EncodedTile& tile) {
  const uint64_t size_bytes = AlignUp(tile.bytes.size(), kTileAlignment);
  if (held_bytes_ + size_bytes + (held_tiles_ + 1) * sizeof(EncodedTile) > budget_bytes_) Fold();
  // One tile fits, however small the budget.
  if (held_bytes_ + size_bytes > held_.size_bytes()) {
    held_ = LazyMemory(std::max(budget_bytes_, size_bytes));
  }
  uint8_t* const bytes = held_.data() + held_bytes_;
  std::memcpy(bytes, tile.bytes.data(), tile.bytes.size());
  EncodedTile& held = tiles_[index].held.emplace_back(tile);
  held.bytes = absl::MakeConstSpan(bytes, tile.bytes.size());
  held_bytes_ += size_bytes;
  ++held_tiles_;
  is_empty_ = false;
}

void SpanOverlay::Fold() {
  uint64_t span_bytes = 0;
  for (const TilePlace place : places_) span_bytes += manifest_.TileBytes(place);
  // Too little room: then it is this span's first fold, and no tile points into what is replaced.
  if (span_bytes > dense_.size_bytes()) dense_ = LazyMemory(span_bytes);
  uint8_t* dense = dense_.data();
  for (size_t i = 0; i < tiles_.size(); ++i) {
    Tile& tile = tiles_[i];
    const uint64_t tile_bytes = manifest_.TileBytes(places_[i]);
    if (!tile.held.empty()) {
      if (tile.dense == nullptr) {
        tile.dense = dense;
        std::memset(dense, 0, tile_bytes);
      }
      XorTiles(tile.held, dense);
      tile.held.clear();
    }
    dense += tile_bytes;
  }
  held_bytes_ = held_tiles_ = 0;
}

void SpanOverlay::XorInto(TilePlace place, uint8_t* dense) const {
  const uint64_t index = manifest_.GlobalTile(place) - first_tile_;
  WSTORE_CHECK(index < tiles_.size());
  const Tile& tile = tiles_[index];
  if (tile.dense != nullptr) XorBytes(dense, tile.dense, manifest_.TileBytes(place));
  XorTiles(tile.held, dense);
}

}  // namespace wstore
