#include "transfer/cuda/cell_tables.h"

namespace wstore::cuda {
namespace {

CellEntry EntryOf(const Plan& plan, const PlannedCell& cell, uint8_t* buffer) {
  const auto& key = plan.fingerprinter(cell).philox_key();
  CellEntry entry{};
  entry.buffer = buffer;
  entry.checkpoint_offset = cell.box->checkpoint_offset;
  entry.local_offset = cell.box->local_offset;
  entry.elements = cell.box->elements();
  entry.philox_key = key[0];
  entry.philox_high = key[1];
  entry.element_bytes = cell.element_bytes;
  entry.dims = static_cast<uint32_t>(cell.box->dims.size());
  for (uint32_t d = 0; d < entry.dims; ++d) {
    const PlacementDim& dim = cell.box->dims[d];
    entry.dim[d] = {dim.count, dim.checkpoint_stride, dim.local_stride};
  }
  return entry;
}

}  // namespace

std::vector<CellEntry> MakeCellEntries(const Plan& plan, absl::Span<const LocalBuffer> buffers) {
  std::vector<CellEntry> entries;
  entries.reserve(plan.cells().size());
  for (const PlannedCell& cell : plan.cells()) {
    uint8_t* const buffer =
        buffers.empty() ? nullptr : static_cast<uint8_t*>(buffers[cell.box->buffer].data);
    entries.push_back(EntryOf(plan, cell, buffer));
  }
  return entries;
}

}  // namespace wstore::cuda
