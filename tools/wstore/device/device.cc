#include "tools/wstore/device/device.h"

#include <sys/mman.h>

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace wstore::cli {
namespace {

class HostMemory final : public Device {
 public:
  ~HostMemory() override {
    for (const auto& [memory, size_bytes] : mapped_) munmap(memory, size_bytes);
  }
  absl::StatusOr<void*> Allocate(uint64_t size_bytes) override {
    void* const memory =
        mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory: ", size_bytes, " bytes"));
    }
    mapped_.emplace_back(memory, size_bytes);
    return memory;
  }
  absl::StatusOr<std::shared_ptr<MemoryBackend>> MakeBackend() override { return nullptr; }
  void UseInThread() override {}

 private:
  std::vector<std::pair<void*, uint64_t>> mapped_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const std::string& name) {
  if (name == "cpu") return std::make_unique<HostMemory>();
  int index = 0;
  if (absl::StartsWith(name, "cuda:") && absl::SimpleAtoi(name.substr(5), &index) && index >= 0) {
    return OpenCudaDevice(index);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--device: '", name, "' is none; give cpu, or cuda:N with N from 0"));
}

}  // namespace wstore::cli
