#include "transfer/cuda/kernels.h"

#include "absl/status/statusor.h"
#include "common/status_macros.h"
#include "transfer/cuda/apply_kernel.cuh"
#include "transfer/cuda/assemble_kernels.cuh"
#include "transfer/cuda/audit_kernel.cuh"
#include "transfer/cuda/chunk_kernels.cuh"
#include "transfer/cuda/diff_kernel.cuh"
#include "transfer/cuda/digest_kernels.cuh"
#include "transfer/cuda/runtime.h"

namespace wstore::cuda {
namespace {

template <bool kTouched, bool kShare>
absl::Status StartDiff(const DiffTables& tables, uint32_t blocks, CudaStream stream) {
  const void* const kernel = reinterpret_cast<const void*>(DiffKernel<kTouched, kShare>);
  RETURN_IF_ERROR(WSTORE_CUDA(cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(DiffShared))));
  RETURN_IF_ERROR(WSTORE_CUDA(cudaFuncSetAttribute(
      kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared)));
  return LaunchWithShared("the launch of DiffKernel", DiffKernel<kTouched, kShare>, blocks,
                          kDiffThreads, static_cast<uint32_t>(sizeof(DiffShared)), stream, tables);
}

uint64_t TileCount(const DiffTables& tables) { return tables.end_tile - tables.first_tile; }
uint64_t HeldCount(const DiffTables& tables) { return tables.end_held - tables.first_held; }

constexpr uint32_t kSealBlocksPerMultiprocessor = 16;
constexpr uint32_t kRootBlocksPerMultiprocessor = 16;
constexpr uint32_t kMoveBlocksPerMultiprocessor = 8;

}  // namespace

absl::Status LaunchDiff(const DiffTables& tables, CudaStream stream) {
  if (HeldCount(tables) == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const uint32_t blocks,
                   FillDevice(kDiffBlocksPerMultiprocessor, HeldCount(tables)));
  DiffTables with_runs = tables;
  with_runs.tile_runs = TileRuns(HeldCount(tables), blocks);
  const auto start =
      tables.held_tiles == nullptr
          ? (tables.sums_touched != 0 ? StartDiff<true, false> : StartDiff<false, false>)
          : (tables.sums_touched != 0 ? StartDiff<true, true> : StartDiff<false, true>);
  return start(with_runs, DiffBlocks(HeldCount(tables), blocks, tables.block_turns), stream);
}

absl::Status LaunchChunks(const DiffTables& tables, CudaStream stream) {
  if (HeldCount(tables) == 0) return absl::OkStatus();
  RETURN_IF_ERROR(Launch("the launch of PlanKernel", PlanKernel, tables.span_count, kPlanThreads,
                         stream, tables));
  ASSIGN_OR_RETURN(const uint32_t blocks,
                   FillDevice(kAssembleBlocksPerMultiprocessor, tables.max_pieces));
  RETURN_IF_ERROR(Launch("the launch of AssembleKernel", AssembleKernel, blocks, kAssembleThreads,
                         stream, tables));
  ASSIGN_OR_RETURN(const uint32_t warps,
                   FillDevice(kSealBlocksPerMultiprocessor, tables.max_chunks));
  return Launch("the launch of SealKernel", SealKernel, warps, kSealThreads, stream, tables);
}

absl::Status LaunchDigests(const DiffTables& tables, CudaStream stream) {
  if (HeldCount(tables) == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const uint32_t leaf_blocks, FillDevice(1, tables.max_leaves));
  RETURN_IF_ERROR(
      Launch("the launch of LeafKernel", LeafKernel, leaf_blocks, kLeafThreads, stream, tables));
  ASSIGN_OR_RETURN(const uint32_t root_blocks,
                   FillDevice(kRootBlocksPerMultiprocessor,
                              (TileCount(tables) + kRootThreads - 1) / kRootThreads));
  return Launch("the launch of RootKernel", RootKernel, root_blocks, kRootThreads, stream, tables);
}

absl::Status LaunchMove(const DiffTables& tables, CudaStream stream) {
  if (HeldCount(tables) == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const uint32_t blocks,
                   FillDevice(kMoveBlocksPerMultiprocessor, TileCount(tables)));
  return Launch("the launch of MoveKernel", MoveKernel, blocks, kApplyThreads, stream, tables);
}

absl::Status LaunchAudit(const AuditTables& tables, CudaStream stream) {
  if (tables.end_held == tables.first_held) return absl::OkStatus();
  ASSIGN_OR_RETURN(const uint32_t blocks,
                   FillDevice(kAuditBlocksPerMultiprocessor, tables.end_held - tables.first_held));
  return Launch("the launch of AuditKernel", AuditKernel, blocks, kAuditThreads, stream, tables);
}

}  // namespace wstore::cuda
