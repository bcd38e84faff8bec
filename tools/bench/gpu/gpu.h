// What the GPU benchmarks share: the device, its clock, and the copy that they are compared with.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "transfer/cuda/buffer.h"
#include "wstore/cuda.h"
#include "wstore/manifest.h"

namespace wstore::bench {

class Gpu {
 public:
  // device: "cuda:0".
  //   kInvalidArgument: anything else than cuda:N, or no such device
  static absl::StatusOr<std::unique_ptr<Gpu>> Open(const std::string& device);
  ~Gpu();

  int device() const { return device_; }
  CudaStream stream() const { return stream_.get(); }
  CudaMemory* memory() const { return memory_.get(); }

  absl::StatusOr<cuda::DeviceBuffer<uint8_t>> Allocate(uint64_t size_bytes) const {
    return cuda::DeviceBuffer<uint8_t>::Create(size_bytes, memory(), stream());
  }

  // The median time on the device, in seconds, of what `work` puts on the stream, warmed up.
  absl::StatusOr<double> Time(const std::function<absl::Status()>& work) const;
  // The same of a copy that reads `size_bytes` and writes as many.
  absl::StatusOr<double> TimeCopy(const void* from, void* to, uint64_t size_bytes) const;

 private:
  Gpu(int device, OwnedCudaStream stream)
      : device_(device), stream_(std::move(stream)), memory_(MakeCudaPoolMemory()) {}

  const int device_;
  OwnedCudaStream stream_;
  std::unique_ptr<CudaMemory> memory_;
  cudaEvent_t begun_ = nullptr;
  cudaEvent_t ended_ = nullptr;
};

// A manifest, one tensor behind the other from an address on.
struct Model {
  Manifest manifest;
  std::vector<uint64_t> offsets;  // of tensors, in bytes; multiples of 256
  uint64_t size_bytes = 0;

  explicit Model(Manifest made);
  // `tensors` equal ones of bf16, f32, ...
  static Model Equal(uint64_t elements, Dtype dtype, uint64_t tensors);
  // The tensors of Qwen3-30B-A3B, of so many of its 48 layers.
  static Model Qwen3Moe(uint64_t layers);

  std::vector<const void*> At(const void* start) const;
};

}  // namespace wstore::bench
