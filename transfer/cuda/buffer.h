// Memory that gives itself back: on the device, and pinned on the host.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "transfer/cuda/runtime.h"
#include "wstore/cuda.h"

namespace wstore::cuda {

// Device memory for `count` objects of plain type T, not initialised. Move-only; freed in order of
// the stream that it was made for. The memory resource must outlive it.
template <typename T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  static absl::StatusOr<DeviceBuffer> Create(uint64_t count, CudaMemory* memory,
                                             CudaStream stream) {
    DeviceBuffer buffer;
    if (count == 0) return buffer;
    absl::StatusOr<void*> data = memory->Allocate(count * sizeof(T), stream);
    if (!data.ok()) return data.status();
    buffer.data_ = static_cast<T*>(*data);
    buffer.count_ = count;
    buffer.memory_ = memory;
    buffer.stream_ = stream;
    return buffer;
  }
  ~DeviceBuffer() { Reset(); }
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    if (this == &other) return *this;
    Reset();
    data_ = std::exchange(other.data_, nullptr);
    count_ = std::exchange(other.count_, 0);
    memory_ = other.memory_;
    stream_ = other.stream_;
    return *this;
  }

  T* get() const { return data_; }
  uint64_t count() const { return count_; }
  uint64_t size_bytes() const { return count_ * sizeof(T); }

 private:
  void Reset() {
    if (data_ != nullptr) memory_->Free(data_, size_bytes(), stream_);
    data_ = nullptr;
  }

  T* data_ = nullptr;
  uint64_t count_ = 0;
  CudaMemory* memory_ = nullptr;
  CudaStream stream_ = nullptr;
};

// Host memory that the device reaches at the same address. Making and freeing it may synchronize
// the device, so it is made once and kept. Move-only.
template <typename T>
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  static absl::StatusOr<PinnedBuffer> Create(uint64_t count) {
    PinnedBuffer buffer;
    if (count == 0) return buffer;
    void* data = nullptr;
    const absl::Status status =
        WSTORE_CUDA(cudaHostAlloc(&data, count * sizeof(T), cudaHostAllocDefault));
    if (!status.ok()) return status;
    buffer.data_ = static_cast<T*>(data);
    buffer.count_ = count;
    return buffer;
  }
  ~PinnedBuffer() { Reset(); }
  PinnedBuffer(PinnedBuffer&& other) noexcept { *this = std::move(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    if (this == &other) return *this;
    Reset();
    data_ = std::exchange(other.data_, nullptr);
    count_ = std::exchange(other.count_, 0);
    return *this;
  }

  T* get() const { return data_; }
  uint64_t count() const { return count_; }
  T& operator[](uint64_t i) const { return data_[i]; }

 private:
  // A context that is lost frees nothing, and there is nobody to tell.
  void Reset() {
    if (data_ != nullptr) (void)WSTORE_CUDA(cudaFreeHost(data_));
    data_ = nullptr;
  }

  T* data_ = nullptr;
  uint64_t count_ = 0;
};

// A point on a stream, to be waited for. Made once and recorded again and again. Move-only.
class Event {
 public:
  Event() = default;
  static absl::StatusOr<Event> Create() {
    Event event;
    const absl::Status status =
        WSTORE_CUDA(cudaEventCreateWithFlags(&event.event_, cudaEventDisableTiming));
    if (!status.ok()) return status;
    return event;
  }
  ~Event() {
    if (event_ != nullptr) (void)WSTORE_CUDA(cudaEventDestroy(event_));
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }

  // Behind all that is on the stream now.
  absl::Status Record(CudaStream stream) const {
    return WSTORE_CUDA(cudaEventRecord(event_, stream));
  }
  // Until the stream has come to where it was recorded last.
  absl::Status Await() const { return WSTORE_CUDA(cudaEventSynchronize(event_)); }

 private:
  cudaEvent_t event_ = nullptr;
};

// Copies in order of the stream. Host memory must be pinned, and stay until the copy is done.
template <typename T>
absl::Status CopyAsync(const T* from, T* to, uint64_t count, CudaStream stream) {
  if (count == 0) return absl::OkStatus();
  return WSTORE_CUDA(cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyDefault, stream));
}

template <typename T>
absl::Status ZeroAsync(T* memory, uint64_t count, CudaStream stream) {
  if (count == 0) return absl::OkStatus();
  return WSTORE_CUDA(cudaMemsetAsync(memory, 0, count * sizeof(T), stream));
}

inline absl::Status Synchronize(CudaStream stream) {
  return WSTORE_CUDA(cudaStreamSynchronize(stream));
}

}  // namespace wstore::cuda
