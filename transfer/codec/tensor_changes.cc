#include "transfer/codec/tensor_changes.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/status_macros.h"

namespace wstore {
namespace {

// Where an index stands in the caller's arrays.
struct PlacedIndex {
  uint64_t index;
  uint64_t position;

  friend auto operator<=>(const PlacedIndex&, const PlacedIndex&) = default;
};

// ", and 3 more", or nothing.
std::string AndMore(uint64_t others) {
  return others == 0 ? "" : absl::StrCat(", and ", others, " more");
}

absl::Status CheckRange(const Manifest::Tensor& tensor, absl::Span<const int64_t> indices) {
  const auto is_outside = [&tensor](int64_t index) {
    return static_cast<uint64_t>(index) >= tensor.elements;  // negative ones are huge
  };
  const auto first = std::find_if(indices.begin(), indices.end(), is_outside);
  if (first == indices.end()) return absl::OkStatus();
  const uint64_t others = std::count_if(first + 1, indices.end(), is_outside);
  const std::string limit =
      tensor.elements == 0
          ? "it has no elements"
          : absl::StrCat("it has ", tensor.elements, " elements, so an index must be from 0 to ",
                         tensor.elements - 1);
  return absl::OutOfRangeError(absl::StrCat("tensor '", tensor.spec.name, "': index ", *first,
                                            " at position ", first - indices.begin(),
                                            AndMore(others), "; ", limit));
}

absl::StatusOr<std::vector<PlacedIndex>> Sorted(const Manifest::Tensor& tensor,
                                                absl::Span<const int64_t> indices) {
  std::vector<PlacedIndex> sorted(indices.size());
  for (uint64_t i = 0; i < indices.size(); ++i) {
    sorted[i] = {static_cast<uint64_t>(indices[i]), i};
  }
  std::sort(sorted.begin(), sorted.end());
  uint64_t repeats = 0;
  uint64_t first = 0;  // of the repeats, the one that comes first in the caller's order
  for (uint64_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i].index != sorted[i - 1].index) continue;
    if (repeats++ == 0 || sorted[i].position < sorted[first].position) first = i;
  }
  if (repeats == 0) return sorted;
  return absl::InvalidArgumentError(
      absl::StrCat("tensor '", tensor.spec.name, "': index ", sorted[first].index, " at position ",
                   sorted[first - 1].position, " comes again at position ", sorted[first].position,
                   AndMore(repeats - 1)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TensorChanges>> TensorChanges::Make(const Manifest::Tensor& tensor,
                                                                   const TensorPatch& patch) {
  const absl::Span<const int64_t> indices = patch.indices;
  RETURN_IF_ERROR(CheckRange(tensor, indices));
  const bool is_ascending =
      std::adjacent_find(indices.begin(), indices.end(), std::greater_equal<>()) == indices.end();
  std::vector<PlacedIndex> sorted;
  if (!is_ascending) {
    ASSIGN_OR_RETURN(sorted, Sorted(tensor, indices));
  }
  std::unique_ptr<TensorChanges> changes(new TensorChanges);
  changes->element_bytes_ = tensor.element_bytes;
  changes->offsets_.resize(indices.size());
  changes->values_.resize(indices.size() * tensor.element_bytes);
  WithElementType(tensor.element_bytes, [&](auto zero) {
    using Element = decltype(zero);
    for (uint64_t i = 0; i < indices.size(); ++i) {
      const uint64_t position = is_ascending ? i : sorted[i].position;
      const uint64_t index = static_cast<uint64_t>(indices[position]);
      const uint32_t tile = static_cast<uint32_t>(index / kTileElements);
      if (i == 0 || changes->groups_.back().tile != tile) changes->groups_.push_back({tile, i});
      changes->offsets_[i] = static_cast<uint16_t>(index % kTileElements);
      StoreLe(LoadLe<Element>(&patch.values[position * sizeof(Element)]),
              &changes->values_[i * sizeof(Element)]);
    }
  });
  if (patch.form == TensorPatch::Form::kXor) changes->DropUnchanged();
  changes->is_resolved_ = patch.form == TensorPatch::Form::kXor || indices.empty();
  return changes;
}

absl::Span<const uint16_t> TensorChanges::offsets(size_t group) const {
  return absl::MakeConstSpan(offsets_).subspan(groups_[group].first,
                                               End(group) - groups_[group].first);
}

size_t TensorChanges::LowerBound(uint64_t tile) const {
  const auto at = std::lower_bound(groups_.begin(), groups_.end(), tile,
                                   [](const Group& group, uint64_t t) { return group.tile < t; });
  return at - groups_.begin();
}

uint64_t TensorChanges::size_bytes() const {
  return sizeof(*this) + groups_.capacity() * sizeof(Group) +
         offsets_.capacity() * sizeof(uint16_t) + values_.capacity() + resolved_.capacity();
}

void TensorChanges::ResolveGroup(size_t group, const uint8_t* old_tile) {
  const absl::Span<const uint16_t> at = offsets(group);
  const uint8_t* new_bits = values(group);
  uint8_t* xor_bits = resolved_.data() + groups_[group].first * element_bytes_;
  WithElementType(element_bytes_, [&](auto zero) {
    using Element = decltype(zero);
    for (const uint16_t offset : at) {
      const Element old_bits = LoadLe<Element>(old_tile + offset * sizeof(Element));
      StoreLe<Element>(LoadLe<Element>(new_bits) ^ old_bits, xor_bits);
      new_bits += sizeof(Element);
      xor_bits += sizeof(Element);
    }
  });
}

void TensorChanges::FinishResolve() {
  values_.swap(resolved_);
  CancelResolve();
  DropUnchanged();
  is_resolved_ = true;
}

void TensorChanges::DropUnchanged() {
  WithElementType(element_bytes_, [this](auto zero) { DropZeros<decltype(zero)>(); });
  // What has shrunk by half is worth a copy.
  if (offsets_.size() <= offsets_.capacity() / 2) {
    groups_.shrink_to_fit();
    offsets_.shrink_to_fit();
    values_.shrink_to_fit();
  }
}

template <typename Element>
void TensorChanges::DropZeros() {
  uint64_t kept = 0;
  size_t kept_groups = 0;
  for (size_t group = 0; group < groups_.size(); ++group) {
    const Group from = groups_[group];
    const uint64_t end = End(group);
    const uint64_t first_kept = kept;
    for (uint64_t i = from.first; i < end; ++i) {
      const Element value = LoadLe<Element>(&values_[i * sizeof(Element)]);
      if (value == 0) continue;
      offsets_[kept] = offsets_[i];
      StoreLe(value, &values_[kept * sizeof(Element)]);
      ++kept;
    }
    if (kept > first_kept) groups_[kept_groups++] = {from.tile, first_kept};
  }
  groups_.resize(kept_groups);
  offsets_.resize(kept);
  values_.resize(kept * sizeof(Element));
}

}  // namespace wstore
