#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "common/check.h"
#include "tests/conformance/replica/device.h"
#include "transfer/replica/host_backend.h"

namespace wstore::testing {
namespace {

class HostDevice final : public TestDevice {
 public:
  ~HostDevice() override {
    for (const auto& [memory, size] : blocks_) munmap(memory, size);
  }
  void* Allocate(uint64_t size_bytes) override {
    const size_t size = std::max<size_t>(size_bytes, 1);
    void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    WSTORE_CHECK(memory != MAP_FAILED);
    blocks_.emplace_back(memory, size);
    return memory;
  }
  void Read(const void* from, uint64_t size_bytes, uint8_t* to) override {
    std::memcpy(to, from, size_bytes);
  }
  void Write(const uint8_t* from, uint64_t size_bytes, void* to) override {
    std::memcpy(to, from, size_bytes);
  }
  std::shared_ptr<MemoryBackend> MakeBackend(int threads) override {
    return MakeHostBackend(threads);
  }

 private:
  std::vector<std::pair<void*, size_t>> blocks_;
};

}  // namespace

std::unique_ptr<TestDevice> MakeTestDevice() { return std::make_unique<HostDevice>(); }

}  // namespace wstore::testing
