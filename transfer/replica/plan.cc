#include "transfer/replica/plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace wstore {

absl::StatusOr<std::shared_ptr<const Plan>> Plan::Create(const Manifest& manifest,
                                                         const FingerprintKey& key,
                                                         ReplicaPlacement placement) {
  if (placement.layout == nullptr) return absl::InvalidArgumentError("a replica needs a layout");
  if (placement.regions == nullptr) {
    const Layout* const whole = placement.layout.get();
    absl::StatusOr<RegionMap> map = RegionMap::Create(manifest, absl::MakeConstSpan(&whole, 1));
    RETURN_IF_ERROR(
        Prefixed(map.status(), "a rank without the region map of its instance must be all of it"));
    placement.regions = std::make_shared<const RegionMap>(*std::move(map));
    placement.rank = 0;
  }
  std::shared_ptr<Plan> plan(new Plan(manifest, key, std::move(placement)));
  RETURN_IF_ERROR(plan->CheckCells());
  plan->AddCells();
  return plan;
}

// The cells of a rank are its placements, cut up. So a map made from other layouts, or in another
// order, shows.
absl::Status Plan::CheckCells() const {
  if (regions().tensors() != manifest_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the region map is of a base of ",
                                                   regions().tensors(), " tensors, this one has ",
                                                   manifest_.size()));
  }
  if (rank() >= regions().ranks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank(), " of an instance of ", regions().ranks(), " ranks"));
  }
  const std::vector<Placement>& placements = layout().placements();
  std::vector<uint64_t> covered(placements.size());
  for (const Cell& cell : regions().cells(rank())) {
    if (cell.placement >= placements.size() ||
        cell.box.tensor != placements[cell.placement].tensor ||
        cell.box.buffer != placements[cell.placement].buffer ||
        cell.box.tensor >= manifest_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the region map was made from another layout than that of rank ", rank(),
                       " (cell of placement ", cell.placement, ")"));
    }
    covered[cell.placement] += cell.box.elements();
  }
  for (size_t i = 0; i < placements.size(); ++i) {
    if (covered[i] != placements[i].elements()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the region map was made from another layout than that of rank ", rank(), ": placement ",
          i, " of tensor '", manifest_.tensor(placements[i].tensor).spec.name, "' has ",
          placements[i].elements(), " elements, its cells have ", covered[i]));
    }
  }
  return absl::OkStatus();
}

void Plan::AddCells() {
  const absl::Span<const Cell> cells = regions().cells(rank());
  cells_.reserve(cells.size());
  first_.assign(manifest_.size() + 1, 0);
  std::vector<uint32_t> fingerprinter_of(manifest_.size(), UINT32_MAX);
  for (const Cell& cell : cells) {
    const TensorIndex tensor = cell.box.tensor;
    if (fingerprinter_of[tensor] == UINT32_MAX) {
      fingerprinter_of[tensor] = static_cast<uint32_t>(fingerprinters_.size());
      fingerprinters_.emplace_back(key_, manifest_.tensor(tensor).spec.name);
    }
    PlannedCell planned{&cell.box, manifest_.tensor(tensor).element_bytes, fingerprinter_of[tensor],
                        cell.box.checkpoint_offset, cell.box.checkpoint_offset + 1};
    for (const PlacementDim& dim : cell.box.dims) {
      planned.end += (dim.count - 1) * dim.checkpoint_stride;
    }
    cells_.push_back(planned);
    ++first_[tensor + 1];
  }
  for (size_t tensor = 0; tensor < manifest_.size(); ++tensor) first_[tensor + 1] += first_[tensor];

  by_begin_.resize(cells.size());
  for (uint32_t i = 0; i < cells.size(); ++i) by_begin_[i] = i;
  std::sort(by_begin_.begin(), by_begin_.end(), [this](uint32_t a, uint32_t b) {
    return std::make_tuple(cells_[a].box->tensor, cells_[a].begin, a) <
           std::make_tuple(cells_[b].box->tensor, cells_[b].begin, b);
  });
  max_end_.resize(cells.size());
  for (size_t i = 0; i < cells.size(); ++i) {
    const PlannedCell& cell = cells_[by_begin_[i]];
    const bool is_first = i == first_[cell.box->tensor];
    max_end_[i] = is_first ? cell.end : std::max(cell.end, max_end_[i - 1]);
  }
}

absl::Span<const uint32_t> Plan::CellsNear(TensorIndex tensor, uint64_t begin, uint64_t end) const {
  const auto ends = max_end_.begin();
  const auto first =
      std::upper_bound(ends + first_[tensor], ends + first_[tensor + 1], begin) - ends;
  const auto cells = by_begin_.begin();
  const auto last =
      std::lower_bound(cells + first, cells + first_[tensor + 1], end,
                       [this](uint32_t cell, uint64_t at) { return cells_[cell].begin < at; }) -
      cells;
  return absl::MakeConstSpan(by_begin_).subspan(first, last - first);
}

}  // namespace wstore
