// The payload of chunks, copied from the slab and summed on the way (one thread block for each 64
// KiB), and the ends of their checksums (one warp a chunk).
#pragma once

#include <cstdint>

#include "transfer/cuda/chunk_kernels.cuh"
#include "transfer/cuda/device_math.cuh"
#include "transfer/cuda/tables.h"
#include "transfer/cuda/xxh3.cuh"

namespace wstore::cuda {

inline constexpr uint32_t kAssembleThreads = 256;
inline constexpr uint32_t kAssembleBlocksPerMultiprocessor = 5;
inline constexpr uint32_t kSealThreads = 32;
// Steps of the chain whose sums are in shared memory.
inline constexpr uint32_t kSealSteps = 128;
// And those in registers.
inline constexpr uint32_t kSealBatch = 8;

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

struct AssembleShared {
  uint32_t starts[kSpanTileCount];
  uint64_t slab_at[kSpanTileCount];
};

// The last item that starts at or before `byte`.
__device__ __forceinline__ uint32_t FindItem(const AssembleShared& shared, uint32_t items,
                                             uint32_t byte) {
  uint32_t low = 0;
  uint32_t high = items;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (shared.starts[middle] <= byte) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// A lane's words of one KiB of the stream of a chunk.
struct BlockWords {
  static constexpr uint32_t kWords = kXxhBlockWords / kWarpLanes;
  uint64_t value[kWords];
  uint32_t is_payload;  // one bit a word: it is to be written, too
};

// Starts the loads of one KiB. item: of the lane's last word before this block; moves on.
__device__ __forceinline__ BlockWords LoadBlock(const DiffTables& tables,
                                                const AssembleShared& shared,
                                                const ChunkRecord& chunk, uint32_t block,
                                                uint32_t lane, uint32_t* item) {
  const uint32_t stream_words = (chunk.size - 8) / 8;
  BlockWords words;
  words.is_payload = 0;
#pragma unroll
  for (uint32_t i = 0; i < BlockWords::kWords; ++i) {
    const uint32_t stream_word = block * kXxhBlockWords + lane + i * kWarpLanes;
    const uint32_t byte = ChunkWord(stream_word) * 8;
    words.value[i] = 0;
    if (stream_word >= stream_words) continue;
    if (byte < chunk.payload_at) {
      words.value[i] = *reinterpret_cast<const uint64_t*>(tables.arena + chunk.arena_at + byte);
      continue;
    }
    while (*item + 1 < chunk.items && shared.starts[*item + 1] <= byte) ++*item;
    words.value[i] = *reinterpret_cast<const uint64_t*>(tables.slab + shared.slab_at[*item] + byte -
                                                        shared.starts[*item]);
    words.is_payload |= 1u << i;
  }
  return words;
}

// Puts one KiB of a chunk in its place and sums it. All lanes of a warp.
__device__ __forceinline__ void StoreBlock(const DiffTables& tables, const ChunkRecord& chunk,
                                           uint32_t block, uint32_t lane, const BlockWords& words) {
  const uint32_t stream_bytes = chunk.size - 8;
  uint64_t* const out = reinterpret_cast<uint64_t*>(tables.arena + chunk.arena_at);
  const uint32_t stripes = block < WholeBlocks(stream_bytes) ? kXxhBlockWords / kXxhStripeWords
                                                             : LastStripes(stream_bytes);
  uint64_t products = 0;
  uint64_t values = 0;
#pragma unroll
  for (uint32_t i = 0; i < BlockWords::kWords; ++i) {
    const uint32_t place = lane + i * kWarpLanes;
    if ((words.is_payload >> i & 1) != 0) {
      out[ChunkWord(block * kXxhBlockWords + place)] = words.value[i];
    }
    if (place / kXxhStripeWords < stripes) {
      products += XxhProduct(words.value[i], place);
      values += words.value[i];
    }
  }
  for (int step = 8; step <= 16; step *= 2) {
    products += __shfl_xor_sync(kFullWarp, static_cast<unsigned long long>(products), step);
    values += __shfl_xor_sync(kFullWarp, static_cast<unsigned long long>(values), step);
  }
  values = __shfl_xor_sync(kFullWarp, static_cast<unsigned long long>(values), 1);
  if (lane < kXxhStripeWords) {
    tables.block_sums[(chunk.arena_at / 1024 + block) * 8 + lane] = products + values;
  }
}

// Joins the sums of a chunk's KiB and writes its checksum. One warp; what other blocks wrote must
// be visible.
__device__ inline void SealChunk(const DiffTables& tables, const ChunkRecord& chunk,
                                 uint32_t thread, uint64_t* shared_sums) {
  const uint32_t lane = thread % 8;
  const uint32_t stream_bytes = chunk.size - 8;
  auto* const words = reinterpret_cast<unsigned long long*>(tables.arena + chunk.arena_at);
  const auto word_at = [words](uint32_t i) -> uint64_t { return words[ChunkWord(i)]; };
  if (stream_bytes <= 240) {
    if (thread == 0) words[kChecksumWord] = XxhShort(word_at, stream_bytes);
    return;
  }
  const unsigned long long* const sums = tables.block_sums + chunk.arena_at / 1024 * 8;
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
  if (thread == 0) words[kChecksumWord] = XxhAvalanche(folded + stream_bytes * kXxhPrime64[0]);
}

// A grid of any size.
__global__ void __launch_bounds__(kAssembleThreads, kAssembleBlocksPerMultiprocessor)
    AssembleKernel(const DiffTables tables) {
  __shared__ AssembleShared shared;
  constexpr uint32_t kWarpBlocks = kPieceBytes / 1024 / (kAssembleThreads / kWarpLanes);
  const uint32_t lane = threadIdx.x % kWarpLanes;
  const uint32_t pieces =
      tables.counters->pieces < tables.max_pieces ? tables.counters->pieces : tables.max_pieces;
  if (tables.counters->arena_used > tables.arena_bytes) return;
  for (uint32_t p = blockIdx.x; p < pieces; p += gridDim.x) {
    const Piece piece = tables.pieces[p];
    const ChunkRecord chunk = tables.chunks[piece.chunk];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < chunk.items; i += kAssembleThreads) {
      const ChunkItem item = tables.items[chunk.first_item + i];
      shared.starts[i] = item.chunk_at;
      shared.slab_at[i] = item.slab_at;
    }
    __syncthreads();
    const uint32_t blocks = WholeBlocks(chunk.size - 8) + 1;
    const uint32_t first =
        piece.number * (kPieceBytes / 1024) + threadIdx.x / kWarpLanes * kWarpBlocks;
    uint32_t item = FindItem(shared, chunk.items, first * 1024 + lane * 8);
    const uint32_t end = first + kWarpBlocks < blocks ? first + kWarpBlocks : blocks;
    if (first >= end) continue;
    // The next KiB is on its way while one is summed.
    BlockWords words = LoadBlock(tables, shared, chunk, first, lane, &item);
    for (uint32_t block = first; block < end; ++block) {
      const BlockWords now = words;
      if (block + 1 < end) words = LoadBlock(tables, shared, chunk, block + 1, lane, &item);
      StoreBlock(tables, chunk, block, lane, now);
    }
  }
}

// A grid of any size, one warp a block.
__global__ void __launch_bounds__(kSealThreads) SealKernel(const DiffTables tables) {
  __shared__ uint64_t shared_sums[8 * kSealSteps];
  if (tables.counters->arena_used > tables.arena_bytes) return;
  const uint32_t chunks =
      tables.counters->chunks < tables.max_chunks ? tables.counters->chunks : tables.max_chunks;
  for (uint32_t i = blockIdx.x; i < chunks; i += gridDim.x) {
    SealChunk(tables, tables.chunks[i], threadIdx.x, shared_sums);
  }
}

}  // namespace wstore::cuda
