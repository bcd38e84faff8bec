#include "wstore/layout_builder.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "transfer/grouped_faults.h"

namespace wstore {
namespace {

constexpr TensorIndex kNoTensor = std::numeric_limits<TensorIndex>::max();
constexpr size_t kMaxHints = 8;  // unknown names that near matches are looked up for

}  // namespace

Shape StorageShape(const TensorSpec& spec) {
  const uint32_t bits = DtypeBits(spec.dtype);
  if (bits >= 8 || spec.shape.empty()) return spec.shape;
  const absl::StatusOr<uint64_t> bytes = TensorBytes(spec);
  if (!bytes.ok()) return {};
  if (*bytes == 0) return {0};
  Shape shape = spec.shape;
  if (shape.back() * bits % 8 != 0) return {*bytes};
  shape.back() = shape.back() * bits / 8;
  return shape;
}

StridedView StridedView::Whole(bool is_tensor, uint32_t index, const Shape& shape) {
  StridedView view;
  view.is_tensor_ = is_tensor;
  view.index_ = index;
  uint64_t stride = 1;
  for (const uint64_t count : shape) view.dims_.push_back({count, 0});
  for (size_t k = shape.size(); k-- > 0;) {
    view.dims_[k].stride = stride;
    stride *= std::max<uint64_t>(shape[k], 1);
  }
  return view;
}

StridedView StridedView::Wrong(std::string error) {
  StridedView view;
  view.error_ = std::move(error);
  return view;
}

std::string StridedView::ShapeText() const {
  return absl::StrCat(
      "[",
      absl::StrJoin(dims_, ", ",
                    [](std::string* out, const Dim& dim) { absl::StrAppend(out, dim.count); }),
      "]");
}

StridedView StridedView::Slice(size_t dim, uint64_t begin, uint64_t end, uint64_t step) const {
  if (!error_.empty()) return *this;
  if (dim >= dims_.size() || begin > end || end > dims_[dim].count || step == 0) {
    return Wrong(absl::StrCat("slice [", begin, ", ", end, ") by ", step, " of dimension ", dim,
                              " of a view of shape ", ShapeText()));
  }
  StridedView view = *this;
  // An empty slice may begin behind the last element, so it does not move.
  if (begin < end) view.offset_ += begin * dims_[dim].stride;
  view.dims_[dim].count = begin < end ? (end - begin - 1) / step + 1 : 0;
  // The step of a single element is of no account, and might overflow.
  if (view.dims_[dim].count > 1) view.dims_[dim].stride *= step;
  return view;
}

StridedView StridedView::Select(size_t dim, uint64_t index) const {
  if (!error_.empty()) return *this;
  if (dim >= dims_.size() || index >= dims_[dim].count) {
    return Wrong(
        absl::StrCat("index ", index, " of dimension ", dim, " of a view of shape ", ShapeText()));
  }
  StridedView view = *this;
  view.offset_ += index * dims_[dim].stride;
  view.dims_.erase(view.dims_.begin() + dim);
  return view;
}

StridedView StridedView::Split(size_t dim, uint64_t inner) const {
  if (!error_.empty()) return *this;
  if (dim >= dims_.size() || inner == 0 || dims_[dim].count % inner != 0) {
    return Wrong(absl::StrCat("dimension ", dim, " of a view of shape ", ShapeText(),
                              " split into blocks of ", inner));
  }
  StridedView view = *this;
  const Dim whole = dims_[dim];
  view.dims_[dim] = {whole.count / inner, whole.stride * inner};
  view.dims_.insert(view.dims_.begin() + dim + 1, {inner, whole.stride});
  return view;
}

StridedView StridedView::Permute(absl::Span<const size_t> order) const {
  if (!error_.empty()) return *this;
  std::vector<size_t> sorted(order.begin(), order.end());
  std::sort(sorted.begin(), sorted.end());
  bool is_permutation = sorted.size() == dims_.size();
  for (size_t i = 0; i < sorted.size(); ++i) is_permutation = is_permutation && sorted[i] == i;
  if (!is_permutation) {
    return Wrong(absl::StrCat("permutation (", absl::StrJoin(order, ", "), ") of a view of shape ",
                              ShapeText()));
  }
  StridedView view = *this;
  for (size_t i = 0; i < order.size(); ++i) view.dims_[i] = dims_[order[i]];
  return view;
}

TensorIndex LayoutBuilder::FindTensor(std::string_view name) {
  const std::optional<TensorIndex> tensor = manifest_->Find(name);
  if (tensor) return *tensor;
  unknown_tensors_.emplace_back(name);
  return kNoTensor;
}

StridedView LayoutBuilder::Tensor(std::string_view name) {
  const TensorIndex tensor = FindTensor(name);
  if (tensor == kNoTensor) {
    StridedView view = StridedView::Wrong("unknown tensor");
    view.is_reported_ = true;  // by its name
    return view;
  }
  return Tensor(tensor);
}

StridedView LayoutBuilder::Tensor(TensorIndex tensor) {
  if (tensor >= manifest_->size()) {
    return StridedView::Wrong(
        absl::StrCat("tensor ", tensor, " of a checkpoint of ", manifest_->size()));
  }
  return StridedView::Whole(true, tensor, StorageShape(manifest_->tensor(tensor).spec));
}

StridedView LayoutBuilder::Buffer(LayoutBuffer buffer) {
  const absl::StatusOr<uint64_t> bytes = TensorBytes(buffer);
  if (!bytes.ok()) {
    errors_.push_back(absl::StrCat("buffer: ", bytes.status().message()));
    StridedView view = StridedView::Wrong("unusable buffer");
    view.is_reported_ = true;
    return view;
  }
  const auto index = static_cast<uint32_t>(spec_.buffers.size());
  const Shape shape = StorageShape(buffer);
  spec_.buffers.push_back(std::move(buffer));
  return StridedView::Whole(false, index, shape);
}

bool LayoutBuilder::CheckViews(const StridedView& from, const StridedView& to) {
  for (const StridedView* view : {&from, &to}) {
    if (view->is_valid()) continue;
    if (!view->is_reported_) errors_.push_back(view->error_);
    return false;
  }
  if (!from.is_tensor_ || to.is_tensor_) {
    errors_.emplace_back("a placement is from a view of a tensor to a view of a buffer");
    return false;
  }
  return true;
}

void LayoutBuilder::Place(const StridedView& from, const StridedView& to) {
  if (!CheckViews(from, to)) return;
  const auto counts = [](const StridedView& view) {
    absl::InlinedVector<StridedView::Dim, 4> dims;
    for (const StridedView::Dim& dim : view.dims_) {
      if (dim.count != 1) dims.push_back(dim);
    }
    return dims;
  };
  const auto from_dims = counts(from);
  const auto to_dims = counts(to);
  bool is_same_shape = from_dims.size() == to_dims.size();
  bool is_empty = false;
  Placement placement{0, from.offset_, 0, to.offset_, {}};
  for (size_t k = 0; is_same_shape && k < from_dims.size(); ++k) {
    is_same_shape = from_dims[k].count == to_dims[k].count;
    is_empty = is_empty || from_dims[k].count == 0;
    placement.dims.push_back({from_dims[k].count, from_dims[k].stride, to_dims[k].stride});
  }
  if (!is_same_shape) {
    errors_.push_back(absl::StrCat("view of shape ", from.ShapeText(), " of tensor '",
                                   manifest_->tensor(from.index_).spec.name,
                                   "' placed at a view of shape ", to.ShapeText(), " of buffer '",
                                   spec_.buffers[to.index_].name, "'"));
  } else if (!is_empty) {
    PlaceNest(std::move(placement), from, to);
  }
}

void LayoutBuilder::PlaceStrided(const StridedView& from, const StridedView& to,
                                 uint64_t local_offset, absl::Span<const uint64_t> local_strides) {
  if (!CheckViews(from, to)) return;
  if (local_strides.size() != from.dims()) {
    errors_.push_back(
        absl::StrCat(local_strides.size(), " strides for a view of shape ", from.ShapeText()));
    return;
  }
  StridedView local = from;
  local.is_tensor_ = false;
  local.index_ = to.index_;
  local.offset_ = local_offset;
  for (size_t k = 0; k < local_strides.size(); ++k) local.dims_[k].stride = local_strides[k];
  Place(from, local);
}

void LayoutBuilder::PlaceNest(Placement placement, const StridedView& from, const StridedView& to) {
  if (!CheckViews(from, to)) return;
  placement.tensor = from.index_;
  placement.buffer = to.index_;
  std::stable_sort(placement.dims.begin(), placement.dims.end(),
                   [](const PlacementDim& a, const PlacementDim& b) {
                     return a.checkpoint_stride > b.checkpoint_stride;
                   });
  spec_.placements.push_back(std::move(placement));
}

void LayoutBuilder::Alias(absl::Span<const std::string_view> names) {
  AliasGroup group;
  for (const std::string_view name : names) {
    const TensorIndex tensor = FindTensor(name);
    if (tensor != kNoTensor) group.push_back(tensor);
  }
  if (group.size() == names.size()) spec_.aliases.push_back(std::move(group));
}

void LayoutBuilder::Ignore(std::string_view name) {
  const TensorIndex tensor = FindTensor(name);
  if (tensor != kNoTensor) spec_.ignored.push_back(tensor);
}

absl::StatusOr<Layout> LayoutBuilder::Build(uint64_t generation) {
  GroupedFaults faults;
  std::sort(unknown_tensors_.begin(), unknown_tensors_.end());
  unknown_tensors_.erase(std::unique(unknown_tensors_.begin(), unknown_tensors_.end()),
                         unknown_tensors_.end());
  for (size_t i = 0; i < unknown_tensors_.size(); ++i) {
    const std::string& name = unknown_tensors_[i];
    const std::vector<std::string> near =
        i < kMaxHints ? manifest_->NearMatches(name, 1) : std::vector<std::string>{};
    faults.Add("tensors that the checkpoint does not have",
               near.empty() ? absl::StrCat("'", name, "'")
                            : absl::StrCat("'", name, "' (near: '", near[0], "')"));
  }
  for (std::string& error : errors_) faults.Add("views", std::move(error));
  LayoutSpec spec = std::move(spec_);
  *this = LayoutBuilder(*manifest_);
  if (!faults.empty()) return Prefixed(faults.ToStatus(), "layout");
  return Layout::Create(*manifest_, std::move(spec), generation);
}

}  // namespace wstore
