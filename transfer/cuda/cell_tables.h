// The cells of a plan, as kernels take them.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "transfer/cuda/replica_tables.h"
#include "transfer/replica/plan.h"

namespace wstore::cuda {

// buffers: of the plan's layout; none: for kernels that touch no weights.
std::vector<CellEntry> MakeCellEntries(const Plan& plan, absl::Span<const LocalBuffer> buffers);

}  // namespace wstore::cuda
