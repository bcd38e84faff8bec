// The digest of a patch set, from those of its tiles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "wstore/chunk.h"
#include "wstore/digest.h"

namespace wstore {

struct DigestedTile {
  TilePlace place;
  TileForm form = TileForm::kBlocks;
  uint32_t changed = 0;
  const Digest* digest = nullptr;  // TileDigest
};

// Joins tile digests into tensor digests and these into the digest of the patch set. It depends on
// the changes alone, never on how chunks or contributors were cut. An empty set has a digest too.
// Not thread-safe.
class PatchDigester {
 public:
  // `manifest` must outlive the digester.
  explicit PatchDigester(const Manifest& manifest);

  // Tiles come in ascending order, each once and whole: where contributors share a tile, their
  // changes are joined first. `form` and `changed` say how a tile's bytes are to be read, so the
  // digest covers them as well: equal digests mean equal changes.
  void Add(TilePlace place, TileForm form, uint32_t changed, const Digest& tile_digest);
  // Tiles tile_at(0) to tile_at(count - 1) at once: each of their tensors is hashed by one of at
  // most `threads` threads, which call tile_at. Blocks.
  void Add(size_t count, absl::FunctionRef<DigestedTile(size_t)> tile_at, int threads);

  // The digest of the set; afterwards the object is as new.
  Digest Finish();

 private:
  void CloseTensor();

  const Manifest& manifest_;
  Sha256 set_;
  uint64_t tensors_ = 0;
  // The tensor of the last tile: what comes next may belong to it.
  std::optional<TilePlace> last_;
  Sha256 open_;
  uint64_t open_changed_ = 0;
};

// That of a set whose tiles are all there.
Digest DigestTiles(const Manifest& manifest, size_t count,
                   absl::FunctionRef<DigestedTile(size_t)> tile_at, int threads);

}  // namespace wstore
