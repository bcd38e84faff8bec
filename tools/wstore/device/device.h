// Where a reference worker keeps its weights: host memory, or that of a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace wstore {
class MemoryBackend;
class TransferPort;
}  // namespace wstore

namespace wstore::cli {

// Gives its memory back when it goes.
class Device {
 public:
  virtual ~Device() = default;
  // At least one byte, aligned to 256, until the device goes.
  virtual absl::StatusOr<void*> Allocate(uint64_t size_bytes) = 0;
  // How a replica works on this memory. Null: as on host memory.
  virtual absl::StatusOr<std::shared_ptr<MemoryBackend>> MakeBackend() = 0;
  // How chunks reach this memory past the server. Null: they do not.
  virtual absl::StatusOr<std::shared_ptr<TransferPort>> MakeTransferPort() { return nullptr; }
  // To be called in each thread that works on it.
  virtual void UseInThread() = 0;
};

// "cpu", or "cuda:N".
//   kInvalidArgument: another name, or no such device
//   kUnavailable: no driver, or this program was built without CUDA
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const std::string& name);

// For OpenDevice.
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int index);

}  // namespace wstore::cli
