// Device arithmetic that several kernels share. Written so that the kernels also compile as host
// code, under tests/support/cuda_emulation.h.
#pragma once

#include <cstdint>

namespace wstore::cuda {

// Names the shared memory that a launch gives to a block.
#if defined(__CUDACC__)
#define WSTORE_DYNAMIC_SHARED(Type, name)                              \
  extern __shared__ __align__(16) unsigned char wstore_shared_bytes[]; \
  Type& name = *reinterpret_cast<Type*>(wstore_shared_bytes)
#else
#define WSTORE_DYNAMIC_SHARED(Type, name) static Type name
#endif

inline constexpr uint32_t kWarpLanes = 32;
inline constexpr uint32_t kFullWarp = 0xffffffffu;

__device__ __forceinline__ uint64_t RoundUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// The multipliers A of one block of a tensor, both lanes: Philox2x64-10, made odd. See
// common/fingerprint.cc.
struct Multipliers {
  alignas(16) uint64_t lane[2];
};

__device__ __forceinline__ Multipliers BlockMultipliers(uint64_t key, uint64_t high,
                                                        uint64_t block) {
  constexpr uint64_t kMultiplier = 0xD2B74407B1CE6E93;
  constexpr uint64_t kWeyl = 0x9E3779B97F4A7C15;
  uint64_t x = block;
  uint64_t y = high;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t upper = __umul64hi(x, kMultiplier);
    const uint64_t lower = x * kMultiplier;
    x = upper ^ key ^ y;
    y = lower;
    key += kWeyl;
  }
  return {{x | 1, y | 1}};
}

__device__ __forceinline__ uint64_t Shuffle64(uint64_t value, int lane) {
  return __shfl_sync(kFullWarp, static_cast<unsigned long long>(value), lane);
}

// The sum over the warp, in every lane.
__device__ __forceinline__ uint64_t WarpSum(uint64_t value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    value += __shfl_xor_sync(kFullWarp, static_cast<unsigned long long>(value), step);
  }
  return value;
}

// The sum over this lane and those below it.
__device__ __forceinline__ uint32_t WarpInclusiveSum(uint32_t value, uint32_t lane) {
#pragma unroll
  for (uint32_t step = 1; step < kWarpLanes; step *= 2) {
#if defined(__CUDA_ARCH__)
    // The shuffle itself says whether there is a lane so far below.
    asm volatile(
        "{.reg .u32 below; .reg .pred is_there;\n"
        "shfl.sync.up.b32 below|is_there, %0, %1, 0, 0xffffffff;\n"
        "@is_there add.u32 %0, %0, below;}"
        : "+r"(value)
        : "r"(step));
#else
    const uint32_t below = __shfl_up_sync(kFullWarp, value, step);
    if (lane >= step) value += below;
#endif
  }
  return value;
}

// Adds a x b to a sum, in two multiplications and nothing else: of the upper product only its lower
// half is needed, and it can be added where it belongs.
__device__ __forceinline__ void AddProduct(uint64_t a, uint32_t b, uint64_t* sum) {
#if defined(__CUDA_ARCH__)
  asm("mad.wide.u32 %0, %1, %2, %0;" : "+l"(*sum) : "r"(static_cast<uint32_t>(a)), "r"(b));
  asm("{.reg .u32 low, high;\n"
      "mov.b64 {low, high}, %0;\n"
      "mad.lo.u32 high, %1, %2, high;\n"
      "mov.b64 %0, {low, high};}"
      : "+l"(*sum)
      : "r"(static_cast<uint32_t>(a >> 32)), "r"(b));
#else
  *sum += a * b;
#endif
}

}  // namespace wstore::cuda
