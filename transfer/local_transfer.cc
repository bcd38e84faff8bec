#include "wstore/local_transfer.h"

#include <cstdint>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/random.h"
#include "common/status_macros.h"
#include "common/strings.h"
#include "transfer/shared_frames.h"

namespace wstore {
namespace {

// An address. It never leaves the process: the route is chosen by a random name of that.
absl::StatusOr<std::string> LocateAddress(const void* data, uint64_t) {
  return absl::StrCat(reinterpret_cast<uintptr_t>(data));
}

absl::StatusOr<const uint8_t*> OpenAddress(std::string_view location, uint64_t) {
  uint64_t address = 0;
  if (!absl::SimpleAtoi(ToAbsl(location), &address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", ToAbsl(location), "' is no address in this process"));
  }
  return reinterpret_cast<const uint8_t*>(address);
}

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
    RETURN_IF_ERROR(CheckPlan(plan));
    return MakeSharedReceiver(plan, OpenAddress);
  }
  absl::StatusOr<std::unique_ptr<FrameSender>> Lead(const TransferPlan& plan, Deadline,
                                                    std::function<bool()>) override {
    RETURN_IF_ERROR(CheckPlan(plan));
    return MakeSharedSender(plan, LocateAddress);
  }

 private:
  static absl::Status CheckPlan(const TransferPlan& plan) {
    RETURN_IF_ERROR(CheckTransferPlan(plan));
    if (plan.route == TransferRoute::kShared) return absl::OkStatus();
    return absl::InvalidArgumentError("a port within a process has the shared route alone");
  }
};

}  // namespace

std::shared_ptr<TransferPort> MakeLocalTransferPort() { return std::make_shared<LocalPort>(); }

}  // namespace wstore
