// The changes of several patch sets on one span, kept tile by tile.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "wstore/chunk.h"
#include "wstore/manifest.h"
#include "wstore/patch_source.h"

namespace wstore {

struct FreeDeleter {
  void operator()(uint8_t* bytes) const { std::free(bytes); }
};
using ZeroedBytes = std::unique_ptr<uint8_t[], FreeDeleter>;

// Zeroed memory whose untouched pages cost nothing. Stops the process when there is none.
ZeroedBytes AllocateZeroed(uint64_t size_bytes);

// Holds copies of encoded tiles until they exceed a budget, then XORs them into dense tiles and
// goes on. So memory never exceeds the budget, one tile more, and the dense bytes of the tiles that
// change. All changes of one tile are applied together, while it is in the cache. Not thread-safe.
class SpanOverlay {
 public:
  // The changes of one tile: the XOR of `dense` (if any) and all of `held`.
  struct Tile {
    ZeroedBytes dense;
    std::vector<EncodedTile> held;

    bool empty() const { return dense == nullptr && held.empty(); }
  };

  // `manifest` must outlive the overlay.
  SpanOverlay(const Manifest& manifest, uint32_t span, uint64_t budget_bytes);

  // Adds the changes that `patches` has for the span.
  //   kInternal: the source gave a tile of another span
  absl::Status Add(const PatchSource& patches);

  // Whether no tile changes. (A tile whose changes cancel counts as changed.)
  bool empty() const { return is_empty_; }

  // The tiles of the span, as Manifest::SpanPlaces, and their changes in the same order.
  const std::vector<TilePlace>& places() const { return places_; }
  Tile& tile(size_t index) { return tiles_[index]; }

  // Index in places() of a tile; places().size() or more if it is of another span.
  uint64_t IndexOf(TilePlace place) const { return manifest_.GlobalTile(place) - first_tile_; }

  // XORs the changes of a tile into its dense bytes.
  void XorInto(size_t index, uint8_t* dense) const;

 private:
  void Hold(size_t index, const EncodedTile& tile);
  void Fold();
  uint8_t* Allocate(uint64_t size_bytes);

  struct Block {
    std::unique_ptr<uint8_t[]> bytes;
    uint64_t size_bytes = 0;
  };

  const Manifest& manifest_;
  const uint32_t span_;
  const uint64_t first_tile_;
  const uint64_t budget_bytes_;
  const std::vector<TilePlace> places_;
  std::vector<Tile> tiles_;
  bool is_empty_ = true;
  uint64_t held_bytes_ = 0;

  // Bytes of the held tiles. Blocks are filled one after another and kept when all is folded.
  std::vector<Block> blocks_;
  size_t open_block_ = 0;
  uint64_t open_used_ = 0;
};

}  // namespace wstore
