// A thread's device for the time of one call, and then the one that it had before.
#pragma once

#include "absl/status/statusor.h"
#include "common/status_macros.h"
#include "transfer/cuda/runtime.h"

namespace wstore::cuda {

inline absl::StatusOr<int> CurrentDevice() {
  int device = 0;
  RETURN_IF_ERROR(WSTORE_CUDA(cudaGetDevice(&device)));
  return device;
}

// A stream's.
inline absl::StatusOr<int> DeviceOf(cudaStream_t stream) {
  int device = 0;
  RETURN_IF_ERROR(WSTORE_CUDA(cudaStreamGetDevice(stream, &device)));
  return device;
}

class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    (void)WSTORE_CUDA(cudaGetDevice(&before_));
    // Also where it is that one already: a thread that has made no call has no context yet, in
    // which cudaPointerGetAttributes knows no device memory.
    (void)WSTORE_CUDA(cudaSetDevice(device));
  }
  ~DeviceScope() { (void)WSTORE_CUDA(cudaSetDevice(before_)); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
};

}  // namespace wstore::cuda
