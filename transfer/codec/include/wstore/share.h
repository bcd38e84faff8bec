// The part of a checkpoint that one contributor holds: of each tensor one stretch of its elements.
//
// Rows of the first dimension, flat shards as FSDP cuts them, and whole experts are such stretches.
// A box of columns is not: who has those gathers them first, or publishes patches (Upload::Add).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/manifest.h"

namespace wstore {

// Storage elements [first, end), row-major.
struct ElementRange {
  uint64_t first = 0;
  uint64_t end = 0;

  uint64_t size() const { return end - first; }
  bool empty() const { return first == end; }
  // Whether some of them are in this tile of their tensor.
  bool has_tile(uint32_t tile) const {
    return !empty() && first / kTileElements <= tile && tile <= (end - 1) / kTileElements;
  }
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

// Bounds lie at multiples of so many elements, or at the tensor's end.
inline constexpr uint64_t kShareElements = 256;

struct TensorShare {
  TensorIndex tensor = 0;
  ElementRange range;
};

// In any order; at most one range a tensor. Tensors without one are not held. Empty: everything is.
using Share = std::vector<TensorShare>;

// By tensor of the manifest: what is held of it.
//   kInvalidArgument: unknown tensors, a tensor twice, bounds that are elsewhere. All are listed
absl::StatusOr<std::vector<ElementRange>> HeldRanges(const Manifest& manifest,
                                                     absl::Span<const TensorShare> share);

}  // namespace wstore
