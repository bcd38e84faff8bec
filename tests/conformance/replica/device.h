// Where the memory of the replicas under test is. Each program of the suite links one kind.
#pragma once

#include <cstdint>
#include <memory>

#include "transfer/replica/backend.h"

namespace wstore::testing {

class TestDevice {
 public:
  virtual ~TestDevice() = default;

  // Zeros, aligned for any element. Freed with the device. Host memory is there once it is written.
  virtual void* Allocate(uint64_t size_bytes) = 0;
  virtual void Read(const void* from, uint64_t size_bytes, uint8_t* to) = 0;
  virtual void Write(const uint8_t* from, uint64_t size_bytes, void* to) = 0;

  virtual std::shared_ptr<MemoryBackend> MakeBackend(int threads) = 0;
};

std::unique_ptr<TestDevice> MakeTestDevice();

}  // namespace wstore::testing
