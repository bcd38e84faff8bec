#include <array>

#include "common/check.h"
#include "wstore/layout.h"

namespace wstore {

SegmentCursor::SegmentCursor(const Placement& placement)
    : placement_(&placement),
      outer_dims_(placement.dims.size()),
      run_length_(1),
      run_local_stride_(1) {
  WSTORE_CHECK(placement.dims.size() <= kMaxPlacementDims);
  if (!placement.dims.empty() && placement.dims.back().checkpoint_stride == 1) {
    --outer_dims_;
    run_length_ = placement.dims.back().count;
    run_local_stride_ = placement.dims.back().local_stride;
  }
  const std::array<uint64_t, kMaxPlacementDims> zeros{};
  SetSegment(absl::MakeSpan(zeros).first(outer_dims_));
}

void SegmentCursor::SetSegment(absl::Span<const uint64_t> indices) {
  segment_.begin = placement_->checkpoint_offset;
  segment_.local_begin = placement_->local_offset;
  for (size_t k = 0; k < indices.size(); ++k) {
    segment_.begin += indices[k] * placement_->dims[k].checkpoint_stride;
    segment_.local_begin += indices[k] * placement_->dims[k].local_stride;
  }
  segment_.end = segment_.begin + run_length_;
  segment_.local_stride = run_local_stride_;
}

bool SegmentCursor::Seek(uint64_t element) {
  std::array<uint64_t, kMaxPlacementDims> indices{};
  uint64_t rest =
      element <= placement_->checkpoint_offset ? 0 : element - placement_->checkpoint_offset;
  // Since dimensions nest, the index in each is a quotient. Where one is past its count, or the
  // rest is past the run, the segment wanted is the first under the next index of the dimension
  // outside.
  size_t k = 0;
  for (; k < outer_dims_; ++k) {
    indices[k] = rest / placement_->dims[k].checkpoint_stride;
    if (indices[k] >= placement_->dims[k].count) break;
    rest %= placement_->dims[k].checkpoint_stride;
  }
  if (k < outer_dims_ || rest >= run_length_) {
    while (true) {
      if (k < outer_dims_) indices[k] = 0;
      if (k == 0) return false;
      --k;
      if (++indices[k] < placement_->dims[k].count) break;
    }
  }
  SetSegment(absl::MakeSpan(indices).first(outer_dims_));
  return true;
}

}  // namespace wstore
