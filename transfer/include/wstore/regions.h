// Regions: what sums are kept for.
//
// Several ranks, or several places of one rank, can hold the same elements of a tensor, and hold
// unlike parts of it. A region is a box of a tensor that every placement of the instance's ranks
// holds either whole or not at all: the common refinement of all placements. A cell is one place of
// a region: a part of one placement of one rank. Each rank sums its cells; then
//   - over the regions of a tensor the sums add up to the fingerprint of the tensor, and
//   - the cells of one region agree,
// or some rank is wrong. This holds for whole sums and for sums over the touched elements alike. In
// the usual case each placement is exactly one region, and its cell is the whole placement.
//
// All functions are pure, deterministic (every rank numbers regions alike, given the same layouts
// in the same order) and thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/digest.h"
#include "wstore/fingerprint.h"
#include "wstore/layout.h"
#include "wstore/patch_source.h"

namespace wstore {

// One place of a region.
struct Cell {
  uint32_t region = 0;     // index into RegionMap::regions()
  uint32_t placement = 0;  // index into Layout::placements() of the rank
  // Exactly one cell of each region is its first, of the lowest rank: sums over these alone add up.
  bool is_first = false;
  Placement box;  // the part of the placement; has its tensor, buffer and local places
};

struct Region {
  TensorIndex tensor = 0;
  uint64_t elements = 0;
  uint32_t first_holder = 0;  // index into RegionMap::holders()
  uint32_t holder_count = 0;  // at least 1
};

// Which cell holds a region: cells(rank)[cell].
struct RegionHolder {
  uint32_t rank = 0;
  uint32_t cell = 0;

  friend auto operator<=>(const RegionHolder&, const RegionHolder&) = default;
};

// The regions of the ranks of one instance. Immutable once made.
class RegionMap {
 public:
  // `ranks`: the layouts of all ranks of the instance, made for `manifest`. They are not kept.
  //   kInvalidArgument: what CheckCoverage refuses; or the placements of a tensor partly overlap
  //   and
  //     have no common grid (their checkpoint strides do not divide each other), or would be cut
  //     into more than 2^20 cells. The message names the tensor and the strides.
  static absl::StatusOr<RegionMap> Create(const Manifest& manifest,
                                          absl::Span<const Layout* const> ranks);

  size_t ranks() const { return cells_.size(); }
  size_t tensors() const { return first_region_.size() - 1; }  // of the manifest
  // By rank, in the order of its placements.
  absl::Span<const Cell> cells(uint32_t rank) const { return cells_[rank]; }
  // Ordered by tensor, then by first element. Aliases and tensors that all ranks ignore have none.
  absl::Span<const Region> regions() const { return regions_; }
  absl::Span<const Region> regions(TensorIndex tensor) const;
  // Who holds a region, by rank, then by cell.
  absl::Span<const RegionHolder> holders(const Region& region) const;

  // SHA-256 over the layouts' digests in order: equal digests, equal maps.
  const Digest& digest() const { return digest_; }

 private:
  std::vector<std::vector<Cell>> cells_;
  std::vector<Region> regions_;
  std::vector<uint32_t> first_region_;  // by tensor, and one past the last
  std::vector<RegionHolder> holders_;
  Digest digest_;
};

// A fault that sums show.
struct SumFault {
  enum class Kind {
    kReplicasDiffer,  // `ranks` hold copies of a region that differ from the right one
    kReplicasUnsure,  // copies of a region differ, and nothing tells which one is right: all
                      // holders
    kTensorWrong,     // copies agree but do not add up to the tensor's fingerprint: all its holders
  };
  Kind kind = Kind::kTensorWrong;
  TensorIndex tensor = 0;
  std::vector<uint32_t> ranks;  // ascending

  friend bool operator==(const SumFault&, const SumFault&) = default;
};

// "tensor 'model.norm.weight': rank 3 differs from the right copies".
std::string ToString(const SumFault& fault, const Manifest& manifest);

// The first sixteen of them, joined; and how many more there are.
std::string ToString(absl::Span<const SumFault> faults, const Manifest& manifest);

// Decides whether sums are right. `cell_sums`: by rank, by cell. `tensor_sums`: by tensor, the
// declared fingerprints; those of aliases and ignored tensors are not looked at. Empty: all is
// well. Where the copies of a region differ, the odd ones are found
//   1. by the tensor's fingerprint, if exactly one of the values makes the tensor add up (and no
//   other
//      region of the tensor is in dispute), else
//   2. by majority, if more than half of the copies agree (two cannot), else
//   3. not: all holders are named.
// At most one fault per tensor and kind; a tensor with copies in dispute is not reported as wrong
// too.
std::vector<SumFault> JudgeSums(const RegionMap& map,
                                absl::Span<const std::vector<Fingerprint>> cell_sums,
                                absl::Span<const Fingerprint> tensor_sums);

// Sums over the touched elements of one cell.
struct CellSums {
  uint32_t cell = 0;
  TouchedSums sums;
};

// Compares what the ranks found that an update does, before and after, with what it is declared to
// do. `cells`: by rank, those with changes. `declared`: the tensors with changes. `manifest`: the
// one that the map was made for.
//   kDataLoss: they differ; whether before or after, the tensors and the ranks are named
//   kInvalidArgument: a cell or a tensor that there is not
absl::Status JudgeTouched(const RegionMap& map, const Manifest& manifest,
                          absl::Span<const absl::Span<const CellSums>> cells,
                          absl::Span<const TensorSums> declared);

// The sums of all regions, by region, taken from their first cells: what is known once JudgeSums
// found no fault.
std::vector<Fingerprint> RegionSums(const RegionMap& map,
                                    absl::Span<const std::vector<Fingerprint>> cell_sums);

// The fast path: what one total over all its cells each rank must report, given the regions' sums.
std::vector<Fingerprint> RankTotals(const RegionMap& map,
                                    absl::Span<const Fingerprint> region_sums);

}  // namespace wstore
