#include "transfer/cuda/shared_memory.h"

#include <cuda.h>

#include <cstring>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/random.h"
#include "common/status_macros.h"
#include "common/strings.h"
#include "transfer/cuda/runtime.h"

namespace wstore::cuda {
namespace {

constexpr size_t kMaxOpened = 8;
constexpr char kPrefix[] = "cuda-memory";

// Of this process, whoever had its number before.
const std::string& ProcessNonce() {
  static const auto* const nonce = new std::string(absl::BytesToHexString(SecureRandomBytes(16)));
  return *nonce;
}

// The start of the allocation that `data` is in.
absl::StatusOr<uintptr_t> AllocationOf(const void* data) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  RETURN_IF_ERROR(WSTORE_CUDA(cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &function,
                                                               12000, cudaEnableDefault, &found)));
  if (function == nullptr || found != cudaDriverEntryPointSuccess) {
    return absl::UnavailableError("the driver has no cuMemGetAddressRange");
  }
  CUdeviceptr base = 0;
  const auto ask = reinterpret_cast<CUresult (*)(CUdeviceptr*, size_t*, CUdeviceptr)>(function);
  const CUresult result = ask(&base, nullptr, reinterpret_cast<CUdeviceptr>(data));
  if (result != CUDA_SUCCESS) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory at ", absl::Hex(reinterpret_cast<uintptr_t>(data)),
                     " is not device memory (driver error ", static_cast<int>(result), ")"));
  }
  return static_cast<uintptr_t>(base);
}

absl::Status BadName(std::string_view name) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", ToAbsl(name.substr(0, 256)), "' names no device memory"));
}

}  // namespace

absl::StatusOr<std::string> NameMemory(const void* data, uint64_t size_bytes) {
  ASSIGN_OR_RETURN(const uintptr_t base, AllocationOf(data));
  const auto address = reinterpret_cast<uintptr_t>(data);
  std::string handle;
  cudaIpcMemHandle_t made;
  // Memory from a pool has none; it can be found within this process only.
  if (WSTORE_CUDA(cudaIpcGetMemHandle(&made, reinterpret_cast<void*>(base))).ok()) {
    handle = absl::BytesToHexString(absl::string_view(made.reserved, sizeof(made.reserved)));
  }
  return absl::StrCat(kPrefix, ":", ProcessNonce(), ":", address, ":", address - base, ":",
                      size_bytes, ":", handle);
}

absl::StatusOr<const uint8_t*> SharedMemory::Open(std::string_view name, uint64_t size_bytes) {
  const std::vector<std::string> parts = absl::StrSplit(ToAbsl(name), ':');
  uint64_t address = 0;
  uint64_t offset = 0;
  uint64_t size = 0;
  if (parts.size() != 6 || parts[0] != kPrefix || !absl::SimpleAtoi(parts[2], &address) ||
      !absl::SimpleAtoi(parts[3], &offset) || !absl::SimpleAtoi(parts[4], &size)) {
    return BadName(name);
  }
  if (size_bytes > size) {
    return absl::InvalidArgumentError(
        absl::StrCat(size_bytes, " bytes are to be read of shared memory of ", size, " bytes"));
  }
  if (parts[1] == ProcessNonce()) return reinterpret_cast<const uint8_t*>(address);
  if (parts[5].empty()) {
    return absl::FailedPreconditionError(
        "the other process's memory is from a pool, which CUDA IPC does not share; its differ "
        "needs a memory resource from MakeCudaDeviceMemory");
  }
  const std::string handle = absl::HexStringToBytes(parts[5]);
  if (handle.size() != sizeof(cudaIpcMemHandle_t)) return BadName(name);
  ASSIGN_OR_RETURN(void* const base, OpenHandle(handle));
  return static_cast<const uint8_t*>(base) + offset;
}

absl::StatusOr<void*> SharedMemory::OpenHandle(const std::string& handle) {
  for (auto it = opened_.begin(); it != opened_.end(); ++it) {
    if (it->handle != handle) continue;
    opened_.splice(opened_.begin(), opened_, it);
    return opened_.front().base;
  }
  if (opened_.size() == kMaxOpened) {
    RETURN_IF_ERROR(WSTORE_CUDA(cudaIpcCloseMemHandle(opened_.back().base)));
    opened_.pop_back();
  }
  cudaIpcMemHandle_t given;
  std::memcpy(given.reserved, handle.data(), sizeof(given.reserved));
  void* base = nullptr;
  RETURN_IF_ERROR(WSTORE_CUDA(cudaIpcOpenMemHandle(&base, given, cudaIpcMemLazyEnablePeerAccess)));
  opened_.push_front({handle, base});
  return base;
}

SharedMemory::~SharedMemory() {
  for (const Opened& opened : opened_) (void)WSTORE_CUDA(cudaIpcCloseMemHandle(opened.base));
}

}  // namespace wstore::cuda
