// The changes of several patch sets on one span, kept tile by tile.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "transfer/codec/lazy_memory.h"
#include "wstore/chunk.h"
#include "wstore/manifest.h"
#include "wstore/patch_source.h"

namespace wstore {

// XORs the changes of one tile, given as several encoded tiles, into its dense bytes.
void XorTiles(absl::Span<const EncodedTile> tiles, uint8_t* dense);

// Holds copies of encoded tiles until they exceed a budget, then XORs them into dense tiles and
// goes on. So memory never exceeds the budget, one tile more, and the dense bytes of a span. All
// changes of one tile are applied together, while it is in the cache. Keeps its memory from one
// span to the next. Not thread-safe.
class SpanOverlay {
 public:
  // The changes of one tile: the XOR of `dense` (if any) and all of `held`.
  struct Tile {
    uint8_t* dense = nullptr;
    std::vector<EncodedTile> held;

    bool empty() const { return dense == nullptr && held.empty(); }
  };

  // `manifest` must outlive the overlay.
  SpanOverlay(const Manifest& manifest, uint64_t budget_bytes);

  // Forgets what it held, and collects the changes that `patches` have for a span.
  //   kInternal: a source gave a tile of another span
  absl::Status Open(uint32_t span, absl::Span<const PatchSource* const> patches);

  // Whether no tile changes. (A tile whose changes cancel counts as changed.)
  bool empty() const { return is_empty_; }

  // The tiles of the span, as Manifest::SpanPlaces, and their changes in the same order.
  const std::vector<TilePlace>& places() const { return places_; }
  const Tile& tile(size_t index) const { return tiles_[index]; }

  // XORs the changes of a tile of the span into its dense bytes.
  void XorInto(TilePlace place, uint8_t* dense) const;

 private:
  void Hold(size_t index, const EncodedTile& tile);
  void Fold();

  const Manifest& manifest_;
  const uint64_t budget_bytes_;
  uint64_t first_tile_ = 0;
  std::vector<TilePlace> places_;
  std::vector<Tile> tiles_;
  bool is_empty_ = true;

  LazyMemory held_;  // the bytes of the held tiles, one after another
  uint64_t held_bytes_ = 0;
  uint64_t held_tiles_ = 0;
  LazyMemory dense_;  // room for all tiles of the span; only those of a Tile::dense mean anything
};

}  // namespace wstore
