#include "wstore/tensor_set.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace wstore {

TensorRange TensorsOfSpan(const Manifest& manifest, uint32_t span) {
  const uint64_t first = span * kSpanTiles;
  const uint64_t last = std::min(first + kSpanTiles, manifest.tiles()) - 1;
  return {manifest.PlaceOf(first).tensor, manifest.PlaceOf(last).tensor + 1};
}

absl::StatusOr<TensorSet> TensorSet::Create(std::vector<TensorRange> ranges, size_t tensors) {
  if (ranges.empty() || ranges.size() > kMaxTensorRanges) {
    return absl::InvalidArgumentError(absl::StrCat("tensors in ", ranges.size(),
                                                   " ranges are wanted; 1 to ", kMaxTensorRanges,
                                                   " are allowed"));
  }
  for (size_t i = 0; i < ranges.size(); ++i) {
    const TensorRange& range = ranges[i];
    const bool follows = i == 0 || range.begin > ranges[i - 1].end;
    if (follows && range.begin < range.end && range.end <= tensors) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "range ", i, " of the wanted tensors is ", range.begin, " to ", range.end, ", behind ",
        i == 0 ? 0 : ranges[i - 1].end, " of ", tensors,
        " tensors; ranges are not empty, ascend with gaps, and end within the manifest"));
  }
  return TensorSet(std::move(ranges));
}

TensorSet TensorSet::Of(absl::Span<const TensorIndex> ascending, size_t tensors) {
  std::vector<TensorRange> ranges;
  for (const TensorIndex tensor : ascending) {
    if (!ranges.empty() && ranges.back().end == tensor) {
      ++ranges.back().end;
    } else {
      ranges.push_back({tensor, tensor + 1});
    }
  }
  if (ascending.size() == tensors || ranges.size() > kMaxTensorRanges) return TensorSet();
  return TensorSet(std::move(ranges));
}

bool TensorSet::HasAnyOf(TensorRange range) const {
  if (is_all()) return true;
  const auto found =
      std::upper_bound(ranges_.begin(), ranges_.end(), range.begin,
                       [](TensorIndex begin, const TensorRange& one) { return begin < one.end; });
  return found != ranges_.end() && found->begin < range.end;
}

}  // namespace wstore
