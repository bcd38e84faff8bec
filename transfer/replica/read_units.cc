#include "transfer/replica/read_units.h"

#include <algorithm>

#include "common/status_macros.h"

namespace wstore {
namespace {

// Groups whose sums are held at a time: 2 MiB of them.
constexpr uint64_t kSumsAtATime = 32768;

}  // namespace

void MergeByCell(std::vector<CellSums>* cells) {
  const auto is_before = [](const CellSums& a, const CellSums& b) { return a.cell < b.cell; };
  if (!std::is_sorted(cells->begin(), cells->end(), is_before)) {
    std::sort(cells->begin(), cells->end(), is_before);
  }
  size_t kept = 0;
  for (size_t i = 0; i < cells->size(); ++i) {
    if (kept > 0 && (*cells)[kept - 1].cell == (*cells)[i].cell) {
      (*cells)[kept - 1].sums += (*cells)[i].sums;
    } else {
      (*cells)[kept++] = (*cells)[i];
    }
  }
  cells->resize(kept);
}

absl::Status ReadUnits(MemoryBackend& backend, const MemoryPass& pass, absl::Span<Unit> units,
                       std::vector<CellSums>* cells) {
  std::vector<TouchedSums> group_sums;
  for (size_t first = 0; first < units.size();) {
    uint64_t groups = 0;
    size_t last = first;
    while (last < units.size() && groups < kSumsAtATime) groups += units[last++].group_count;
    const absl::Span<Unit> turn = units.subspan(first, last - first);
    group_sums.assign(groups, TouchedSums());
    RETURN_IF_ERROR(backend.Read(pass, turn, absl::MakeSpan(group_sums)));
    size_t group_index = 0;
    for (const Unit& unit : turn) {
      for (const StagedGroup& group : unit.groups()) {
        const TouchedSums& sums = group_sums[group_index++];
        // Neighbours are mostly of one cell.
        if (!cells->empty() && cells->back().cell == group.cell) {
          cells->back().sums += sums;
        } else {
          cells->push_back({group.cell, sums});
        }
      }
    }
    MergeByCell(cells);
    first = last;
  }
  return absl::OkStatus();
}

}  // namespace wstore
