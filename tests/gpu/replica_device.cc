// The device memory that the replica's conformance suite runs on here.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/check.h"
#include "tests/conformance/replica/device.h"
#include "transfer/cuda/buffer.h"
#include "transfer/cuda/device_scope.h"
#include "wstore/cuda_replica.h"

namespace wstore::testing {
namespace {

template <typename T>
T OrDie(absl::StatusOr<T> made) {
  if (!made.ok()) std::cout << made.status() << std::endl;
  WSTORE_CHECK(made.ok());
  return *std::move(made);
}

void OrDie(const absl::Status& status) {
  if (!status.ok()) std::cout << status << std::endl;
  WSTORE_CHECK(status.ok());
}

// The GPU that weights are on; or several, as in "0,1", which the devices that are made take in
// turn. The suite's threads have another one: the first.
int NextDevice() {
  static std::string taken;
  static uint64_t made = 0;
  const char* const text = std::getenv("WSTORE_TEST_DEVICE");
  if (text == nullptr) {
    taken.clear();
    return 0;
  }
  if (std::exchange(taken, text) != text) made = 0;
  const std::vector<std::string> all = absl::StrSplit(text, ',');
  int index = 0;
  WSTORE_CHECK(absl::SimpleAtoi(all[made++ % all.size()], &index));
  return index;
}

class CudaDevice final : public TestDevice {
 public:
  explicit CudaDevice(int index) : index_(index), stream_(Stream(index)) {}
  ~CudaDevice() override { (void)stream_.Synchronize(); }

  void* Allocate(uint64_t size_bytes) override {
    const cuda::DeviceScope scope(index_);
    const uint64_t size = std::max<uint64_t>(size_bytes, 1);
    buffers_.push_back(OrDie(cuda::DeviceBuffer<uint8_t>::Create(size, memory_, stream_.get())));
    OrDie(cuda::ZeroAsync(buffers_.back().get(), size, stream_.get()));
    OrDie(stream_.Synchronize());
    return buffers_.back().get();
  }
  void Read(const void* from, uint64_t size_bytes, uint8_t* to) override {
    const cuda::DeviceScope scope(index_);
    OrDie(cuda::CopyAsync(static_cast<const uint8_t*>(from), to, size_bytes, stream_.get()));
    OrDie(stream_.Synchronize());
  }
  void Write(const uint8_t* from, uint64_t size_bytes, void* to) override {
    const cuda::DeviceScope scope(index_);
    OrDie(cuda::CopyAsync(from, static_cast<uint8_t*>(to), size_bytes, stream_.get()));
    OrDie(stream_.Synchronize());
  }
  // Half of the suite's updates do not fit on the device, so that both kinds of staging are tested.
  std::shared_ptr<MemoryBackend> MakeBackend(int) override {
    CudaBackendOptions options;
    options.stream = stream_.get();
    options.memory = memory_;
    options.device_budget_bytes = made_++ % 2 == 0 ? UINT64_MAX : 2000;
    options.pinned_bytes = 64 << 20;
    return OrDie(MakeCudaBackend(options));
  }

 private:
  // Replicas outlive the device that their memory is from.
  static CudaMemory* Memory() {
    static CudaMemory* const memory = MakeCudaPoolMemory().release();
    return memory;
  }
  static const OwnedCudaStream& Stream(int index) {
    const cuda::DeviceScope scope(index);
    static auto* const streams = new std::map<int, OwnedCudaStream>;
    const auto found = streams->find(index);
    if (found != streams->end()) return found->second;
    return streams->emplace(index, OrDie(OwnedCudaStream::Create())).first->second;
  }

  const int index_;
  const OwnedCudaStream& stream_;
  CudaMemory* const memory_ = Memory();
  std::vector<cuda::DeviceBuffer<uint8_t>> buffers_;
  uint64_t made_ = 0;
};

}  // namespace

// The suite knows nothing of GPUs: without one, the test that asks first ends the process, skipped.
std::unique_ptr<TestDevice> MakeTestDevice() {
  const absl::Status status = UseCudaDevice(0);
  if (!status.ok()) {
    std::cout << "test-skipped: no GPU: " << status.message() << std::endl;
    std::_Exit(0);
  }
  return std::make_unique<CudaDevice>(NextDevice());
}

}  // namespace wstore::testing
