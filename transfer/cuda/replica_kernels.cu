#include "transfer/cuda/replica_kernels.h"

#include "transfer/cuda/replica_kernels.cuh"
#include "transfer/cuda/runtime.h"

namespace wstore::cuda {

absl::Status LaunchRead(const ReplicaTables& tables, CudaStream stream) {
  if (tables.unit_count == 0) return absl::OkStatus();
  return Launch("the launch of UnitKernel, to read", UnitKernel<UnitWork::kRead, kUnitParts>,
                tables.unit_count * kUnitParts, kUnitThreads, stream, tables);
}

absl::Status LaunchExchange(const ReplicaTables& tables, bool is_checked, CudaStream stream) {
  if (tables.unit_count == 0) return absl::OkStatus();
  const bool is_sparse = tables.group_count / tables.unit_count >= kSparseUnitGroups;
  const auto launch = [&](auto kernel, uint32_t parts) {
    return Launch("the launch of UnitKernel, to exchange", kernel, tables.unit_count * parts,
                  kUnitThreads, stream, tables);
  };
  constexpr auto kChecked = UnitWork::kExchange;
  constexpr auto kUnchecked = UnitWork::kExchangeUnchecked;
  if (is_sparse) {
    return launch(is_checked ? UnitKernel<kChecked, kSparseUnitParts>
                             : UnitKernel<kUnchecked, kSparseUnitParts>,
                  kSparseUnitParts);
  }
  return launch(is_checked ? UnitKernel<kChecked, kUnitParts> : UnitKernel<kUnchecked, kUnitParts>,
                kUnitParts);
}

absl::Status LaunchCells(const ReplicaTables& tables, const CellStretch* stretches, uint32_t count,
                         SumsEntry* cell_sums, CudaStream stream) {
  if (count == 0) return absl::OkStatus();
  return Launch("the launch of CellKernel", CellKernel, count, kUnitThreads, stream, tables,
                stretches, cell_sums);
}

absl::Status LaunchWriteCell(const ReplicaTables& tables, uint32_t cell, const uint8_t* dense,
                             uint64_t begin, uint32_t count, CudaStream stream) {
  if (count == 0) return absl::OkStatus();
  return Launch("the launch of WriteCellKernel", WriteCellKernel,
                (count + kUnitThreads - 1) / kUnitThreads, kUnitThreads, stream, tables.cells, cell,
                dense, begin, count);
}

}  // namespace wstore::cuda
