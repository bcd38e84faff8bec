// Weights in device memory, for tests on a GPU.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/unit/codec/weights.h"
#include "transfer/cuda/buffer.h"
#include "wstore/cuda.h"
#include "wstore/share.h"

// Ends the test case as skipped where there is no GPU.
#define REQUIRE_GPU()                                                                \
  do {                                                                               \
    const absl::Status wstore_gpu = ::wstore::UseCudaDevice(0);                      \
    if (!wstore_gpu.ok()) SKIP_TEST("no GPU: " + std::string(wstore_gpu.message())); \
  } while (false)

// Likewise where there are fewer than `count`.
#define REQUIRE_GPUS(count)                                                                     \
  do {                                                                                          \
    const absl::Status wstore_gpus = ::wstore::UseCudaDevice((count)-1);                        \
    if (!wstore_gpus.ok()) SKIP_TEST("needs more GPUs: " + std::string(wstore_gpus.message())); \
    REQUIRE_GPU();                                                                              \
  } while (false)

namespace wstore::testing {

enum class MemoryKind { kDevice, kPinned };

// A copy of weights, or of a share of them, each tensor `shift` elements behind an aligned address.
class PlacedWeights {
 public:
  PlacedWeights(const Manifest& manifest, const Weights& weights, uint32_t shift, MemoryKind kind,
                CudaMemory* memory, CudaStream stream, const Share& share = {})
      : manifest_(manifest), stream_(stream), held_(*HeldRanges(manifest, share)) {
    uint64_t size = 0;
    for (TensorIndex i = 0; i < manifest.size(); ++i) {
      const uint64_t width = manifest.tensor(i).element_bytes;
      starts_.push_back(size + shift * width);
      size = (starts_.back() + held_[i].size() * width + 255) / 256 * 256;
    }
    void* start = nullptr;
    if (kind == MemoryKind::kDevice) {
      auto buffer = cuda::DeviceBuffer<uint8_t>::Create(size + 256, memory, stream);
      REQUIRE_OK(buffer);
      device_ = *std::move(buffer);
      start = device_.get();
    } else {
      auto buffer = cuda::PinnedBuffer<uint8_t>::Create(size + 256);
      REQUIRE_OK(buffer);
      pinned_ = *std::move(buffer);
      start = pinned_.get();
    }
    for (TensorIndex i = 0; i < manifest.size(); ++i) {
      uint8_t* const at = static_cast<uint8_t*>(start) + starts_[i];
      const uint64_t width = manifest.tensor(i).element_bytes;
      addresses_.push_back(held_[i].empty() ? nullptr : at);
      REQUIRE_OK(cuda::CopyAsync(weights.tensors[i].data() + held_[i].first * width, at,
                                 held_[i].size() * width, stream));
    }
    REQUIRE_OK(cuda::Synchronize(stream));
  }

  const std::vector<const void*>& addresses() const { return addresses_; }

  // Zero where nothing is held.
  Weights Read() const {
    Weights weights(manifest_);
    for (TensorIndex i = 0; i < manifest_.size(); ++i) {
      const uint64_t width = manifest_.tensor(i).element_bytes;
      uint8_t* const to = weights.tensors[i].data() + held_[i].first * width;
      REQUIRE_OK(cuda::CopyAsync(static_cast<const uint8_t*>(addresses_[i]), to,
                                 held_[i].size() * width, stream_));
    }
    REQUIRE_OK(cuda::Synchronize(stream_));
    return weights;
  }

 private:
  const Manifest& manifest_;
  const CudaStream stream_;
  std::vector<ElementRange> held_;
  std::vector<uint64_t> starts_;
  std::vector<const void*> addresses_;
  cuda::DeviceBuffer<uint8_t> device_;
  cuda::PinnedBuffer<uint8_t> pinned_;
};

}  // namespace wstore::testing
