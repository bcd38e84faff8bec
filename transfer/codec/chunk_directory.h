// What a chunk's header and entries say, for a reader that has the tiles' bytes elsewhere, such as
// on a GPU.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "transfer/codec/chunk_layout.h"
#include "wstore/chunk.h"

namespace wstore {

// Header and entries have no more than this.
inline constexpr uint64_t kMaxDirectoryBytes =
    kChunkHeaderBytes + (kTensorEntryBytes + kTileEntryBytes) * kSpanTiles;

struct DirectoryTile {
  TilePlace place;
  PackedTile packed;
  uint32_t elements = 0;  // of the tile
  uint32_t element_bytes = 1;
  uint32_t at = 0;          // byte of the chunk, a multiple of kTileAlignment
  uint32_t size_bytes = 0;  // canonical; zeros follow up to the next multiple of kTileAlignment
};

struct ChunkDirectory {
  ChunkHeader header;
  std::vector<DirectoryTile> tiles;
};

// Checks all that ChunkView::Parse checks, but for the checksum and what the tiles' bytes say.
// `head`: the first bytes of a chunk of `size_bytes`, at least kChunkHeaderBytes of them; all, or
// kMaxDirectoryBytes.
//   kInvalidArgument: as there
absl::StatusOr<ChunkDirectory> ReadChunkDirectory(std::string_view head, uint64_t size_bytes,
                                                  const Manifest& manifest);

}  // namespace wstore
