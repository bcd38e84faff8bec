// Launchers of the kernels. They return once the kernel is on the stream.
#pragma once

#include "absl/status/status.h"
#include "transfer/cuda/tables.h"
#include "wstore/cuda.h"

namespace wstore::cuda {

// Compares, sums and encodes, a whole pass or a part (PartOf). Needs tables.counters and
// tables.sums zeroed.
absl::Status LaunchDiff(const DiffTables& tables, CudaStream stream);
// After LaunchDiff: chunks from tiles.
absl::Status LaunchChunks(const DiffTables& tables, CudaStream stream);
// After LaunchChunks: digests of tiles.
absl::Status LaunchDigests(const DiffTables& tables, CudaStream stream);
// After LaunchDiff of all parts: the old side becomes the new one.
absl::Status LaunchMove(const DiffTables& tables, CudaStream stream);
// Adds to tables.sums.
absl::Status LaunchAudit(const AuditTables& tables, CudaStream stream);

}  // namespace wstore::cuda
