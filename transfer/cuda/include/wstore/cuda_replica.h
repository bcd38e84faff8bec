// A replica whose weights are in the memory of a GPU: pass the backend to Replica::Attach in its
// options. It then promises on the device what a host replica promises in host memory.
//
// The engine owns the weights; their addresses never change. All that reads or writes them is on
// one stream, and functions that need its result wait for that stream alone: when Apply or Abort
// has returned, the weights are written, whatever stream reads them. Chunks are staged on two more
// streams, of the same priority. A staged update is kept in device memory in the
// form that is fastest to apply: past the device's budget, in pinned host memory that was reserved
// at the start. What came as bytes is kept in host memory too, to be composed with others; what was
// decoded on the device (Replica::StageDeviceChunks) comes to the host only if it is composed.
//
// If the context of the process is lost, a write under way is of unknown progress: the replica is
// poisoned, and the process must be started again.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "wstore/cuda.h"

namespace wstore {

class MemoryBackend;

struct CudaBackendOptions {
  CudaStream stream = nullptr;
  CudaMemory* memory = nullptr;  // must outlive the backend, and every update staged with it
  // Of staged updates and of the undo history.
  uint64_t device_budget_bytes = UINT64_MAX;
  // Pinned host memory for what does not fit into the budget, or into the device.
  uint64_t pinned_bytes = 0;
  // Whether what was written is read again before it is summed. Without it a write that memory did
  // not take is found by the next audit only.
  bool verify_writes = true;
};

// For the current device of this thread. One replica per backend.
//   kInvalidArgument: no memory resource
//   kResourceExhausted: no memory for its tables (a few MiB on the device), or for pinned_bytes
absl::StatusOr<std::shared_ptr<MemoryBackend>> MakeCudaBackend(const CudaBackendOptions& options);

}  // namespace wstore
