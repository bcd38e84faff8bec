#include "transfer/cuda/stage_kernels.h"

#include "common/status_macros.h"
#include "transfer/cuda/runtime.h"
#include "transfer/cuda/stage_check_kernels.cuh"
#include "transfer/cuda/stage_count_kernel.cuh"
#include "transfer/cuda/stage_digest_kernels.cuh"
#include "transfer/cuda/stage_write_kernel.cuh"

namespace wstore::cuda {
namespace {

constexpr uint32_t kRootBlocksPerMultiprocessor = 16;

uint32_t BlocksOf(uint32_t warps) { return (warps + kStageWarps - 1) / kStageWarps; }

}  // namespace

absl::Status LaunchStageCheck(const StageTables& tables, CudaStream stream) {
  if (tables.source_count == 0) return absl::OkStatus();
  RETURN_IF_ERROR(Launch("the launch of StageSumKernel", StageSumKernel, tables.piece_count,
                         kSumThreads, stream, tables));
  return Launch("the launch of StageHashKernel", StageHashKernel, tables.source_count, kSealThreads,
                stream, tables);
}

absl::Status LaunchStageCount(const StageTables& tables, CudaStream stream) {
  if (tables.job_count == 0) return absl::OkStatus();
  return Launch("the launch of StageCountKernel", StageCountKernel, BlocksOf(tables.job_count),
                kStageThreads, stream, tables);
}

absl::Status LaunchStageDigests(const StageTables& tables, CudaStream stream) {
  if (tables.root_count == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const uint32_t leaf_blocks, FillDevice(1, tables.leaf_count));
  RETURN_IF_ERROR(Launch("the launch of StageLeafKernel", StageLeafKernel, leaf_blocks,
                         kLeafThreads, stream, tables));
  ASSIGN_OR_RETURN(const uint32_t root_blocks,
                   FillDevice(kRootBlocksPerMultiprocessor,
                              (uint64_t{tables.root_count} + kRootThreads - 1) / kRootThreads));
  return Launch("the launch of StageRootKernel", StageRootKernel, root_blocks, kRootThreads, stream,
                tables);
}

absl::Status LaunchStageWrite(const StageTables& tables, CudaStream stream) {
  if (tables.write_count == 0) return absl::OkStatus();
  return Launch("the launch of StageWriteKernel", StageWriteKernel, BlocksOf(tables.write_count),
                kStageThreads, stream, tables);
}

}  // namespace wstore::cuda
