// Builds a layout from views, as one slices arrays in NumPy or PyTorch.
//
//   LayoutBuilder builder(manifest);
//   // q, k and v fused, of rank 1 of 2: rows 512..1023 of q at rows 0..511, and so on.
//   StridedView qkv = builder.Buffer({"qkv_proj.weight", Dtype::kBF16, {768, 2048}});
//   builder.Place(builder.Tensor("q_proj.weight").Slice(0, 512, 1024), qkv.Slice(0, 0, 512));
//   builder.Place(builder.Tensor("k_proj.weight").Slice(0, 128, 256), qkv.Slice(0, 512, 640));
//   builder.Place(builder.Tensor("v_proj.weight").Slice(0, 128, 256), qkv.Slice(0, 640, 768));
//   absl::StatusOr<Layout> layout = builder.Build(/*generation=*/1);
//
// Gate and up rows that alternate are Slice(0, 0, rows, 2) and Slice(0, 1, rows, 2) of the buffer;
// a transposed weight is Permute({1, 0}); blocks of 64 columns that lie together are Split(1, 64)
// and a Permute. docs/design/placement.md shows what engines do in these terms.
//
// Mistakes (unknown names, slices out of range, views of unlike shapes) are collected and come back
// from Build, all together. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/layout.h"

namespace wstore {

// A strided part of a tensor or a buffer, in storage elements: the last dimension of a packed type
// (F4, F6) counts bytes. Where its rows do not fill whole bytes, a packed tensor has one dimension.
// A value; the functions return new views. A misuse makes a view that Place reports.
class StridedView {
 public:
  // Elements begin, begin + step, ... below `end` of a dimension.
  StridedView Slice(size_t dim, uint64_t begin, uint64_t end, uint64_t step = 1) const;
  // One element of a dimension, which is dropped.
  StridedView Select(size_t dim, uint64_t index) const;
  // A dimension becomes two: `inner` consecutive elements, and outside of these the blocks they
  // form. `inner` divides the dimension.
  StridedView Split(size_t dim, uint64_t inner) const;
  // Dimension i of the result is dimension order[i] of this view.
  StridedView Permute(absl::Span<const size_t> order) const;

  // False after a misuse, and for unknown tensors. Such a view has no dimensions.
  bool is_valid() const { return error_.empty(); }
  size_t dims() const { return dims_.size(); }
  uint64_t count(size_t dim) const { return dims_[dim].count; }

 private:
  friend class LayoutBuilder;

  struct Dim {
    uint64_t count = 0;
    uint64_t stride = 0;
  };

  static StridedView Whole(bool is_tensor, uint32_t index, const Shape& shape);
  static StridedView Wrong(std::string error);
  std::string ShapeText() const;

  std::string error_;
  bool is_reported_ = false;  // the error is known to the builder
  bool is_tensor_ = false;
  uint32_t index_ = 0;  // of the tensor in the manifest, or of the buffer
  uint64_t offset_ = 0;
  absl::InlinedVector<Dim, 4> dims_;
};

// Keeps a pointer to the manifest, which must outlive it.
class LayoutBuilder {
 public:
  explicit LayoutBuilder(const Manifest& manifest) : manifest_(&manifest) {}

  // The whole of a tensor, by name or by index.
  StridedView Tensor(std::string_view name);
  StridedView Tensor(TensorIndex tensor);
  // Adds a buffer: the whole of it.
  StridedView Buffer(LayoutBuffer buffer);

  // Says that the elements of `from`, a view of a tensor, are at those of `to`, a view of a buffer.
  // Both have the same shape but for dimensions of one element. Views without elements place
  // nothing.
  void Place(const StridedView& from, const StridedView& to);
  // Says where elements are by strides: element (i_0, ...) of `from` is at local_offset + sum of
  // i_j x local_strides[j] of the buffer that `to` is a view of.
  void PlaceStrided(const StridedView& from, const StridedView& to, uint64_t local_offset,
                    absl::Span<const uint64_t> local_strides);
  // Adds a loop nest as it is, with the tensor and the buffer that the views are of.
  void PlaceNest(Placement placement, const StridedView& from, const StridedView& to);

  // Tensors that share memory; the first is placed.
  void Alias(absl::Span<const std::string_view> names);
  // A tensor that no rank needs.
  void Ignore(std::string_view name);

  // Checks and makes the layout; the builder is empty afterwards.
  //   kInvalidArgument: mistakes in the calls above, or what Layout::Create refuses
  //   kResourceExhausted: as for Layout::Create
  absl::StatusOr<Layout> Build(uint64_t generation);

 private:
  bool CheckViews(const StridedView& from, const StridedView& to);  // notes what is wrong
  TensorIndex FindTensor(std::string_view name);                    // notes an unknown name

  const Manifest* manifest_;
  LayoutSpec spec_;
  std::vector<std::string> unknown_tensors_;
  std::vector<std::string> errors_;
};

// The shape of a tensor in storage elements; see StridedView.
Shape StorageShape(const TensorSpec& spec);

}  // namespace wstore
