// Device memory of one process in another on the same GPU, by CUDA IPC; and within a process by its
// address. Memory from pools cannot be shared between processes: see MakeCudaDeviceMemory.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace wstore::cuda {

// Names memory of this thread's device, for SharedMemory::Open in any process.
absl::StatusOr<std::string> NameMemory(const void* data, uint64_t size_bytes);

// Memory of other processes that was opened, the latest few of it. Threads: one at a time.
class SharedMemory {
 public:
  SharedMemory() = default;
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // What the name stands for, on this thread's device. It may be read until this object is gone, or
  // eight others have been opened.
  //   kInvalidArgument: no such name, or less memory than `size_bytes`
  //   kFailedPrecondition: of another process, and from a pool
  absl::StatusOr<const uint8_t*> Open(std::string_view name, uint64_t size_bytes);

 private:
  struct Opened {
    std::string handle;
    void* base = nullptr;
  };
  absl::StatusOr<void*> OpenHandle(const std::string& handle);

  std::list<Opened> opened_;  // latest first
};

}  // namespace wstore::cuda
