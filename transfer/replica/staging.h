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
#include "transfer/replica/staged_chunk.h"
#include "transfer/replica/staged_patch.h"
#include "wstore/chunk.h"
#include "wstore/update.h"

namespace wstore {

// Thread-safe. Every method changes all or nothing.
class Staging {
 public:
  using UsePiece = std::function<absl::Status(StagedPiece*)>;

  // accept: called with each piece before it is kept, so that a backend may put it where it wants
  // it. fetch: called where the columns of a decoded piece are needed.
  Staging(std::shared_ptr<const Plan> plan, const UpdateHeader& header, uint64_t budget_bytes,
          UsePiece accept, UsePiece fetch)
      : plan_(std::move(plan)),
        header_(header),
        budget_bytes_(budget_bytes),
        accept_(std::move(accept)),
        fetch_(std::move(fetch)) {}

  const UpdateHeader& header() const { return header_; }
  const std::shared_ptr<const Plan>& plan() const { return plan_; }
  // See PieceBuilder.
  bool allow_dense() const { return header_.contributors == 1; }

  // Errors: see Replica::StageChunk. `key` takes the place of the one in the chunk.
  absl::Status Add(const ChunkView& chunk, const ChunkKey& key);
  // The same for a chunk whose piece was accepted.
  absl::Status AddDecoded(DecodedChunk chunk);

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
  struct PlacedTile {
    const TileRecord* tile;
    uint16_t contributor;
    StagedPiece* piece;
  };

  std::unique_ptr<PieceBuilder> BorrowBuilder();
  absl::Status CheckContributor(const ChunkKey& key) const;
  absl::Status Keep(const ChunkKey& key, StagedChunk chunk);
  std::vector<PlacedTile> SortedTiles() const;
  absl::Status CheckDigests(absl::Span<const PlacedTile> tiles,
                            absl::Span<const ContributorContent> contents) const;
  absl::Status CheckClaims(absl::Span<const PlacedTile> tiles) const;
  // Of one tile, from several contributors.
  absl::Status CheckShared(absl::Span<const PlacedTile> parts) const;
  absl::Status CheckAliases(absl::Span<const PlacedTile> tiles) const;

  const std::shared_ptr<const Plan> plan_;
  const UpdateHeader header_;
  const uint64_t budget_bytes_;
  const UsePiece accept_;
  const UsePiece fetch_;

  mutable std::mutex fetch_mutex_;
  mutable std::mutex mutex_;
  std::map<ChunkKey, StagedChunk> chunks_;
  std::vector<uint64_t> counts_;  // of chunks, by contributor
  uint64_t size_bytes_ = 0;
  bool sealed_ = false;
  std::vector<std::unique_ptr<PieceBuilder>> builders_;  // not in use
};

}  // namespace wstore
