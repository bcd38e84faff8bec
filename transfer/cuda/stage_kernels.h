// Launchers of the kernels that stage chunks. They return once the kernel is on the stream.
#pragma once

#include "absl/status/status.h"
#include "transfer/cuda/stage_tables.h"
#include "wstore/cuda.h"

namespace wstore::cuda {

// Fills heads and verdicts of all sources.
absl::Status LaunchStageCheck(const StageTables& tables, CudaStream stream);
// Fills found of all jobs. Needs faults zeroed.
absl::Status LaunchStageCount(const StageTables& tables, CudaStream stream);
// Fills tile_digests.
absl::Status LaunchStageDigests(const StageTables& tables, CudaStream stream);
// After LaunchStageCount: fills the groups of all writes.
absl::Status LaunchStageWrite(const StageTables& tables, CudaStream stream);

}  // namespace wstore::cuda
