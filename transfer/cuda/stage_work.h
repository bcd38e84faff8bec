// The host's part of staging chunks that lie in device memory: what is for the kernels to do, and
// what their findings come to.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "transfer/codec/chunk_directory.h"
#include "transfer/cuda/stage_tables.h"
#include "transfer/replica/plan.h"
#include "transfer/replica/staged_patch.h"

namespace wstore::cuda {

// Appends the jobs of a chunk's tiles, by tile, then by cell. data: where the chunk lies; it is not
// read.
void AddJobs(const Plan& plan, const ChunkDirectory& directory, const uint8_t* data,
             std::vector<StageJob>* jobs);

// Leaves of kLeafBytes, and shorter ones.
struct LeafCounts {
  uint32_t whole = 0;
  uint32_t last = 0;
};
LeafCounts CountLeaves(const ChunkDirectory& directory);

// Where a chunk's leaves and roots are listed. Its digests of leaves are numbered from
// `first_digest` on.
struct LeafLists {
  StageLeaf* whole;
  StageLeaf* last;
  StageRoot* roots;
  uint32_t first_digest;
};
void FillLeaves(const ChunkDirectory& directory, const uint8_t* data, const LeafLists& lists);

// Columns of a piece, in bytes.
struct ColumnBytes {
  uint64_t groups = 0;
  uint64_t offsets = 0;
  uint64_t near = 0;
  uint64_t far = 0;
  uint64_t values = 0;

  uint64_t beside_groups() const { return offsets + near + far + values; }
};

// The piece that PieceBuilder would make of a chunk, but for its columns.
struct PieceDraft {
  std::vector<StagedGroup> groups;
  std::vector<uint32_t> jobs;  // by group: the one that fills it
  ColumnBytes bytes;
  uint64_t changed = 0;  // elements

  void Clear();
};

// Replaces what `draft` holds. found: by job. False: a job's places are too far apart for one
// group.
bool DraftPiece(const Plan& plan, bool allow_dense, absl::Span<const StageJob> jobs,
                absl::Span<const StageFound> found, PieceDraft* draft);

}  // namespace wstore::cuda
