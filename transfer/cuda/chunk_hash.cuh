// The checksum of a chunk: sums of single KiB, by any warp each, and the chain that joins them.
#pragma once

#include <cstdint>

#include "transfer/cuda/device_math.cuh"
#include "transfer/cuda/tables.h"
#include "transfer/cuda/xxh3.cuh"

namespace wstore::cuda {

inline constexpr uint32_t kHeaderWords = 8;
inline constexpr uint32_t kChecksumWord = 7;
inline constexpr uint32_t kTensorEntryWords = 3;

inline constexpr uint32_t kSealThreads = 32;
// Steps of the chain whose sums are in shared memory.
inline constexpr uint32_t kSealSteps = 128;
// And those in registers.
inline constexpr uint32_t kSealBatch = 8;
// Words of a KiB that a lane takes: every 32nd.
inline constexpr uint32_t kLaneWords = kXxhBlockWords / kWarpLanes;

// The word of a chunk at a place in the stream that its checksum covers: all but the checksum.
__device__ __forceinline__ uint32_t ChunkWord(uint32_t stream_word) {
  return stream_word < kChecksumWord ? stream_word : stream_word + 1;
}

// Whole KiB of a stream before its last, which is never empty; and whole stripes of the last one.
__device__ __forceinline__ uint32_t WholeBlocks(uint32_t stream_bytes) {
  return (stream_bytes - 1) / 1024;
}
__device__ __forceinline__ uint32_t LastStripes(uint32_t stream_bytes) {
  return (stream_bytes - 1) % 1024 / 64;
}

// The sum of a KiB's first stripes, for accumulator `lane` in each lane below kXxhStripeWords. All
// lanes of a warp; values: the lane's words.
__device__ __forceinline__ uint64_t SumStripes(const uint64_t (&value)[kLaneWords],
                                               uint32_t stripes, uint32_t lane) {
  uint64_t products = 0;
  uint64_t values = 0;
#pragma unroll
  for (uint32_t i = 0; i < kLaneWords; ++i) {
    const uint32_t place = lane + i * kWarpLanes;
    if (place / kXxhStripeWords < stripes) {
      products += XxhProduct(value[i], place);
      values += value[i];
    }
  }
  for (int step = 8; step <= 16; step *= 2) {
    products += __shfl_xor_sync(kFullWarp, static_cast<unsigned long long>(products), step);
    values += __shfl_xor_sync(kFullWarp, static_cast<unsigned long long>(values), step);
  }
  return products + __shfl_xor_sync(kFullWarp, static_cast<unsigned long long>(values), 1);
}

// Joins the sums of a chunk's KiB to its checksum, in thread 0. One warp; what other blocks wrote
// must be visible.
__device__ inline uint64_t ChunkHash(const unsigned long long* words, uint32_t stream_bytes,
                                     const unsigned long long* sums, uint32_t thread,
                                     uint64_t* shared_sums) {
  const uint32_t lane = thread % 8;
  const auto word_at = [words](uint32_t i) -> uint64_t { return words[ChunkWord(i)]; };
  if (stream_bytes <= 240) return thread == 0 ? XxhShort(word_at, stream_bytes) : 0;
  const uint32_t blocks = WholeBlocks(stream_bytes);
  const uint64_t secret = kXxhSecret[16 + lane];
  uint64_t sum = XxhStart(lane) + sums[lane];
  // The chain waits for nothing but itself: the next sums are on their way to registers while those
  // of this round are in shared memory.
  constexpr uint32_t kLoads = kSealSteps * 8 / kWarpLanes;
  const uint32_t end = blocks * 8;
  const unsigned long long* const rest = sums + 8;
  uint64_t ahead[kLoads];
#pragma unroll
  for (uint32_t i = 0; i < kLoads; ++i) {
    const uint32_t at = i * kWarpLanes + thread;
    ahead[i] = at < end ? rest[at] : 0;
  }
#pragma unroll 1
  for (uint32_t block = 0; block < blocks; block += kSealSteps) {
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) {
      shared_sums[i * kWarpLanes + thread] = ahead[i];
      const uint32_t at = (block + kSealSteps) * 8 + i * kWarpLanes + thread;
      ahead[i] = at < end ? rest[at] : 0;
    }
    __syncwarp();
    const uint32_t steps = blocks - block < kSealSteps ? blocks - block : kSealSteps;
    const volatile uint64_t* const from = shared_sums + lane;
    uint64_t now[kSealBatch];
#pragma unroll
    for (uint32_t i = 0; i < kSealBatch; ++i) now[i] = from[8 * i];
    uint32_t step = 0;
#pragma unroll 2
    for (; step + kSealBatch < steps; step += kSealBatch) {
      uint64_t next[kSealBatch];
#pragma unroll
      for (uint32_t i = 0; i < kSealBatch; ++i) next[i] = from[8 * (step + kSealBatch + i)];
#pragma unroll
      for (uint32_t i = 0; i < kSealBatch; ++i) sum = XxhStep(sum, secret, now[i]);
#pragma unroll
      for (uint32_t i = 0; i < kSealBatch; ++i) now[i] = next[i];
    }
#pragma unroll
    for (uint32_t i = 0; i < kSealBatch; ++i) {
      if (step + i < steps) sum = XxhStep(sum, secret, now[i]);
    }
  }
  // The last stripe, which may reach back into the one before it.
  const uint64_t value = word_at(stream_bytes / 8 - 8 + lane);
  const uint64_t keyed = value ^ XxhSecretAt(121 + 8 * lane);
  sum += (keyed & UINT32_MAX) * (keyed >> 32);
  sum += __shfl_xor_sync(kFullWarp, static_cast<unsigned long long>(value), 1);
  const uint64_t keyed_sum = sum ^ XxhSecretAt(11 + 8 * lane);
  const uint64_t other = __shfl_xor_sync(kFullWarp, static_cast<unsigned long long>(keyed_sum), 1);
  uint64_t folded = lane % 2 == 0 ? XxhFold(keyed_sum, other) : 0;
  for (int step = 1; step <= 4; step *= 2) {
    folded += __shfl_xor_sync(kFullWarp, static_cast<unsigned long long>(folded), step);
  }
  return XxhAvalanche(folded + stream_bytes * kXxhPrime64[0]);
}

}  // namespace wstore::cuda
