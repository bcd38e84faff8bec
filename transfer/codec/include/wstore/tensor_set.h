// Which tensors of a manifest a rank wants of every publish: a subscription.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/manifest.h"

namespace wstore {

// Tensors begin, begin + 1, ..., end - 1.
struct TensorRange {
  TensorIndex begin = 0;
  TensorIndex end = 0;
  friend bool operator==(const TensorRange&, const TensorRange&) = default;
};

// The tensors of a span, which has tiles: the first that has one in it to the last.
TensorRange TensorsOfSpan(const Manifest& manifest, uint32_t span);

// A message names no more of them.
inline constexpr size_t kMaxTensorRanges = 65'536;

// Immutable, so safe to share between threads.
class TensorSet {
 public:
  // All tensors, of any manifest.
  TensorSet() = default;

  // `tensors`: how many the manifest has.
  //   kInvalidArgument: no range, or more than kMaxTensorRanges; one that is empty, reaches past
  //     the manifest, or does not come after the one before with a gap between them
  static absl::StatusOr<TensorSet> Create(std::vector<TensorRange> ranges, size_t tensors);

  // Of tensors that ascend. All, if these are all; or if there are none, or more than
  // kMaxTensorRanges ranges of them, which a message cannot say.
  static TensorSet Of(absl::Span<const TensorIndex> ascending, size_t tensors);

  bool is_all() const { return ranges_.empty(); }
  bool Has(TensorIndex tensor) const { return HasAnyOf({tensor, tensor + 1}); }
  bool HasAnyOf(TensorRange range) const;
  absl::Span<const TensorRange> ranges() const { return ranges_; }  // empty: all

  friend bool operator==(const TensorSet&, const TensorSet&) = default;

 private:
  explicit TensorSet(std::vector<TensorRange> ranges) : ranges_(std::move(ranges)) {}

  std::vector<TensorRange> ranges_;  // ascending, with gaps between them
};

}  // namespace wstore
