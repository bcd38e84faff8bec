// The payload of chunks, copied from the slab and summed on the way (one thread block for each 64
// KiB), and the ends of their checksums (one warp a chunk).
#pragma once

#include <cstdint>

#include "transfer/cuda/chunk_hash.cuh"
#include "transfer/cuda/chunk_kernels.cuh"
#include "transfer/cuda/device_math.cuh"
#include "transfer/cuda/tables.h"
#include "transfer/cuda/xxh3.cuh"

namespace wstore::cuda {

inline constexpr uint32_t kAssembleThreads = 256;
inline constexpr uint32_t kAssembleBlocksPerMultiprocessor = 5;

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
  static constexpr uint32_t kWords = kLaneWords;
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
#pragma unroll
  for (uint32_t i = 0; i < BlockWords::kWords; ++i) {
    if ((words.is_payload >> i & 1) == 0) continue;
    out[ChunkWord(block * kXxhBlockWords + lane + i * kWarpLanes)] = words.value[i];
  }
  const uint64_t sum = SumStripes(words.value, stripes, lane);
  if (lane < kXxhStripeWords) {
    tables.block_sums[(chunk.arena_at / 1024 + block) * 8 + lane] = sum;
  }
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
  for (uint32_t p = tables.before->pieces + blockIdx.x; p < pieces; p += gridDim.x) {
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
  for (uint32_t i = tables.before->chunks + blockIdx.x; i < chunks; i += gridDim.x) {
    const ChunkRecord& chunk = tables.chunks[i];
    auto* const words = reinterpret_cast<unsigned long long*>(tables.arena + chunk.arena_at);
    const uint64_t hash =
        ChunkHash(words, chunk.size - 8, tables.block_sums + chunk.arena_at / 1024 * 8, threadIdx.x,
                  shared_sums);
    if (threadIdx.x == 0) words[kChecksumWord] = hash;
  }
}

}  // namespace wstore::cuda
