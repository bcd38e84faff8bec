// What staging keeps of a chunk.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "transfer/replica/staged_patch.h"
#include "wstore/chunk.h"

namespace wstore {

// What is kept of a tile, whether or not it is local: enough to prove the digest.
struct TileRecord {
  TilePlace place;
  TileForm form = TileForm::kBlocks;
  uint32_t changed = 0;
  Digest digest;

  friend bool operator==(const TileRecord&, const TileRecord&) = default;
};

struct StagedChunk {
  std::vector<TileRecord> tiles;
  std::unique_ptr<StagedPiece> piece;  // null: nothing local
  std::vector<Unit> units;             // of the piece, if they have been read
};

// A chunk that a backend has checked and decoded where it lay.
struct DecodedChunk {
  ChunkHeader header;
  StagedChunk content;
};

}  // namespace wstore
