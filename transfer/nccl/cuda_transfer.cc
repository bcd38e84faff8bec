#include "wstore/cuda_transfer.h"

#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "transfer/cuda/device_scope.h"
#include "transfer/nccl/communicator.h"
#include "transfer/nccl/frames.h"
#include "transfer/nccl/library.h"

namespace wstore {
namespace {

// Settings that change how ranks talk to each other, so that all of a communicator need the same.
constexpr const char* kSharedSettings[] = {
    "NCCL_ALGO",        "NCCL_BUFFSIZE",      "NCCL_COLLNET_ENABLE", "NCCL_CROSS_NIC",
    "NCCL_IB_DISABLE",  "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS",  "NCCL_NET",
    "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE",   "NCCL_P2P_LEVEL",      "NCCL_PROTO",
    "NCCL_SHM_DISABLE"};

// What NCCL hashes to tell hosts apart.
std::string HostIdentity() {
  if (const char* const given = getenv("NCCL_HOSTID"); given != nullptr) return given;
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) name[0] = '\0';
  std::string boot;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::getline(file, boot);
  return absl::StrCat(name, " ", boot);
}

class CudaTransferPort final : public TransferPort {
 public:
  CudaTransferPort(CudaMemory* memory, int device, TransferHello hello)
      : memory_(memory), device_(device), hello_(std::move(hello)) {}

  TransferHello hello() const override { return hello_; }
  absl::StatusOr<std::string> NewUniqueId() override { return nccl::NewUniqueId(); }

  absl::StatusOr<std::unique_ptr<FrameReceiver>> Join(const TransferPlan& plan, Deadline deadline,
                                                      std::function<bool()> cancelled) override {
    const cuda::DeviceScope scope(device_);
    RETURN_IF_ERROR(CheckTransferPlan(plan));
    if (plan.route == TransferRoute::kShared) return nccl::JoinShared(plan);
    return nccl::JoinByNccl(plan, memory_, deadline, cancelled);
  }
  absl::StatusOr<std::unique_ptr<FrameSender>> Lead(const TransferPlan& plan, Deadline deadline,
                                                    std::function<bool()> cancelled) override {
    const cuda::DeviceScope scope(device_);
    RETURN_IF_ERROR(CheckTransferPlan(plan));
    if (plan.route == TransferRoute::kShared) return nccl::LeadShared(plan);
    return nccl::LeadByNccl(plan, deadline, cancelled);
  }

 private:
  CudaMemory* const memory_;
  const int device_;
  const TransferHello hello_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<TransferPort>> MakeCudaTransferPort(CudaMemory* memory) {
  if (memory == nullptr) return absl::InvalidArgumentError("a CudaMemory is needed");
  ASSIGN_OR_RETURN(const int device, cuda::CurrentDevice());
  cudaDeviceProp properties;
  RETURN_IF_ERROR(WSTORE_CUDA(cudaGetDeviceProperties(&properties, device)));
  TransferHello hello;
  hello.host = HostIdentity();
  hello.device = absl::BytesToHexString(
      absl::string_view(properties.uuid.bytes, sizeof(properties.uuid.bytes)));
  if (const auto library = nccl::LoadLibrary(); library.ok()) {
    hello.nccl_version = (*library)->version;
    for (const char* const name : kSharedSettings) {
      if (const char* const value = getenv(name); value != nullptr) {
        hello.environment.emplace(name, value);
      }
    }
  }
  return std::make_shared<CudaTransferPort>(memory, device, std::move(hello));
}

uint64_t UnfinishedTransferAborts() { return nccl::UnfinishedAborts(); }

}  // namespace wstore
