#include "transfer/shared_frames.h"

#include <atomic>
#include <deque>
#include <utility>

#include "common/status_macros.h"

namespace wstore {
namespace {

absl::Status GivenUp() { return absl::CancelledError("the frame was given up"); }

class SharedReceiver final : public FrameReceiver {
 public:
  SharedReceiver(const TransferPlan& plan, OpenMemory open) : plan_(plan), open_(std::move(open)) {}

  absl::Status Enter(const FrameHeader& frame, Deadline) override {
    if (cancelled_.load()) return GivenUp();
    RETURN_IF_ERROR(CheckFrame(frame, plan_, next_));
    RETURN_IF_ERROR(CheckHeldFrames(frame, entered_.size() + unreleased_));
    entered_.push_back(frame);
    ++next_;
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<DeviceChunk>> Await(Deadline) override {
    if (cancelled_.load()) return GivenUp();
    if (entered_.empty()) return absl::FailedPreconditionError("no frame was entered");
    const FrameHeader frame = std::move(entered_.front());
    entered_.pop_front();
    const uint8_t* data = nullptr;
    const bool is_mine = IsFor(frame, plan_.index);
    if (is_mine && frame.size_bytes > 0) {
      ASSIGN_OR_RETURN(data, open_(frame.location, frame.size_bytes));
    }
    ++unreleased_;
    return is_mine ? ChunksAt(frame, data) : std::vector<DeviceChunk>();
  }
  void Release() override { --unreleased_; }
  void Cancel() override { cancelled_.store(true); }

 private:
  const TransferPlan plan_;
  const OpenMemory open_;
  std::atomic<bool> cancelled_{false};
  uint64_t next_ = 0;
  std::deque<FrameHeader> entered_;
  size_t unreleased_ = 0;
};

class SharedSender final : public FrameSender {
 public:
  SharedSender(const TransferPlan& plan, LocateMemory locate)
      : plan_(plan), locate_(std::move(locate)) {}

  absl::StatusOr<std::string> Locate(const void* data, uint64_t size_bytes) override {
    return locate_(data, size_bytes);
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
  const LocateMemory locate_;
  std::atomic<bool> cancelled_{false};
  uint64_t next_ = 0;
};

}  // namespace

std::unique_ptr<FrameReceiver> MakeSharedReceiver(const TransferPlan& plan, OpenMemory open) {
  return std::make_unique<SharedReceiver>(plan, std::move(open));
}

std::unique_ptr<FrameSender> MakeSharedSender(const TransferPlan& plan, LocateMemory locate) {
  return std::make_unique<SharedSender>(plan, std::move(locate));
}

}  // namespace wstore
