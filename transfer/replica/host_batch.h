// Units cut into batches, whose cache lines stay in the processor's caches between the passes over
// them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/types/span.h"
#include "transfer/replica/host_kernels.h"
#include "transfer/replica/plan.h"
#include "transfer/replica/staged_patch.h"

namespace wstore {

// Of scattered entries each may have a cache line of its own: two batches of them are 64 KiB.
inline constexpr size_t kBatchLines = 512;
inline constexpr size_t kLineBytes = 64;
// Of all elements of a batch, for which dense stretches have the room.
inline constexpr size_t kBatchBytes = 8192;
inline constexpr size_t kBatchSlices = 256;

struct Batch {
  std::array<GroupSlice, kBatchSlices> slices;
  size_t count = 0;
  size_t scattered = 0;       // elements that are not in dense stretches
  uint64_t spread_bytes = 0;  // between first and last of these, slice by slice
  size_t packed_bytes = 0;    // of all elements, each slice padded to whole words
  // See LocateLines. Beyond line_count the addresses are stale.
  std::array<uint8_t*, kBatchLines> lines{};
  size_t line_count = 0;

  static size_t PackedBytes(const GroupSlice& slice) { return (slice.size_bytes() + 7) / 8 * 8; }

  // Finds the lines of scattered elements. None, if they lie one behind the other: then the
  // hardware fetches them unasked.
  void LocateLines() {
    line_count = 0;
    if (spread_bytes < scattered * kLineBytes) return;
    for (size_t i = 0; i < count; ++i) {
      if (slices[i].is_dense()) continue;
      Locate(slices[i], &lines[line_count]);
      line_count += slices[i].count;
    }
  }

  // Calls function(slice, place of its elements in the packed bytes).
  template <typename Function>
  void ForEach(Function&& function) const {
    size_t at = 0;
    for (size_t i = 0; i < count; ++i) {
      function(slices[i], at);
      at += PackedBytes(slices[i]);
    }
  }
};

// Cuts a unit into batches, the same ones each time. What it is made from must outlive it.
class BatchReader {
 public:
  BatchReader(const Plan& plan, absl::Span<uint8_t* const> buffers, const Unit& unit)
      : plan_(plan), buffers_(buffers), piece_(unit.piece), groups_(unit.groups()) {}

  // False: there is no more; the batch is empty.
  bool Next(Batch* batch) {
    batch->count = 0;
    batch->scattered = 0;
    batch->spread_bytes = 0;
    batch->line_count = 0;
    batch->packed_bytes = 0;
    while (group_ < groups_.size() && batch->count < kBatchSlices) {
      const StagedGroup& group = groups_[group_];
      const PlannedCell& cell = plan_.cell(group.cell);
      const size_t bytes_room = (kBatchBytes - batch->packed_bytes) / cell.element_bytes;
      const size_t lines_room = kBatchLines - batch->scattered;
      const bool is_dense = group.form == PlaceForm::kDense;
      const size_t room = is_dense ? bytes_room : std::min(bytes_room, lines_room);
      const auto count = static_cast<uint32_t>(std::min<size_t>(group.count - entry_, room));
      if (count == 0) break;
      GroupSlice& slice = batch->slices[batch->count++];
      slice = {piece_, &group, buffers_[cell.box->buffer], cell.element_bytes, entry_, count};
      if (!is_dense) {
        batch->scattered += count;
        batch->spread_bytes += SpreadBytes(slice);
      }
      batch->packed_bytes += Batch::PackedBytes(slice);
      entry_ += count;
      if (entry_ == group.count) {
        ++group_;
        entry_ = 0;
      }
    }
    return batch->count > 0;
  }

 private:
  const Plan& plan_;
  const absl::Span<uint8_t* const> buffers_;
  const StagedPiece* const piece_;
  const absl::Span<const StagedGroup> groups_;
  size_t group_ = 0;
  uint32_t entry_ = 0;
};

}  // namespace wstore
