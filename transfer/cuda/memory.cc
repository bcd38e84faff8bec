#include <cstdint>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "transfer/cuda/device_scope.h"
#include "transfer/cuda/runtime.h"
#include "wstore/cuda.h"

namespace wstore {
namespace {

class PoolMemory final : public CudaMemory {
 public:
  // From any thread: pools are those of the device that is current.
  absl::StatusOr<void*> Allocate(uint64_t size_bytes, CudaStream stream) override {
    ASSIGN_OR_RETURN(const int device, cuda::DeviceOf(stream));
    const cuda::DeviceScope scope(device);
    std::call_once(kept_, KeepFreed);
    void* memory = nullptr;
    const absl::Status status = WSTORE_CUDA(cudaMallocAsync(&memory, size_bytes, stream));
    if (status.ok()) return memory;
    return Prefixed(status, absl::StrCat("allocating ", size_bytes, " bytes on the device"));
  }
  // A context that is lost frees nothing, and there is nobody to tell.
  void Free(void* memory, uint64_t, CudaStream stream) override {
    const absl::StatusOr<int> device = cuda::DeviceOf(stream);
    if (!device.ok()) return;
    const cuda::DeviceScope scope(*device);
    (void)WSTORE_CUDA(cudaFreeAsync(memory, stream));
  }

 private:
  // Otherwise the pool gives memory back to the system whenever a stream is waited for, and the
  // next update waits for as much to be mapped again. That it could not be told only costs time.
  static void KeepFreed() {
    int device = 0;
    cudaMemPool_t pool = nullptr;
    uint64_t threshold = UINT64_MAX;
    absl::Status status = WSTORE_CUDA(cudaGetDevice(&device));
    if (status.ok()) status = WSTORE_CUDA(cudaDeviceGetDefaultMemPool(&pool, device));
    if (!status.ok()) return;
    (void)WSTORE_CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  }

  std::once_flag kept_;
};

class DeviceMemory final : public CudaMemory {
 public:
  absl::StatusOr<void*> Allocate(uint64_t size_bytes, CudaStream) override {
    void* memory = nullptr;
    const absl::Status status = WSTORE_CUDA(cudaMalloc(&memory, size_bytes));
    if (status.ok()) return memory;
    return Prefixed(status, absl::StrCat("allocating ", size_bytes, " bytes on the device"));
  }
  void Free(void* memory, uint64_t, CudaStream) override { (void)WSTORE_CUDA(cudaFree(memory)); }
};

}  // namespace

std::unique_ptr<CudaMemory> MakeCudaPoolMemory() { return std::make_unique<PoolMemory>(); }
std::unique_ptr<CudaMemory> MakeCudaDeviceMemory() { return std::make_unique<DeviceMemory>(); }

absl::Status UseCudaDevice(int index) {
  int count = 0;
  RETURN_IF_ERROR(WSTORE_CUDA(cudaGetDeviceCount(&count)));
  if (index < 0 || index >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no CUDA device ", index, "; there are ", count, ", from 0"));
  }
  return WSTORE_CUDA(cudaSetDevice(index));
}

absl::StatusOr<std::string> DescribeCudaDevice() {
  int device = 0;
  cudaDeviceProp properties;
  RETURN_IF_ERROR(WSTORE_CUDA(cudaGetDevice(&device)));
  RETURN_IF_ERROR(WSTORE_CUDA(cudaGetDeviceProperties(&properties, device)));
  return absl::StrCat(properties.name, ", compute capability ", properties.major, ".",
                      properties.minor, ", ", properties.multiProcessorCount, " multiprocessors");
}

absl::StatusOr<OwnedCudaStream> OwnedCudaStream::Create(CudaPriority priority) {
  int least = 0;
  int greatest = 0;
  RETURN_IF_ERROR(WSTORE_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest)));
  return OfPriority(priority == CudaPriority::kHigh ? greatest : least);
}

absl::StatusOr<OwnedCudaStream> OwnedCudaStream::CreateLike(CudaStream other) {
  int priority = 0;
  RETURN_IF_ERROR(WSTORE_CUDA(cudaStreamGetPriority(other, &priority)));
  return OfPriority(priority);
}

absl::StatusOr<OwnedCudaStream> OwnedCudaStream::OfPriority(int priority) {
  CudaStream stream = nullptr;
  RETURN_IF_ERROR(
      WSTORE_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority)));
  return OwnedCudaStream(stream);
}

OwnedCudaStream::~OwnedCudaStream() {
  if (stream_ != nullptr) (void)WSTORE_CUDA(cudaStreamDestroy(stream_));
}

OwnedCudaStream::OwnedCudaStream(OwnedCudaStream&& other) noexcept
    : stream_(std::exchange(other.stream_, nullptr)) {}

OwnedCudaStream& OwnedCudaStream::operator=(OwnedCudaStream&& other) noexcept {
  std::swap(stream_, other.stream_);
  return *this;
}

absl::Status OwnedCudaStream::Synchronize() const {
  return WSTORE_CUDA(cudaStreamSynchronize(stream_));
}

}  // namespace wstore
