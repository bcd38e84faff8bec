// Frames that stay where the root has them, for ranks on its GPU.
#include <atomic>
#include <deque>
#include <utility>

#include "common/status_macros.h"
#include "transfer/cuda/shared_memory.h"
#include "transfer/nccl/device_scope.h"
#include "transfer/nccl/frames.h"

namespace wstore::nccl {
namespace {

absl::Status GivenUp() { return absl::CancelledError("the frame was given up"); }

class SharedReceiver final : public FrameReceiver {
 public:
  SharedReceiver(const TransferPlan& plan, int device) : plan_(plan), device_(device) {}
  ~SharedReceiver() override {
    const DeviceScope scope(device_);
    memory_.reset();
  }

  absl::Status Enter(const FrameHeader& frame, Deadline) override {
    if (cancelled_.load()) return GivenUp();
    RETURN_IF_ERROR(CheckFrame(frame, plan_, next_));
    entered_.push_back(frame);
    ++next_;
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<DeviceChunk>> Await(Deadline) override {
    if (cancelled_.load()) return GivenUp();
    if (entered_.empty()) return absl::FailedPreconditionError("no frame was entered");
    const DeviceScope scope(device_);
    const FrameHeader frame = std::move(entered_.front());
    entered_.pop_front();
    ASSIGN_OR_RETURN(const uint8_t* const data, memory_->Open(frame.location, frame.size_bytes));
    return ChunksAt(frame, data);
  }
  void Release() override {}
  void Cancel() override { cancelled_.store(true); }

 private:
  const TransferPlan plan_;
  const int device_;
  std::atomic<bool> cancelled_{false};
  std::unique_ptr<cuda::SharedMemory> memory_ = std::make_unique<cuda::SharedMemory>();
  uint64_t next_ = 0;
  std::deque<FrameHeader> entered_;
};

class SharedSender final : public FrameSender {
 public:
  explicit SharedSender(const TransferPlan& plan) : plan_(plan) {}

  absl::StatusOr<std::string> Locate(const void* data, uint64_t size_bytes) override {
    return cuda::NameMemory(data, size_bytes);
  }
  absl::Status Send(const FrameHeader& frame, const void*, Deadline) override {
    if (cancelled_.load()) return GivenUp();
    RETURN_IF_ERROR(CheckFrame(frame, plan_, next_));
    ++next_;
    return absl::OkStatus();
  }
  absl::Status Drain(Deadline) override { return cancelled_.load() ? GivenUp() : absl::OkStatus(); }
  void Cancel() override { cancelled_.store(true); }

 private:
  const TransferPlan plan_;
  std::atomic<bool> cancelled_{false};
  uint64_t next_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<FrameReceiver>> JoinShared(const TransferPlan& plan) {
  ASSIGN_OR_RETURN(const int device, CurrentDevice());
  return std::make_unique<SharedReceiver>(plan, device);
}

std::unique_ptr<FrameSender> LeadShared(const TransferPlan& plan) {
  return std::make_unique<SharedSender>(plan);
}

}  // namespace wstore::nccl
