// Weights in device memory, for tests on a GPU.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/unit/codec/weights.h"
#include "transfer/cuda/buffer.h"
#include "wstore/cuda.h"

// Ends the test case as skipped where there is no GPU.
#define REQUIRE_GPU()                                                                \
  do {                                                                               \
    const absl::Status wstore_gpu = ::wstore::UseCudaDevice(0);                      \
    if (!wstore_gpu.ok()) SKIP_TEST("no GPU: " + std::string(wstore_gpu.message())); \
  } while (false)

namespace wstore::testing {

enum class MemoryKind { kDevice, kPinned };

// A copy of weights, each tensor `shift` elements behind an aligned address.
class PlacedWeights {
 public:
  PlacedWeights(const Manifest& manifest, const Weights& weights, uint32_t shift, MemoryKind kind,
                CudaMemory* memory, CudaStream stream)
      : manifest_(manifest), stream_(stream) {
    uint64_t size = 0;
    for (const Manifest::Tensor& tensor : manifest.tensors()) {
      starts_.push_back(size + shift * tensor.element_bytes);
      size = (starts_.back() + tensor.size_bytes() + 255) / 256 * 256;
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
      addresses_.push_back(at);
      REQUIRE_OK(cuda::CopyAsync(weights.tensors[i].data(), at, weights.tensors[i].size(), stream));
    }
    REQUIRE_OK(cuda::Synchronize(stream));
  }

  const std::vector<const void*>& addresses() const { return addresses_; }

  Weights Read() const {
    Weights weights(manifest_);
    for (TensorIndex i = 0; i < manifest_.size(); ++i) {
      std::vector<uint8_t>& to = weights.tensors[i];
      REQUIRE_OK(cuda::CopyAsync(static_cast<const uint8_t*>(addresses_[i]), to.data(), to.size(),
                                 stream_));
    }
    REQUIRE_OK(cuda::Synchronize(stream_));
    return weights;
  }

 private:
  const Manifest& manifest_;
  const CudaStream stream_;
  std::vector<uint64_t> starts_;
  std::vector<const void*> addresses_;
  cuda::DeviceBuffer<uint8_t> device_;
  cuda::PinnedBuffer<uint8_t> pinned_;
};

}  // namespace wstore::testing
