// The changed elements of one tensor in a patch set, compact.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/manifest.h"
#include "wstore/patch_set.h"

namespace wstore {

// Sorted by tile and offset; a tile's changes are a "group". Reading is thread-safe.
class TensorChanges {
 public:
  // Sorts and copies a patch whose name, type, shape and number of values have been checked.
  //   kOutOfRange, kInvalidArgument: as PatchSetBuilder::Add has them; the message names the tensor
  static absl::StatusOr<std::unique_ptr<TensorChanges>> Make(const Manifest::Tensor& tensor,
                                                             const TensorPatch& patch);

  // Whether values are XOR bits, none of them zero.
  bool is_resolved() const { return is_resolved_; }

  size_t groups() const { return groups_.size(); }
  uint32_t tile(size_t group) const { return groups_[group].tile; }
  absl::Span<const uint16_t> offsets(size_t group) const;
  const uint8_t* values(size_t group) const {
    return values_.data() + groups_[group].first * element_bytes_;
  }
  // The first group whose tile is not below `tile`.
  size_t LowerBound(uint64_t tile) const;

  uint64_t size_bytes() const;

  // To resolve: BeginResolve, then ResolveGroup once for every group (from any thread), then either
  // FinishResolve or CancelResolve.
  void BeginResolve() { resolved_.resize(values_.size()); }
  void ResolveGroup(size_t group, const uint8_t* old_tile);
  void FinishResolve();
  void CancelResolve() { std::vector<uint8_t>().swap(resolved_); }

 private:
  struct Group {
    uint32_t tile;
    uint64_t first;  // number of its first change in the tensor
  };

  TensorChanges() = default;
  uint64_t End(size_t group) const {
    return group + 1 < groups_.size() ? groups_[group + 1].first : offsets_.size();
  }
  void DropUnchanged();
  template <typename Element>
  void DropZeros();

  uint32_t element_bytes_ = 1;
  bool is_resolved_ = false;
  std::vector<Group> groups_;
  std::vector<uint16_t> offsets_;
  std::vector<uint8_t> values_;
  std::vector<uint8_t> resolved_;  // while resolving: what values_ will be
};

}  // namespace wstore
