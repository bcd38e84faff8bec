// Layouts: where the elements of a checkpoint live in the memory of one rank.
//
// An engine keeps slices of checkpoint tensors, fused, stacked, padded, interleaved or transposed. All of
// these are plain copies: strided boxes of a checkpoint tensor at strided places of local memory. A layout
// lists them; what is no plain copy (requantised, swizzled by a lookup table) has no layout and is refused.
//
// Coordinates are storage elements (see StorageElementBytes) throughout, 64-bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/digest.h"
#include "wstore/manifest.h"

namespace wstore {

// One dimension of a placement's loop nest.
struct PlacementDim {
  uint64_t count = 0;              // at least 1
  uint64_t checkpoint_stride = 0;  // elements between neighbours in the checkpoint tensor, at least 1
  uint64_t local_stride = 0;       // the same in local memory, at least 1

  friend bool operator==(const PlacementDim&, const PlacementDim&) = default;
};

// One box: element (i_0, ..., i_k) of the nest is checkpoint element
// checkpoint_offset + sum of i_j x checkpoint_stride_j, and local element local_offset + sum of
// i_j x local_stride_j of buffer `buffer`. No dimensions: a single element.
struct Placement {
  TensorIndex tensor = 0;
  uint64_t checkpoint_offset = 0;
  uint32_t buffer = 0;        // index into Layout::buffers()
  uint64_t local_offset = 0;  // in elements of the tensor's width
  // Outermost first. In checkpoint coordinates the dimensions nest: each stride is at least the extent
  // of all dimensions inside it, so elements in loop order ascend.
  std::vector<PlacementDim> dims;

  uint64_t elements() const;
  friend bool operator==(const Placement&, const Placement&) = default;
};

// A piece of local memory: one parameter of the engine. The caller gives its address when a replica is
// attached. Bytes that no placement covers are padding or foreign, and never touched.
struct LayoutBuffer {
  std::string name;
  uint64_t size_bytes = 0;

  friend bool operator==(const LayoutBuffer&, const LayoutBuffer&) = default;
};

// Tensors whose values are one and the same memory (tied embeddings). All have the dtype and shape of the
// first, which alone is placed; patches of all of them must be equal.
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

// A stretch of consecutive checkpoint elements, `checkpoint_stride` 1, at evenly spaced local places.
struct Segment {
  uint64_t begin = 0;  // checkpoint elements [begin, end)
  uint64_t end = 0;
  uint64_t local_begin = 0;   // local element of `begin`
  uint64_t local_stride = 1;  // between neighbours
};

// Walks the segments of one placement in ascending checkpoint order.
class SegmentCursor {
 public:
  explicit SegmentCursor(const Placement& placement);
  // Moves to the segment that holds `element`, or else to the first one behind it. False: none is left.
  // Constant time in the number of segments.
  bool Seek(uint64_t element);
  const Segment& segment() const { return segment_; }

 private:
  const Placement* placement_;
  Segment segment_;
};

// A checked layout. Immutable, so safe to share between threads.
class Layout {
 public:
  // `generation` counts re-layouts of the same memory: what was staged for one is refused by another.
  //   kInvalidArgument, with everything of one kind listed: placements out of a tensor's or a buffer's
  //     range, that overlap in local memory, that place a checkpoint element twice at one address, or
  //     that do not nest; alias groups of unlike tensors or with a member placed on its own; a tensor
  //     both placed and ignored; a repeated buffer name
  static absl::StatusOr<Layout> Create(const Manifest& manifest, LayoutSpec spec,
                                       uint64_t generation);

  const std::vector<LayoutBuffer>& buffers() const { return spec_.buffers; }
  // Ordered by tensor, then by checkpoint_offset.
  const std::vector<Placement>& placements() const { return spec_.placements; }
  absl::Span<const Placement> placements(TensorIndex tensor) const;
  const std::vector<AliasGroup>& aliases() const { return spec_.aliases; }
  // The first of the tensor's alias group; the tensor itself if it is in none.
  TensorIndex CanonicalTensor(TensorIndex tensor) const;
  const std::vector<TensorIndex>& ignored() const { return spec_.ignored; }
  uint64_t generation() const { return generation_; }

  // SHA-256 over all of the above but the generation, tensors by name; equal layouts have equal digests.
  const Digest& digest() const { return digest_; }

 private:
  LayoutSpec spec_;
  uint64_t generation_ = 0;
  Digest digest_;
  std::vector<uint32_t> first_placement_;  // by tensor, and one past the last
  std::vector<TensorIndex> canonical_;
};

// Whether the ranks of an instance together hold every element of every tensor.
//   kInvalidArgument: names tensors with elements that no rank has (and how many)
absl::Status CheckCoverage(const Manifest& manifest, absl::Span<const Layout* const> ranks);

}  // namespace wstore
