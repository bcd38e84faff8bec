// Every call of the CUDA runtime goes through here: checked, translated and countable in one place.
//
//   RETURN_IF_ERROR(WSTORE_CUDA(cudaStreamSynchronize(stream)));
//
//   kResourceExhausted: no memory on the device, or no pinned memory on the host
//   kUnavailable: no driver, no device, or one that this program has no code for
//   kInternal: anything else. After an error that ends a context (an illegal access, say) every
//     later call of the process answers with the story of the first one.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define WSTORE_CUDA(call) ::wstore::cuda::Checked(#call, [&] { return (call); })

namespace wstore::cuda {

// Thread-safe.
absl::Status Checked(const char* what, absl::FunctionRef<cudaError_t()> call);

// Whether an error has ended the context of this process. What is in device memory is then of
// unknown content, and cannot be read.
bool IsContextLost();

// As many thread blocks as run at a time on this thread's device, but no more than there is work
// for.
absl::StatusOr<uint32_t> FillDevice(uint32_t blocks_per_multiprocessor, uint64_t work);

// Launches a kernel that takes dynamic shared memory, which it must be allowed (see
// cudaFuncAttributeMaxDynamicSharedMemorySize). `arguments` have exactly the types of its
// parameters.
template <typename... Parameters>
absl::Status LaunchWithShared(const char* name, void (*kernel)(Parameters...), uint32_t blocks,
                              uint32_t threads, uint32_t shared_bytes, cudaStream_t stream,
                              Parameters... arguments) {
  void* addresses[] = {&arguments...};
  return Checked(name, [&] {
    return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks), dim3(threads),
                            addresses, shared_bytes, stream);
  });
}

// Launches a kernel. `arguments` have exactly the types of its parameters.
template <typename... Parameters>
absl::Status Launch(const char* name, void (*kernel)(Parameters...), uint32_t blocks,
                    uint32_t threads, cudaStream_t stream, Parameters... arguments) {
  return LaunchWithShared(name, kernel, blocks, threads, 0, stream, arguments...);
}

// For tests: while it exists, the calls from then on are counted, and the `nth` (from 1) is not
// made but answers `error`. One at a time.
class CallFault {
 public:
  CallFault(uint64_t nth, cudaError_t error);
  ~CallFault();
  CallFault(const CallFault&) = delete;
  CallFault& operator=(const CallFault&) = delete;

  // Whether that call has come.
  bool has_struck() const;
};

}  // namespace wstore::cuda
