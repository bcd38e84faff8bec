// Launchers of the replica backend's kernels. They return once the kernel is on the stream.
#pragma once

#include "absl/status/status.h"
#include "transfer/cuda/replica_tables.h"
#include "wstore/cuda.h"

namespace wstore::cuda {

// Sums units and groups as they are and as they would be. Needs the sums zeroed, as do the others.
absl::Status LaunchRead(const ReplicaTables& tables, CudaStream stream);
// XORs units into the weights; re-reads them and sums what is found, or, unchecked, sums what was
// written.
absl::Status LaunchExchange(const ReplicaTables& tables, bool is_checked, CudaStream stream);
// Adds the fingerprints of `count` stretches to sums[cell].after.
absl::Status LaunchCells(const ReplicaTables& tables, const CellStretch* stretches, uint32_t count,
                         SumsEntry* cell_sums, CudaStream stream);
// Writes what cell `cell` has of `count` elements of its tensor from `begin` on.
absl::Status LaunchWriteCell(const ReplicaTables& tables, uint32_t cell, const uint8_t* dense,
                             uint64_t begin, uint32_t count, CudaStream stream);

}  // namespace wstore::cuda
