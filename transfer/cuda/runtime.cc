#include "transfer/cuda/runtime.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace wstore::cuda {
namespace {

// 0: no fault is set; else the calls still to come up to the one that fails, and one.
std::atomic<uint64_t> calls_to_fault{0};
std::atomic<cudaError_t> fault{cudaSuccess};
std::atomic<bool> fault_has_struck{false};

std::atomic<bool> is_lost{false};
std::mutex story_mutex;
std::string story;

// Errors after which the context answers nothing but the same error.
bool EndsContext(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorMisalignedAddress:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorExternalDevice:
    case cudaErrorContained:
      return true;
    default:
      return false;
  }
}

absl::StatusCode CodeOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorStubLibrary:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemDriverMismatch:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

// Counts this call. The error that it is to answer instead of being made.
std::optional<cudaError_t> TakeFault() {
  uint64_t left = calls_to_fault.load(std::memory_order_relaxed);
  while (left != 0) {
    if (!calls_to_fault.compare_exchange_weak(left, left - 1)) continue;
    if (left != 1) return std::nullopt;
    fault_has_struck = true;
    return fault.load();
  }
  return std::nullopt;
}

absl::Status Lost(const char* what) {
  std::lock_guard<std::mutex> lock(story_mutex);
  return absl::InternalError(absl::StrCat(what, " was not called: ", story));
}

}  // namespace

absl::Status Checked(const char* what, absl::FunctionRef<cudaError_t()> call) {
  if (is_lost.load()) return Lost(what);
  const std::optional<cudaError_t> injected = TakeFault();
  const cudaError_t error = injected.has_value() ? *injected : call();
  if (error == cudaSuccess) return absl::OkStatus();
  // The runtime keeps the error for whoever asks next; it has been taken here.
  if (!injected.has_value()) cudaGetLastError();
  std::string message = absl::StrCat(what, ": ", cudaGetErrorString(error), " (",
                                     cudaGetErrorName(error), ", ", static_cast<int>(error), ")");
  if (EndsContext(error) && !injected.has_value()) {
    std::lock_guard<std::mutex> lock(story_mutex);
    if (!is_lost.exchange(true)) {
      story = absl::StrCat("the CUDA context of this process is lost since ", message,
                           "; device memory is of unknown content; start the process again");
    }
    message = story;
  }
  return absl::Status(CodeOf(error), message);
}

absl::StatusOr<uint32_t> FillDevice(uint32_t blocks_per_multiprocessor, uint64_t work) {
  int device = 0;
  int multiprocessors = 0;
  RETURN_IF_ERROR(WSTORE_CUDA(cudaGetDevice(&device)));
  RETURN_IF_ERROR(WSTORE_CUDA(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device)));
  const uint64_t blocks = uint64_t{blocks_per_multiprocessor} * multiprocessors;
  return static_cast<uint32_t>(std::min(blocks, std::max<uint64_t>(work, 1)));
}

bool IsContextLost() { return is_lost.load(); }

CallFault::CallFault(uint64_t nth, cudaError_t error) {
  fault = error;
  fault_has_struck = false;
  calls_to_fault = nth;
}

CallFault::~CallFault() { calls_to_fault = 0; }

bool CallFault::has_struck() const { return fault_has_struck.load(); }

}  // namespace wstore::cuda
