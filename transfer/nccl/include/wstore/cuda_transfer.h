// Frames between GPUs: by NCCL, and on one GPU by reading the publisher's memory (in its process,
// or by CUDA IPC from another).
//
// NCCL is loaded when the program runs, if there is one. Its communicators are made and broken off
// under deadlines, in the background, with a stream of their own; nothing of it is on the engine's
// streams. Where several processes are to share one GPU as ranks of one communicator (in tests),
// each needs a name of its own in NCCL_HOSTID before its first call.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "wstore/cuda.h"
#include "wstore/transfer_group.h"

namespace wstore {

// For this thread's device, whichever device later callers have. `memory` must outlive what the
// port makes: a receiver over NCCL takes twice the frame size of it.
//   kUnavailable: no device. (No NCCL is no error: the port then has the shared route alone.)
absl::StatusOr<std::shared_ptr<TransferPort>> MakeCudaTransferPort(CudaMemory* memory);

// Communicators that could not be broken off so far, and are left behind. Where there are some, the
// process should be started again when there is time for it.
uint64_t UnfinishedTransferAborts();

}  // namespace wstore
