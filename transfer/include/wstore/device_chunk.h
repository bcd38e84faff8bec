// A chunk where a device has it.
#pragma once

#include <cstdint>

#include "wstore/tensor_set.h"

namespace wstore {

// For a replica on a GPU in device memory (that of a CudaDiffer, a buffer of NCCL's, another
// process's by CUDA IPC) or in pinned host memory; for one in host memory anywhere.
struct DeviceChunk {
  const void* data = nullptr;  // at a multiple of 16 bytes
  uint64_t size_bytes = 0;
  // For whoever sends it: all of its tiles are of these tensors.
  TensorRange tensors = {0, UINT32_MAX};
};

}  // namespace wstore
