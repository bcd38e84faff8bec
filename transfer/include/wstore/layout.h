// Layouts: where the elements of a checkpoint live in the memory of one rank.
//
// An engine keeps slices of checkpoint tensors, fused, stacked, padded, interleaved, transposed or
// blocked. All of these are plain copies: strided boxes of a checkpoint tensor at strided places of
// local memory. A layout lists them; what is no plain copy (requantised, packed with scales,
// permuted by a lookup table) has no layout and is refused. docs/design/placement.md says what
// engines do.
//
// Coordinates are storage elements (see StorageElementBytes) throughout, 64-bit. Layouts come from
// LayoutBuilder, from ReadLayout (a file) or from MakeLayout (the rules of an architecture).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/digest.h"
#include "wstore/manifest.h"
#include "wstore/tensor_set.h"

namespace wstore {

// One dimension of a placement's loop nest.
struct PlacementDim {
  uint64_t count = 0;  // at least 1
  // Elements between neighbours in the checkpoint tensor and in local memory, at least 1.
  uint64_t checkpoint_stride = 0;
  uint64_t local_stride = 0;

  friend bool operator==(const PlacementDim&, const PlacementDim&) = default;
};

// More dimensions than this are refused.
inline constexpr size_t kMaxPlacementDims = 8;

// One box: element (i_0, ..., i_k) of the nest is checkpoint element
// checkpoint_offset + sum of i_j x checkpoint_stride_j, and local element local_offset + sum of
// i_j x local_stride_j of buffer `buffer`. No dimensions: a single element.
struct Placement {
  TensorIndex tensor = 0;
  uint64_t checkpoint_offset = 0;
  uint32_t buffer = 0;        // index into Layout::buffers()
  uint64_t local_offset = 0;  // in elements of the tensor's width
  // Outermost first. In checkpoint coordinates the dimensions nest: each stride is at least the
  // extent of all dimensions inside it, so elements in loop order ascend.
  absl::InlinedVector<PlacementDim, 3> dims;

  uint64_t elements() const;
  friend bool operator==(const Placement&, const Placement&) = default;
};

// A piece of local memory: one parameter of the engine with its padding, described as a dense
// row-major tensor. The caller gives its address when a replica is attached. Bytes that no
// placement covers are padding or foreign, and never touched.
using LayoutBuffer = TensorSpec;

// Tensors whose values are one and the same memory (tied embeddings). All have the dtype and shape
// of the first, which alone is placed; patches of all of them must be equal.
using AliasGroup = std::vector<TensorIndex>;

// What a layout is made from.
struct LayoutSpec {
  std::vector<LayoutBuffer> buffers;
  std::vector<Placement> placements;
  std::vector<AliasGroup> aliases;
  // Tensors of the checkpoint that this rank leaves out although no other rank has them, such as
  // buffers that the engine computes itself. They count as covered.
  std::vector<TensorIndex> ignored;
};

// A stretch of consecutive checkpoint elements at evenly spaced local places.
struct Segment {
  uint64_t begin = 0;  // checkpoint elements [begin, end)
  uint64_t end = 0;
  uint64_t local_begin = 0;   // local element of `begin`
  uint64_t local_stride = 1;  // between neighbours
};

// Walks the segments of one placement of a layout in ascending checkpoint order. Cheap to make;
// keeps a pointer to the placement, which must outlive it.
class SegmentCursor {
 public:
  // At the first segment.
  explicit SegmentCursor(const Placement& placement);

  // Moves, forwards or back, to the segment that holds `element`, or else to the first one behind
  // it. False: none is left, and segment() is what it was. Constant time in the number of segments.
  bool Seek(uint64_t element);
  // Moves to the next segment. False: this was the last.
  bool Next() { return Seek(segment_.end); }

  const Segment& segment() const { return segment_; }

 private:
  void SetSegment(absl::Span<const uint64_t> indices);

  const Placement* placement_;
  size_t outer_dims_;  // dimensions that are stepped over; the one behind them, if any, is the run
  uint64_t run_length_;  // elements of each segment
  uint64_t run_local_stride_;
  Segment segment_;
};

// A checked layout. Immutable, so safe to share between threads. Needs no manifest to live on.
class Layout {
 public:
  // Brings `spec` to its normal form: buffers sorted by name (placements are renumbered to match),
  // placements sorted by (tensor, checkpoint_offset), dimensions of count 1 dropped and dimensions
  // that continue each other on both sides merged, alias groups and ignored tensors sorted.
  // `generation` counts re-layouts of the same memory: what was staged for one is refused by
  // another.
  //   kInvalidArgument, with everything of one kind listed: tensors that the manifest does not
  //     have; placements out of a tensor's or a buffer's range, of another dtype than their
  //     buffer, with a zero count or stride, that do not nest, or that overlap in local memory (so
  //     none places an element twice at one address); alias groups of unlike tensors, of one, that
  //     share a tensor, or with a member other than the first placed; a tensor both placed and
  //     ignored; a buffer whose size overflows, or whose name is repeated
  //   kResourceExhausted: whether placements overlap cannot be told in bounded time: they
  //     interleave in strides that no common grid has
  static absl::StatusOr<Layout> Create(const Manifest& manifest, LayoutSpec spec,
                                       uint64_t generation);

  const std::vector<LayoutBuffer>& buffers() const { return spec_.buffers; }
  uint64_t buffer_bytes(uint32_t buffer) const { return buffer_bytes_[buffer]; }
  const std::vector<Placement>& placements() const { return spec_.placements; }
  absl::Span<const Placement> placements(TensorIndex tensor) const;
  size_t tensors() const { return canonical_.size(); }  // of the manifest
  const std::vector<AliasGroup>& aliases() const { return spec_.aliases; }
  // The first of the tensor's alias group; the tensor itself if it is in none.
  TensorIndex CanonicalTensor(TensorIndex tensor) const { return canonical_[tensor]; }
  const std::vector<TensorIndex>& ignored() const { return spec_.ignored; }
  uint64_t generation() const { return generation_; }

  // SHA-256 over all of the above but the generation, tensors by name: layouts with the same normal
  // form have the same digest. docs/formats/layout.md says over what exactly.
  const Digest& digest() const { return digest_; }

 private:
  LayoutSpec spec_;
  uint64_t generation_ = 0;
  Digest digest_;
  std::vector<uint64_t> buffer_bytes_;
  std::vector<uint32_t> first_placement_;  // by tensor, and one past the last
  std::vector<TensorIndex> canonical_;     // by tensor
};

// What a rank has to get of an update: the tensors that its layout places, and those that are one
// memory with them.
TensorSet TensorsHeld(const Layout& layout);

// Whether the ranks of an instance together hold every element of every tensor, either placed, or
// of a tensor that no rank places and one ignores. An alias is held where the first of its group
// is.
//   kInvalidArgument: names tensors with elements that no rank has (and how many); ranks with
//     unlike alias groups; placements without a common grid, as for RegionMap::Create
absl::Status CheckCoverage(const Manifest& manifest, absl::Span<const Layout* const> ranks);

}  // namespace wstore
