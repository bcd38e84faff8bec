// The chunks of one update as they come in, and the proof that they are all of it. What can be done
// before the last has come is done as they come: digests are taken, and memory is read.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job_thread.h"
#include "transfer/replica/content_digester.h"
#include "transfer/replica/memory_gate.h"
#include "transfer/replica/plan.h"
#include "transfer/replica/staged_chunk.h"
#include "transfer/replica/staged_patch.h"
#include "wstore/chunk.h"
#include "wstore/regions.h"
#include "wstore/update.h"

namespace wstore {

// Threads that take digests of one update at most: they are on the way of every vote.
inline constexpr int kDigestThreads = 8;

// Thread-safe. Every method changes all or nothing.
class Staging {
 public:
  // Where the memory is.
  struct Backend {
    // Called with each piece before it is kept, so that it may be put where it is wanted.
    std::function<absl::Status(StagedPiece*)> accept;
    // Called where the columns of a decoded piece are needed.
    std::function<absl::Status(StagedPiece*)> fetch;
    // ReadUnits.
    std::function<absl::Status(const MemoryPass&, absl::Span<Unit>, std::vector<CellSums>*)> read;
  };

  // See ReplicaOptions.
  struct Options {
    uint64_t budget_bytes = UINT64_MAX;
    uint64_t read_ahead_groups = UINT64_MAX;
  };

  // `pass`: to the memory that the update was begun on.
  Staging(std::shared_ptr<const Plan> plan, const UpdateHeader& header, const Options& options,
          Backend backend, const MemoryPass& pass)
      : plan_(std::move(plan)),
        header_(header),
        options_(options),
        backend_(std::move(backend)),
        pass_(pass) {}

  const UpdateHeader& header() const { return header_; }
  const std::shared_ptr<const Plan>& plan() const { return plan_; }
  // See PieceBuilder.
  bool allow_dense() const { return header_.contributors == 1; }

  // Errors: see Replica::StageChunk. `key` takes the place of the one in the chunk.
  absl::Status Add(const ChunkView& chunk, const ChunkKey& key);
  // The same for a chunk whose piece was accepted.
  absl::Status AddDecoded(DecodedChunk chunk);

  // Takes digests of what was added, and reads memory for it, if it is much. To be called after
  // each Add, or after several.
  void WorkAhead();
  // The same in two threads, while the caller goes on.
  static void WorkAheadBeside(const std::shared_ptr<Staging>& staging, int threads,
                              JobThread& digests, JobThread& reads);

  // What has come from a contributor so far.
  //   kInvalidArgument: a tile in two chunks
  absl::StatusOr<ContributorContent> Content(uint16_t contributor) const;

  // Ends the collecting: later chunks are refused.
  //   kDataLoss: fewer or more chunks came than the summary says, unless it is partial; the
  //     collecting goes on
  absl::Status Seal(const UpdateSummary& summary);

  // After Seal, of the same summary, once. Errors: see Replica::FinishStaging, what concerns the
  // content.
  absl::Status Verify(const UpdateSummary& summary);

  struct Collected {
    StagedPatch patch;
    // So many of its units have been read, the first ones, from the memory that `pass` is for,
    // which is still as it was; `cells` is what ReadUnits says of them.
    size_t read_units = 0;
    std::vector<CellSums> cells;
  };
  // After Verify. Nothing is left.
  Collected Take();

 private:
  struct PlacedTile {
    const TileRecord* tile;
    uint16_t contributor;
    StagedPiece* piece;
  };

  // Of one contributor.
  struct Incoming {
    uint64_t chunks = 0;
    std::unique_ptr<ContentDigester> digester;  // null: nothing has come
  };

  std::unique_ptr<PieceBuilder> BorrowBuilder();
  absl::Status CheckContributor(const ChunkKey& key) const;
  absl::Status Keep(const ChunkKey& key, StagedChunk chunk);
  // See ContentDigester::Take. One call at a time is at work: others return, but one for kAll
  // waits.
  void DigestAhead(uint64_t least_tiles, int threads);
  // Takes what is to be read ahead, if it is much; whoever has it must call ReadAhead.
  std::vector<StagedChunk*> ClaimUnread();
  void ReadAhead(absl::Span<StagedChunk* const> chunks);
  absl::Status ReadChunks(absl::Span<StagedChunk* const> chunks, std::vector<CellSums>* cells);
  std::vector<PlacedTile> SortedTiles() const;
  // `tiles` may be empty where the digesters of all contributors are sound.
  absl::Status CheckDigests(absl::Span<const PlacedTile> tiles,
                            absl::Span<const ContributorContent> contents);
  Digest TakeDigest(uint16_t contributor, absl::Span<const PlacedTile> tiles);
  absl::Status CheckClaims(absl::Span<const PlacedTile> tiles) const;
  // Of one tile, from several contributors.
  absl::Status CheckShared(absl::Span<const PlacedTile> parts) const;
  // `is_partial`: of tensors that are not held here anything may have come.
  absl::Status CheckAliases(absl::Span<const PlacedTile> tiles, bool is_partial) const;

  const std::shared_ptr<const Plan> plan_;
  const UpdateHeader header_;
  const Options options_;
  const Backend backend_;
  const MemoryPass pass_;

  mutable std::mutex fetch_mutex_;
  mutable std::mutex mutex_;  // guards what follows
  std::map<ChunkKey, StagedChunk> chunks_;
  std::vector<Incoming> incoming_;  // by contributor
  uint64_t size_bytes_ = 0;
  bool sealed_ = false;
  bool is_digesting_ = false;  // a call of DigestAhead is at work
  std::condition_variable digested_;
  std::vector<StagedChunk*> unread_;
  uint64_t unread_groups_ = 0;
  size_t reading_ = 0;  // calls of ReadAhead that are at work
  std::condition_variable read_;
  // Of all chunks that have been read; a cell may be there again, and how many there were when they
  // had last been merged.
  std::vector<CellSums> cells_;
  size_t merged_cells_ = 0;
  std::vector<std::unique_ptr<PieceBuilder>> builders_;  // not in use

  // Last, so that they end first.
};

}  // namespace wstore
