// The memory of a GPU.
#include <optional>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "tools/wstore/device/device.h"
#include "wstore/cuda.h"
#include "wstore/cuda_replica.h"
#ifdef WSTORE_HAS_NCCL
#include "wstore/cuda_transfer.h"
#endif

namespace wstore::cli {
namespace {

// Of staged updates that the device has no room for.
constexpr uint64_t kPinnedBytes = uint64_t{256} << 20;

class GpuMemory final : public Device {
 public:
  explicit GpuMemory(int index) : index_(index) {}
  ~GpuMemory() override {
    UseInThread();
    if (!stream_) return;
    for (const auto& [memory, size_bytes] : taken_) {
      memory_->Free(memory, size_bytes, stream_->get());
    }
    stream_->Synchronize().IgnoreError();
  }

  absl::Status Open() {
    RETURN_IF_ERROR(UseCudaDevice(index_));
    ASSIGN_OR_RETURN(stream_, OwnedCudaStream::Create(CudaPriority::kHigh));
    memory_ = MakeCudaPoolMemory();
    return absl::OkStatus();
  }
  absl::StatusOr<void*> Allocate(uint64_t size_bytes) override {
    ASSIGN_OR_RETURN(void* const memory, memory_->Allocate(size_bytes, stream_->get()));
    taken_.emplace_back(memory, size_bytes);
    RETURN_IF_ERROR(stream_->Synchronize());
    return memory;
  }
  absl::StatusOr<std::shared_ptr<MemoryBackend>> MakeBackend() override {
    CudaBackendOptions options;
    options.stream = stream_->get();
    options.memory = memory_.get();
    options.pinned_bytes = kPinnedBytes;
    return MakeCudaBackend(options);
  }
#ifdef WSTORE_HAS_NCCL
  absl::StatusOr<std::shared_ptr<TransferPort>> MakeTransferPort() override {
    return MakeCudaTransferPort(memory_.get());
  }
#endif
  void UseInThread() override { UseCudaDevice(index_).IgnoreError(); }

 private:
  const int index_;
  std::unique_ptr<CudaMemory> memory_;
  std::optional<OwnedCudaStream> stream_;
  std::vector<std::pair<void*, uint64_t>> taken_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int index) {
  auto device = std::make_unique<GpuMemory>(index);
  RETURN_IF_ERROR(device->Open());
  return device;
}

}  // namespace wstore::cli
