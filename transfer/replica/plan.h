// A layout made ready for use: which cells have elements of a tile, and under which key they are
// summed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/fingerprint.h"
#include "wstore/manifest.h"
#include "wstore/replica.h"

namespace wstore {

// A cell of this rank (see RegionMap).
struct PlannedCell {
  const Placement* box = nullptr;
  uint32_t element_bytes = 1;
  uint32_t fingerprinter = 0;
  uint64_t begin = 0;  // all its checkpoint elements are in [begin, end)
  uint64_t end = 0;
};

// Immutable, so safe to share between threads; keeps layout and regions alive, not the manifest.
class Plan {
 public:
  // Errors: see Replica::Attach, what concerns the placement.
  static absl::StatusOr<std::shared_ptr<const Plan>> Create(const Manifest& manifest,
                                                            const FingerprintKey& key,
                                                            ReplicaPlacement placement);

  const Manifest& manifest() const { return manifest_; }
  const FingerprintKey& key() const { return key_; }
  const Layout& layout() const { return *placement_.layout; }
  const RegionMap& regions() const { return *placement_.regions; }
  std::shared_ptr<const RegionMap> shared_regions() const { return placement_.regions; }
  uint32_t rank() const { return placement_.rank; }
  // Whether this rank alone is the whole instance.
  bool is_whole() const { return regions().ranks() == 1; }

  absl::Span<const PlannedCell> cells() const { return cells_; }
  const PlannedCell& cell(uint32_t index) const { return cells_[index]; }
  const TensorFingerprinter& fingerprinter(const PlannedCell& cell) const {
    return fingerprinters_[cell.fingerprinter];
  }

  // The cells, by index, that may have elements in [begin, end) of a tensor; all that have are
  // among them.
  absl::Span<const uint32_t> CellsNear(TensorIndex tensor, uint64_t begin, uint64_t end) const;

 private:
  Plan(const Manifest& manifest, const FingerprintKey& key, ReplicaPlacement placement)
      : manifest_(manifest), key_(key), placement_(std::move(placement)) {}
  absl::Status CheckCells() const;
  void AddCells();

  const Manifest& manifest_;
  const FingerprintKey key_;
  const ReplicaPlacement placement_;
  std::vector<PlannedCell> cells_;
  std::vector<TensorFingerprinter> fingerprinters_;  // of tensors with cells
  // By tensor and one past the last: its part of the two columns below.
  std::vector<uint32_t> first_;
  std::vector<uint32_t> by_begin_;  // cells of each tensor, by their begin
  std::vector<uint64_t> max_end_;   // the largest end so far in by_begin_
};

}  // namespace wstore
