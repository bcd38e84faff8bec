#include "wstore/local_transfer.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/random.h"
#include "common/status_macros.h"

namespace wstore {
namespace {

absl::Status GivenUp() { return absl::CancelledError("the frame was given up"); }

// An address, as the root names it. It never leaves the process: the route is chosen by a random
// name of that.
class LocalReceiver final : public FrameReceiver {
 public:
  explicit LocalReceiver(const TransferPlan& plan) : plan_(plan) {}

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
    const FrameHeader frame = std::move(entered_.front());
    entered_.pop_front();
    uint64_t address = 0;
    if (!absl::SimpleAtoi(frame.location, &address)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", frame.location, "' is no address in this process"));
    }
    return ChunksAt(frame, reinterpret_cast<const uint8_t*>(address));
  }
  void Release() override {}
  void Cancel() override { cancelled_.store(true); }

 private:
  const TransferPlan plan_;
  std::atomic<bool> cancelled_{false};
  uint64_t next_ = 0;
  std::deque<FrameHeader> entered_;
};

class LocalSender final : public FrameSender {
 public:
  explicit LocalSender(const TransferPlan& plan) : plan_(plan) {}

  absl::StatusOr<std::string> Locate(const void* data, uint64_t) override {
    return absl::StrCat(reinterpret_cast<uintptr_t>(data));
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

class LocalPort final : public TransferPort {
 public:
  TransferHello hello() const override {
    static const auto* const process =
        new std::string(absl::StrCat("process ", absl::BytesToHexString(SecureRandomBytes(16))));
    TransferHello hello;
    hello.host = *process;
    hello.device = *process;
    return hello;
  }
  absl::StatusOr<std::string> NewUniqueId() override {
    return absl::UnimplementedError("ports within a process need no communicator");
  }
  absl::StatusOr<std::unique_ptr<FrameReceiver>> Join(const TransferPlan& plan, Deadline,
                                                      std::function<bool()>) override {
    RETURN_IF_ERROR(CheckRoute(plan));
    return std::make_unique<LocalReceiver>(plan);
  }
  absl::StatusOr<std::unique_ptr<FrameSender>> Lead(const TransferPlan& plan, Deadline,
                                                    std::function<bool()>) override {
    RETURN_IF_ERROR(CheckRoute(plan));
    return std::make_unique<LocalSender>(plan);
  }

 private:
  static absl::Status CheckRoute(const TransferPlan& plan) {
    if (plan.route == TransferRoute::kShared) return absl::OkStatus();
    return absl::InvalidArgumentError("a port within a process has the shared route alone");
  }
};

}  // namespace

std::shared_ptr<TransferPort> MakeLocalTransferPort() { return std::make_shared<LocalPort>(); }

}  // namespace wstore
