// Cuts boxes of one tensor into pieces such that any two pieces are the same or have nothing in
// common.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "transfer/strided_box.h"

namespace wstore {

// The pieces of each box, in ascending order of their first elements. Two pieces with the same
// first element are the same. `boxes` are CheckpointBoxes, none twice. A box that meets no other is
// its own only piece; boxes that meet are cut along a grid whose steps are all of their strides, so
// that a piece is a box in the dimensions of each that holds it.
//   kInvalidArgument: the strides of boxes that meet do not divide each other, or the pieces would
//   be
//     more than 2^20
absl::StatusOr<std::vector<std::vector<StridedBox>>> RefineBoxes(
    absl::Span<const StridedBox> boxes);

// The part of a placement that lies at `piece`, one of the pieces of the placement's CheckpointBox.
Placement CutPlacement(const Placement& placement, const StridedBox& piece);

}  // namespace wstore
