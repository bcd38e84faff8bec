// Strided boxes of one address space (a tensor or a buffer), and whether they meet.
#pragma once

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "wstore/layout.h"

namespace wstore {

struct BoxDim {
  uint64_t count = 0;
  uint64_t stride = 0;

  friend auto operator<=>(const BoxDim&, const BoxDim&) = default;
};

// The elements offset + sum of i_j x stride_j, 0 <= i_j < count_j. Offsets and strides are below
// 2^60, as is the last element.
struct StridedBox {
  uint64_t offset = 0;
  absl::InlinedVector<BoxDim, 4> dims;  // largest stride first; no counts of 1

  uint64_t last() const;  // the largest element
  uint64_t elements() const;
  friend bool operator==(const StridedBox&, const StridedBox&) = default;
};

// Drops dimensions of count 1 and merges those that continue each other on both sides.
void NormalizeDims(Placement& placement);

// What a placement takes of its tensor, in the dimensions of the placement.
StridedBox CheckpointBox(const Placement& placement);

// What a placement takes of its buffer.
StridedBox LocalBox(const Placement& placement);

enum class Answer { kNo, kYes, kUnknown };

// Whether two boxes share an element. Exact. Takes a few steps where the strides divide each other;
// boxes with strides that do not can take many: `steps_left` is counted down, and kUnknown given at
// 0.
Answer Intersect(const StridedBox& a, const StridedBox& b, uint64_t& steps_left);

// Whether the box reaches an element along two ways.
Answer RepeatsItself(const StridedBox& box, uint64_t& steps_left);

}  // namespace wstore
