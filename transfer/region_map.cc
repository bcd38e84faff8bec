#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "transfer/grouped_faults.h"
#include "transfer/refine.h"
#include "wstore/regions.h"

namespace wstore {
namespace {

constexpr std::string_view kDigestLabel = "wstore regions 1";
constexpr std::string_view kUncovered = "elements that no rank has";

// Where a box of the tensor at hand is placed.
struct Holding {
  StridedBox box;
  uint32_t rank = 0;
  uint32_t placement = 0;  // index into the rank's placements
  size_t box_index = 0;    // into the boxes, each once
};

// Refines the placements of one tensor after another.
class Refiner {
 public:
  Refiner(const Manifest& manifest, absl::Span<const Layout* const> ranks)
      : manifest_(manifest), ranks_(ranks) {}

  // Looks at a tensor. Faults of the tensor are noted; others are returned.
  void Refine(TensorIndex tensor) {
    tensor_ = tensor;
    holdings_.clear();
    pieces_.clear();
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      const auto placements = ranks_[rank]->placements(tensor);
      for (const Placement& placement : placements) {
        const size_t index = &placement - ranks_[rank]->placements().data();
        holdings_.push_back({CheckpointBox(placement), rank, static_cast<uint32_t>(index)});
      }
    }
    NumberBoxes();
    absl::StatusOr<std::vector<std::vector<StridedBox>>> pieces = RefineBoxes(boxes_);
    if (!pieces.ok()) {
      faults_.Add("tensors without regions", absl::StrCat(Name(), ": ", pieces.status().message()));
      return;
    }
    pieces_ = *std::move(pieces);
    CheckElements();
  }

  // Calls visit(holding, piece) for all pieces of the tensor, by rank, then by placement.
  template <typename Visit>
  void ForEachPiece(Visit visit) const {
    if (pieces_.empty()) return;
    for (const Holding& holding : holdings_) {
      for (const StridedBox& piece : pieces_[holding.box_index]) visit(holding, piece);
    }
  }

  absl::Status ToStatus() const { return faults_.ToStatus(); }

 private:
  std::string Name() const { return absl::StrCat("'", manifest_.tensor(tensor_).spec.name, "'"); }

  // Collects the boxes of the holdings, each once.
  void NumberBoxes() {
    std::vector<Holding*> by_box;
    for (Holding& holding : holdings_) by_box.push_back(&holding);
    std::sort(by_box.begin(), by_box.end(), [](const Holding* a, const Holding* b) {
      return std::tie(a->box.offset, a->box.dims) < std::tie(b->box.offset, b->box.dims);
    });
    boxes_.clear();
    for (Holding* holding : by_box) {
      if (boxes_.empty() || boxes_.back() != holding->box) boxes_.push_back(holding->box);
      holding->box_index = boxes_.size() - 1;
    }
  }

  void CheckElements() {
    const uint64_t all = manifest_.tensor(tensor_).elements;
    // Pieces with the same first element are the same.
    std::vector<std::pair<uint64_t, uint64_t>> counts;
    for (const auto& pieces : pieces_) {
      for (const StridedBox& piece : pieces) counts.emplace_back(piece.offset, piece.elements());
    }
    std::sort(counts.begin(), counts.end());
    counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
    uint64_t held = 0;
    for (const auto& [offset, count] : counts) held += count;
    if (held == all) return;
    const auto ignores = [this](const Layout* rank) {
      return std::binary_search(rank->ignored().begin(), rank->ignored().end(), tensor_);
    };
    if (held == 0 && std::any_of(ranks_.begin(), ranks_.end(), ignores)) return;
    faults_.Add(kUncovered, absl::StrCat(Name(), " (", all - held, " of ", all, ")"));
  }

  const Manifest& manifest_;
  const absl::Span<const Layout* const> ranks_;
  TensorIndex tensor_ = 0;
  std::vector<Holding> holdings_;                // of the tensor, by rank, then by placement
  std::vector<StridedBox> boxes_;                // of the holdings, each once
  std::vector<std::vector<StridedBox>> pieces_;  // by box
  GroupedFaults faults_;
};

absl::Status CheckRanks(const Manifest& manifest, absl::Span<const Layout* const> ranks) {
  if (ranks.empty()) return absl::InvalidArgumentError("an instance has at least one rank");
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank]->tensors() != manifest.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the layout of rank ", rank, " is for a checkpoint of ",
                       ranks[rank]->tensors(), " tensors, not ", manifest.size()));
    }
    if (ranks[rank]->aliases() != ranks[0]->aliases()) {
      return absl::InvalidArgumentError(
          absl::StrCat("ranks 0 and ", rank,
                       " have unlike alias groups; all ranks of an instance tie the same"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCoverage(const Manifest& manifest, absl::Span<const Layout* const> ranks) {
  RETURN_IF_ERROR(CheckRanks(manifest, ranks));
  Refiner refiner(manifest, ranks);
  for (TensorIndex tensor = 0; tensor < manifest.size(); ++tensor) {
    if (ranks[0]->CanonicalTensor(tensor) == tensor) refiner.Refine(tensor);
  }
  return refiner.ToStatus();
}

absl::StatusOr<RegionMap> RegionMap::Create(const Manifest& manifest,
                                            absl::Span<const Layout* const> ranks) {
  RETURN_IF_ERROR(CheckRanks(manifest, ranks));
  RegionMap map;
  map.cells_.resize(ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    map.cells_[rank].reserve(ranks[rank]->placements().size());
  }
  Refiner refiner(manifest, ranks);
  // By first element of the region, then by rank: pieces of the tensor at hand.
  struct Item {
    uint64_t first_element;
    uint32_t rank;
    uint32_t cell;
  };
  std::vector<Item> items;
  for (TensorIndex tensor = 0; tensor < manifest.size(); ++tensor) {
    map.first_region_.push_back(static_cast<uint32_t>(map.regions_.size()));
    if (ranks[0]->CanonicalTensor(tensor) != tensor) continue;
    refiner.Refine(tensor);
    items.clear();
    refiner.ForEachPiece([&](const Holding& holding, const StridedBox& piece) {
      const Placement& placement = ranks[holding.rank]->placements()[holding.placement];
      auto& cells = map.cells_[holding.rank];
      items.push_back({piece.offset, holding.rank, static_cast<uint32_t>(cells.size())});
      cells.push_back({0, holding.placement, false, CutPlacement(placement, piece)});
    });
    std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
      return std::tie(a.first_element, a.rank, a.cell) < std::tie(b.first_element, b.rank, b.cell);
    });
    for (size_t i = 0; i < items.size(); ++i) {
      Cell& cell = map.cells_[items[i].rank][items[i].cell];
      if (i == 0 || items[i].first_element != items[i - 1].first_element) {
        map.regions_.push_back(
            {tensor, cell.box.elements(), static_cast<uint32_t>(map.holders_.size()), 0});
        cell.is_first = true;
      }
      cell.region = static_cast<uint32_t>(map.regions_.size() - 1);
      map.holders_.push_back({items[i].rank, items[i].cell});
      ++map.regions_.back().holder_count;
    }
  }
  map.first_region_.push_back(static_cast<uint32_t>(map.regions_.size()));
  RETURN_IF_ERROR(refiner.ToStatus());

  Sha256 hash;
  hash.UpdateU64(kDigestLabel.size()).Update(kDigestLabel).UpdateU64(ranks.size());
  for (const Layout* rank : ranks) hash.Update(rank->digest().bytes);
  map.digest_ = hash.Finish();
  return map;
}

absl::Span<const Region> RegionMap::regions(TensorIndex tensor) const {
  WSTORE_CHECK(tensor + 1 < first_region_.size());
  const uint32_t first = first_region_[tensor];
  return absl::MakeConstSpan(regions_).subspan(first, first_region_[tensor + 1] - first);
}

absl::Span<const RegionHolder> RegionMap::holders(const Region& region) const {
  return absl::MakeConstSpan(holders_).subspan(region.first_holder, region.holder_count);
}

}  // namespace wstore
