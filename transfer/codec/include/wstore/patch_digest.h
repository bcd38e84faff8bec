// The digest of a patch set whose tiles are all there, on several cores.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "wstore/chunk.h"

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

}  // namespace wstore
