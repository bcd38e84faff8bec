#include "tools/bench/gpu/workload.h"

#include <algorithm>

#include "common/status_macros.h"
#include "transfer/cuda/runtime.h"

namespace wstore::bench {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kBlocks = 132 * 16;

// splitmix64's output function (Steele, Lea and Flood 2014) of a counter.
__device__ __forceinline__ uint64_t Mix(uint64_t seed, uint64_t i) {
  uint64_t z = seed * 0xd1342543de82ef95 + (i + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

__global__ void FillKernel(uint64_t* memory, uint64_t words, uint64_t seed) {
  for (uint64_t i = blockIdx.x * kThreads + threadIdx.x; i < words; i += gridDim.x * kThreads) {
    memory[i] = Mix(seed, i);
  }
}

__global__ void ReadKernel(const uint4* memory, uint64_t count, uint32_t* sink) {
  constexpr uint64_t kUnroll = 4;
  const uint64_t stride = uint64_t{gridDim.x} * kThreads;
  uint32_t folded = 0;
  uint64_t i = blockIdx.x * kThreads + threadIdx.x;
  for (; i + (kUnroll - 1) * stride < count; i += kUnroll * stride) {
    uint4 words[kUnroll];
#pragma unroll
    for (uint64_t k = 0; k < kUnroll; ++k) words[k] = __ldcs(memory + i + k * stride);
#pragma unroll
    for (uint64_t k = 0; k < kUnroll; ++k) {
      folded ^= words[k].x ^ words[k].y ^ words[k].z ^ words[k].w;
    }
  }
  for (; i < count; i += stride) folded ^= memory[i].x ^ memory[i].y ^ memory[i].z ^ memory[i].w;
  // Nearly never, but the compiler cannot know.
  if (folded == 0x9e3779b9) *sink = folded;
}

template <typename Element>
__global__ void ChangeKernel(const Element* from, Element* to, uint64_t elements,
                             uint64_t threshold, uint64_t seed) {
  for (uint64_t i = blockIdx.x * kThreads + threadIdx.x; i < elements; i += gridDim.x * kThreads) {
    const uint64_t draw = Mix(seed, i);
    const Element bits = draw >> 63 != 0 ? 1 : 3;
    to[i] = (draw & UINT32_MAX) < threshold ? from[i] ^ bits : from[i];
  }
}

__global__ void ScatterKernel(const uint32_t* indices, const uint16_t* values, uint64_t count,
                              uint16_t* to) {
  for (uint64_t i = blockIdx.x * kThreads + threadIdx.x; i < count; i += gridDim.x * kThreads) {
    to[indices[i]] = values[i];
  }
}

// Each thread decides for a stretch of its own, so that indices ascend nearly everywhere.
__global__ void MakeScatterKernel(uint64_t elements, uint64_t threshold, uint64_t seed,
                                  uint32_t* indices, uint16_t* values, unsigned long long* count) {
  constexpr uint64_t kStretch = 4096;
  for (uint64_t begin = (blockIdx.x * kThreads + threadIdx.x) * kStretch; begin < elements;
       begin += gridDim.x * kThreads * kStretch) {
    const uint64_t end = begin + kStretch < elements ? begin + kStretch : elements;
    uint32_t found = 0;
    for (uint64_t i = begin; i < end; ++i) found += (Mix(seed, i) & UINT32_MAX) < threshold;
    unsigned long long at = atomicAdd(count, static_cast<unsigned long long>(found));
    for (uint64_t i = begin; i < end; ++i) {
      const uint64_t draw = Mix(seed, i);
      if ((draw & UINT32_MAX) >= threshold) continue;
      indices[at] = static_cast<uint32_t>(i);
      values[at++] = static_cast<uint16_t>(draw >> 40);
    }
  }
}

uint64_t Threshold(double density) { return static_cast<uint64_t>(density * 4294967296.0); }

template <typename Element>
absl::Status Change(const void* from, void* to, uint64_t elements, uint64_t threshold,
                    uint64_t seed, CudaStream stream) {
  return cuda::Launch("the launch of ChangeKernel", ChangeKernel<Element>, kBlocks, kThreads,
                      stream, static_cast<const Element*>(from), static_cast<Element*>(to),
                      elements, threshold, seed);
}

}  // namespace

absl::Status FillRandom(void* memory, uint64_t size_bytes, uint64_t seed, CudaStream stream) {
  return cuda::Launch("the launch of FillKernel", FillKernel, kBlocks, kThreads, stream,
                      static_cast<uint64_t*>(memory), size_bytes / 8, seed);
}

absl::Status ReadAll(const void* memory, uint64_t size_bytes, uint32_t* sink, CudaStream stream) {
  return cuda::Launch("the launch of ReadKernel", ReadKernel, kBlocks, kThreads, stream,
                      static_cast<const uint4*>(memory), size_bytes / 16, sink);
}

absl::Status CopyAndChange(const void* from, void* to, uint64_t elements, uint32_t element_bytes,
                           double density, uint64_t seed, CudaStream stream) {
  const uint64_t threshold = Threshold(density);
  switch (element_bytes) {
    case 1:
      return Change<uint8_t>(from, to, elements, threshold, seed, stream);
    case 2:
      return Change<uint16_t>(from, to, elements, threshold, seed, stream);
    case 4:
      return Change<uint32_t>(from, to, elements, threshold, seed, stream);
    default:
      return Change<uint64_t>(from, to, elements, threshold, seed, stream);
  }
}

absl::Status Scatter(const uint32_t* indices, const uint16_t* values, uint64_t count, uint16_t* to,
                     CudaStream stream) {
  const auto blocks = static_cast<uint32_t>(
      std::min<uint64_t>(std::max<uint64_t>((count + kThreads - 1) / kThreads, 1), 1 << 20));
  return cuda::Launch("the launch of ScatterKernel", ScatterKernel, blocks, kThreads, stream,
                      indices, values, count, to);
}

absl::Status MakeScatter(uint64_t elements, double density, uint64_t seed, uint32_t* indices,
                         uint16_t* values, unsigned long long* count, CudaStream stream) {
  return cuda::Launch("the launch of MakeScatterKernel", MakeScatterKernel, kBlocks, kThreads,
                      stream, elements, Threshold(density), seed, indices, values, count);
}

}  // namespace wstore::bench
