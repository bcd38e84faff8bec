// Where the elements of a tensor are in a cell.
#pragma once

#include <cstdint>

#include "transfer/cuda/device_math.cuh"
#include "transfer/cuda/replica_tables.h"

namespace wstore::cuda {

// Division of 64 bits takes some hundred instructions, and is seldom needed.
__device__ __forceinline__ uint64_t Quotient(uint64_t value, uint64_t by) {
  if (by == 1) return value;
  if ((value | by) >> 32 == 0) return static_cast<uint32_t>(value) / static_cast<uint32_t>(by);
  return value / by;
}

// Whether a cell has an element, and its place in the buffer. The dimensions nest in the
// checkpoint, so it is in one place at most.
__device__ __forceinline__ bool FindPlace(const CellEntry& cell, uint64_t element,
                                          uint64_t* place) {
  if (element < cell.checkpoint_offset) return false;
  uint64_t left = element - cell.checkpoint_offset;
  uint64_t local = cell.local_offset;
  bool is_inside = true;
  for (uint32_t d = 0; d < cell.dims; ++d) {
    const uint64_t at = Quotient(left, cell.dim[d].checkpoint_stride);
    is_inside &= at < cell.dim[d].count;
    left -= at * cell.dim[d].checkpoint_stride;
    local += at * cell.dim[d].local_stride;
  }
  *place = local;
  return is_inside && left == 0;
}

}  // namespace wstore::cuda
