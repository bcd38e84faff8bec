// Frames that stay where the root has them, for ranks on its GPU.
#include "transfer/shared_frames.h"

#include <optional>

#include "common/status_macros.h"
#include "transfer/cuda/device_scope.h"
#include "transfer/cuda/shared_memory.h"
#include "transfer/nccl/frames.h"

namespace wstore::nccl {
namespace {

// Memory that was opened on a device, and is closed there.
class OpenedMemory {
 public:
  explicit OpenedMemory(int device) : device_(device), memory_(std::in_place) {}
  ~OpenedMemory() {
    const cuda::DeviceScope scope(device_);
    memory_.reset();
  }
  absl::StatusOr<const uint8_t*> Open(std::string_view location, uint64_t size_bytes) {
    const cuda::DeviceScope scope(device_);
    return memory_->Open(location, size_bytes);
  }

 private:
  const int device_;
  std::optional<cuda::SharedMemory> memory_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<FrameReceiver>> JoinShared(const TransferPlan& plan) {
  ASSIGN_OR_RETURN(const int device, cuda::CurrentDevice());
  const auto memory = std::make_shared<OpenedMemory>(device);
  return MakeSharedReceiver(plan, [memory](std::string_view location, uint64_t size_bytes) {
    return memory->Open(location, size_bytes);
  });
}

absl::StatusOr<std::unique_ptr<FrameSender>> LeadShared(const TransferPlan& plan) {
  ASSIGN_OR_RETURN(const int device, cuda::CurrentDevice());
  return MakeSharedSender(plan, [device](const void* data, uint64_t size_bytes) {
    const cuda::DeviceScope scope(device);
    return cuda::NameMemory(data, size_bytes);
  });
}

}  // namespace wstore::nccl
