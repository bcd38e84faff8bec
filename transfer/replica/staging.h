// The chunks of one update as they come in, and the proof that they are all of it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "transfer/replica/plan.h"
#include "transfer/replica/staged_patch.h"
#include "wstore/chunk.h"
#include "wstore/update.h"

namespace wstore {

// What is kept of a tile of a chunk, whether or not it is local: enough to prove the digest.
struct TileRecord {
  TilePlace place;
  TileForm form = TileForm::kBlocks;
  uint32_t changed = 0;
  Digest digest;

  friend bool operator==(const TileRecord&, const TileRecord&) = default;
};

// Thread-safe. Every method changes all or nothing.
class Staging {
 public:
  // Called with each piece before it is kept, so that a backend may put it where it wants it.
  using AcceptPiece = std::function<absl::Status(StagedPiece*)>;

  Staging(std::shared_ptr<const Plan> plan, const UpdateHeader& header, uint64_t budget_bytes,
          AcceptPiece accept)
      : plan_(std::move(plan)),
        header_(header),
        budget_bytes_(budget_bytes),
        accept_(std::move(accept)) {}

  const UpdateHeader& header() const { return header_; }

  // Errors: see Replica::StageChunk. `key` takes the place of the one in the chunk.
  absl::Status Add(const ChunkView& chunk, const ChunkKey& key);

  // What has come from a contributor so far.
  //   kInvalidArgument: a tile in two chunks
  absl::StatusOr<ContributorContent> Content(uint16_t contributor) const;

  // Ends the collecting: later chunks are refused.
  //   kDataLoss: fewer or more chunks came than `contents` say; the collecting goes on
  absl::Status Seal(absl::Span<const ContributorContent> contents);

  // After Seal, of the same contents. Errors: see Replica::FinishStaging, what concerns the
  // content.
  absl::Status Verify(absl::Span<const ContributorContent> contents) const;

  // After Verify: the staged patch. Nothing is left.
  StagedPatch Take();

 private:
  struct Chunk {
    std::vector<TileRecord> tiles;
    std::unique_ptr<StagedPiece> piece;  // null: nothing local
  };
  struct PlacedTile {
    const TileRecord* tile;
    uint16_t contributor;
    const StagedPiece* piece;
  };

  std::unique_ptr<PieceBuilder> BorrowBuilder();
  absl::Status Keep(const ChunkKey& key, Chunk chunk);
  std::vector<PlacedTile> SortedTiles() const;
  absl::Status CheckDigests(absl::Span<const PlacedTile> tiles,
                            absl::Span<const ContributorContent> contents) const;
  absl::Status CheckClaims(absl::Span<const PlacedTile> tiles) const;
  absl::Status CheckAliases(absl::Span<const PlacedTile> tiles) const;

  const std::shared_ptr<const Plan> plan_;
  const UpdateHeader header_;
  const uint64_t budget_bytes_;
  const AcceptPiece accept_;

  mutable std::mutex mutex_;
  std::map<ChunkKey, Chunk> chunks_;
  std::vector<uint64_t> counts_;  // of chunks, by contributor
  uint64_t size_bytes_ = 0;
  bool sealed_ = false;
  std::vector<std::unique_ptr<PieceBuilder>> builders_;  // not in use
};

}  // namespace wstore
