// The digest of a patch set whose tiles are all there, on several cores.
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

// What PatchDigester gives for tiles tile_at(0) to tile_at(count - 1), which ascend by place. Each
// tensor is hashed by one of at most `threads` threads, which call tile_at. Blocks.
Digest DigestTiles(const Manifest& manifest, size_t count,
                   absl::FunctionRef<DigestedTile(size_t)> tile_at, int threads);

// The same of tiles that come in stretches. A tensor may be in several. Not thread-safe.
class StretchDigester {
 public:
  // `manifest` must outlive it.
  explicit StretchDigester(const Manifest& manifest);

  // Tiles behind all that were added. Blocks, as DigestTiles.
  void Add(size_t count, absl::FunctionRef<DigestedTile(size_t)> tile_at, int threads);
  // The digest of all that were added; afterwards the object is as new.
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

}  // namespace wstore
