// Whether placements overlap in local memory.
#pragma once

#include "absl/status/status.h"
#include "wstore/layout.h"

namespace wstore {

// The placements of `spec` are in range and of their buffer's dtype.
//   kInvalidArgument: names the placements that share an element of a buffer, or reach one twice
//   kResourceExhausted: this cannot be told in bounded time
absl::Status CheckLocalOverlaps(const Manifest& manifest, const LayoutSpec& spec);

}  // namespace wstore
