// Streams and device memory, as the CUDA parts of wstore take them. Needs no CUDA header.
//
// Everything happens on a stream that the caller passes in: work is ordered behind what is there,
// and nothing synchronizes with any other stream or with the device. All memory comes from a
// CudaMemory that the caller passes in.
//
// Errors of all CUDA parts:
//   kResourceExhausted: no memory on the device, or no pinned memory on the host
//   kUnavailable: no driver, no device, or one that this program has no code for
//   kInternal: the runtime refused a call, or the context of the process is lost; the message says
//     since which call. Device memory is then of unknown content.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

struct CUstream_st;

namespace wstore {

// cudaStream_t.
using CudaStream = CUstream_st*;

// Where device memory comes from. Implementations are thread-safe.
class CudaMemory {
 public:
  virtual ~CudaMemory() = default;

  // `size_bytes` of device memory, at a multiple of 256 bytes, to be used on `stream` (or on others
  // after it was waited for). Does not synchronize the stream. Never of size 0.
  virtual absl::StatusOr<void*> Allocate(uint64_t size_bytes, CudaStream stream) = 0;
  // Gives it back once what is on `stream` now is done. Does not synchronize the stream.
  virtual void Free(void* memory, uint64_t size_bytes, CudaStream stream) = 0;
};

// Memory of the current device's default pool (cudaMallocAsync), which keeps what is freed.
std::unique_ptr<CudaMemory> MakeCudaPoolMemory();
// Memory of the current device by cudaMalloc, which another process on the same GPU can be shown.
// Taking and giving back wait for all of the device: for what is made once and kept.
std::unique_ptr<CudaMemory> MakeCudaDeviceMemory();

// Makes device `index` that of this thread.
//   kInvalidArgument: there are not so many devices
absl::Status UseCudaDevice(int index);

// "NVIDIA H200, compute capability 9.0, 132 multiprocessors" of this thread's device.
absl::StatusOr<std::string> DescribeCudaDevice();

// kHigh: its blocks go before those of other streams of the process that have not been started. For
// work that is short, and that somebody waits for.
enum class CudaPriority { kNormal, kHigh };

// A stream of its own, that does not wait for the legacy default stream. Move-only.
class OwnedCudaStream {
 public:
  static absl::StatusOr<OwnedCudaStream> Create(CudaPriority priority = CudaPriority::kNormal);
  // Of the priority that another one has.
  static absl::StatusOr<OwnedCudaStream> CreateLike(CudaStream other);
  ~OwnedCudaStream();
  OwnedCudaStream(OwnedCudaStream&& other) noexcept;
  OwnedCudaStream& operator=(OwnedCudaStream&& other) noexcept;

  CudaStream get() const { return stream_; }
  // Blocks until everything on it is done.
  absl::Status Synchronize() const;

 private:
  static absl::StatusOr<OwnedCudaStream> OfPriority(int priority);
  explicit OwnedCudaStream(CudaStream stream) : stream_(stream) {}
  CudaStream stream_ = nullptr;
};

}  // namespace wstore
