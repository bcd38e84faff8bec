// The two ways of frames between GPUs.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "wstore/cuda.h"
#include "wstore/transfer_group.h"

namespace wstore::nccl {

using IsCancelled = std::function<bool()>;

// For this thread's device, which they keep to whichever device their callers have. Errors: as
// TransferPort::Join.
absl::StatusOr<std::unique_ptr<FrameReceiver>> JoinByNccl(const TransferPlan& plan,
                                                          CudaMemory* memory, Deadline deadline,
                                                          const IsCancelled& is_cancelled);
absl::StatusOr<std::unique_ptr<FrameSender>> LeadByNccl(const TransferPlan& plan, Deadline deadline,
                                                        const IsCancelled& is_cancelled);

absl::StatusOr<std::unique_ptr<FrameReceiver>> JoinShared(const TransferPlan& plan);
// A root without a communicator: all ranks read its memory, and there is nothing to send.
absl::StatusOr<std::unique_ptr<FrameSender>> LeadShared(const TransferPlan& plan);

}  // namespace wstore::nccl
