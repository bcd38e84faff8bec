#include "transfer/cuda/stage_work.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "common/bytes.h"
#include "common/check.h"
#include "wstore/layout.h"

namespace wstore::cuda {
namespace {

static_assert(kHeadBytes == kMaxDirectoryBytes);
static_assert(sizeof(GroupEntry) == sizeof(StagedGroup));
static_assert(kTileElementCount == kTileElements && kSpanTileCount == kSpanTiles);

// Whether a cell has all elements of a tile, in one run of stride 1. base: the place of the first.
bool IsWhole(const PlannedCell& cell, uint64_t first_element, uint32_t elements, uint64_t* base) {
  if (first_element < cell.begin || first_element + elements > cell.end) return false;
  SegmentCursor cursor(*cell.box);
  if (!cursor.Seek(first_element)) return false;
  const Segment& segment = cursor.segment();
  if (segment.begin > first_element || segment.end < first_element + elements ||
      segment.local_stride != 1) {
    return false;
  }
  *base = segment.local_begin + (first_element - segment.begin);
  return true;
}

// See PieceBuilder::AddDense.
bool IsDense(const Plan& plan, const StageJob& job, const StageFound& found) {
  const PlannedCell& cell = plan.cell(job.cell);
  const uint64_t width = job.element_bytes;
  const uint64_t length = uint64_t{found.last} - found.first + 1;
  if (length * width >= found.count * (sizeof(uint16_t) + width)) return false;
  uint64_t base;
  return (job.flags & kStageWhole) != 0 || IsWhole(cell, job.tile * kTileElements + found.first,
                                                   static_cast<uint32_t>(length), &base);
}

}  // namespace

void AddJobs(const Plan& plan, const ChunkDirectory& directory, const uint8_t* data,
             std::vector<StageJob>* jobs) {
  jobs->reserve(jobs->size() + directory.tiles.size());
  for (const DirectoryTile& tile : directory.tiles) {
    const uint64_t first_element = tile.place.tile * kTileElements;
    StageJob job{};
    job.bytes = data + tile.at;
    job.tile = tile.place.tile;
    job.cell = kNoCell;
    job.packed = tile.packed.Encode();
    job.elements = tile.elements;
    job.element_bytes = static_cast<uint8_t>(tile.element_bytes);
    job.flags = kStageChecks;
    const absl::Span<const uint32_t> cells =
        plan.CellsNear(tile.place.tensor, first_element, first_element + tile.elements);
    if (cells.empty()) jobs->push_back(job);
    for (const uint32_t cell : cells) {
      job.cell = cell;
      if (IsWhole(plan.cell(cell), first_element, tile.elements, &job.base)) {
        job.flags |= kStageWhole;
      }
      jobs->push_back(job);
      job.base = 0;
      job.flags = 0;
    }
  }
}

LeafCounts CountLeaves(const ChunkDirectory& directory) {
  LeafCounts counts;
  for (const DirectoryTile& tile : directory.tiles) {
    counts.whole += tile.size_bytes / kLeafBytes;
    counts.last += tile.size_bytes % kLeafBytes != 0 ? 1 : 0;
  }
  return counts;
}

void FillLeaves(const ChunkDirectory& directory, const uint8_t* data, const LeafLists& lists) {
  StageLeaf* whole = lists.whole;
  StageLeaf* last = lists.last;
  StageRoot* root = lists.roots;
  uint32_t digest = lists.first_digest;
  for (const DirectoryTile& tile : directory.tiles) {
    *root++ = {digest, tile.size_bytes};
    uint32_t at = 0;
    for (; at + kLeafBytes <= tile.size_bytes; at += kLeafBytes) {
      *whole++ = {data + tile.at + at, kLeafBytes, digest++};
    }
    if (at < tile.size_bytes) *last++ = {data + tile.at + at, tile.size_bytes - at, digest++};
  }
}

void PieceDraft::Clear() {
  groups.clear();
  jobs.clear();
  bytes = {};
  changed = 0;
}

bool DraftPiece(const Plan& plan, bool allow_dense, absl::Span<const StageJob> jobs,
                absl::Span<const StageFound> found, PieceDraft* draft) {
  draft->Clear();
  ColumnBytes& bytes = draft->bytes;
  draft->groups.reserve(jobs.size());
  draft->jobs.reserve(jobs.size());
  for (uint32_t i = 0; i < jobs.size(); ++i) {
    const StageFound& entries = found[i];
    if (entries.count == 0) continue;
    if (entries.spread > std::numeric_limits<uint32_t>::max()) return false;
    draft->changed += entries.count;
    StagedGroup group;
    group.local_base = entries.low;
    group.cell = jobs[i].cell;
    group.tile = jobs[i].tile;
    group.count = entries.count;
    group.values_at = static_cast<uint32_t>(bytes.values / kValueAlignment);
    if (entries.is_same != 0 && allow_dense && IsDense(plan, jobs[i], entries)) {
      group.form = PlaceForm::kDense;
      group.count = entries.last - entries.first + 1;
      group.offsets_at = entries.first;
    } else {
      group.offsets_at = static_cast<uint32_t>(bytes.offsets / sizeof(uint16_t));
      bytes.offsets += entries.count * sizeof(uint16_t);
      if (entries.is_same != 0) {
        group.form = PlaceForm::kSame;
        group.local_base = entries.low - entries.first;
      } else if (entries.spread > std::numeric_limits<uint16_t>::max()) {
        group.form = PlaceForm::kFar;
        group.places_at = static_cast<uint32_t>(bytes.far / sizeof(uint32_t));
        bytes.far += entries.count * sizeof(uint32_t);
      } else {
        group.form = PlaceForm::kNear;
        group.places_at = static_cast<uint32_t>(bytes.near / sizeof(uint16_t));
        bytes.near += entries.count * sizeof(uint16_t);
      }
    }
    bytes.values += AlignUp(uint64_t{group.count} * jobs[i].element_bytes, kValueAlignment);
    draft->groups.push_back(group);
    draft->jobs.push_back(i);
  }
  bytes.groups = draft->groups.size() * sizeof(StagedGroup);
  WSTORE_CHECK(bytes.values / kValueAlignment <= std::numeric_limits<uint32_t>::max());
  return true;
}

}  // namespace wstore::cuda
