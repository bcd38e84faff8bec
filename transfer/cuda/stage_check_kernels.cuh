// Whether the bytes of chunks are those that their checksums were taken of; and their headers and
// entries for the host to read.
#pragma once

#include <cstdint>

#include "transfer/cuda/chunk_hash.cuh"
#include "transfer/cuda/device_math.cuh"
#include "transfer/cuda/stage_tables.h"
#include "transfer/cuda/xxh3.cuh"

namespace wstore::cuda {

inline constexpr uint32_t kSumThreads = 256;

// Copies header and entries, as far as a chunk can have them. A thread block.
__device__ inline void CopyHead(const StageSource& source, uint8_t* head) {
  const uint64_t* const words = reinterpret_cast<const uint64_t*>(source.data);
  uint64_t* const out = reinterpret_cast<uint64_t*>(head);
  const uint64_t counts = words[3];
  const uint32_t tensors = static_cast<uint32_t>(counts);
  const uint32_t tiles = static_cast<uint32_t>(counts >> 32);
  uint32_t size = kHeaderWords;
  size += kTensorEntryWords * (tensors < kSpanTileCount ? tensors : kSpanTileCount);
  size += tiles < kSpanTileCount ? tiles : kSpanTileCount;
  if (size > source.size / 8) size = source.size / 8;
  for (uint32_t i = threadIdx.x; i < size; i += blockDim.x) out[i] = words[i];
}

struct StreamWords {
  uint64_t value[kLaneWords];
};

// A lane's words of one KiB of a chunk's stream, zero past its end.
__device__ __forceinline__ StreamWords LoadStream(const StageSource& source, uint32_t block,
                                                  uint32_t lane) {
  const uint64_t* const words = reinterpret_cast<const uint64_t*>(source.data);
  StreamWords loaded;
#pragma unroll
  for (uint32_t i = 0; i < kLaneWords; ++i) {
    const uint32_t word = block * kXxhBlockWords + i * kWarpLanes + lane;
    loaded.value[i] = word < (source.size - 8) / 8 ? words[ChunkWord(word)] : 0;
  }
  return loaded;
}

// A thread block for each piece of a source.
__global__ void __launch_bounds__(kSumThreads) StageSumKernel(const StageTables tables) {
  constexpr uint32_t kWarpBlocks = kPieceBytes / 1024 / (kSumThreads / kWarpLanes);
  const Piece piece = tables.pieces[blockIdx.x];
  const StageSource source = tables.sources[piece.chunk];
  const uint32_t lane = threadIdx.x % kWarpLanes;
  const uint32_t stream_bytes = source.size - 8;
  const uint32_t whole = WholeBlocks(stream_bytes);
  const uint32_t first =
      piece.number * (kPieceBytes / 1024) + threadIdx.x / kWarpLanes * kWarpBlocks;
  const uint32_t end = first + kWarpBlocks < whole + 1 ? first + kWarpBlocks : whole + 1;
  if (piece.number == 0) CopyHead(source, tables.heads + uint64_t{piece.chunk} * kHeadBytes);
  if (first >= end) return;
  // The next KiB is on its way while one is summed.
  StreamWords words = LoadStream(source, first, lane);
  for (uint32_t block = first; block < end; ++block) {
    const StreamWords now = words;
    if (block + 1 < end) words = LoadStream(source, block + 1, lane);
    const uint32_t stripes =
        block < whole ? kXxhBlockWords / kXxhStripeWords : LastStripes(stream_bytes);
    const uint64_t sum = SumStripes(now.value, stripes, lane);
    if (lane < kXxhStripeWords) tables.block_sums[source.sums_at + block * 8 + lane] = sum;
  }
}

// One warp a block, and one source.
__global__ void __launch_bounds__(kSealThreads) StageHashKernel(const StageTables tables) {
  __shared__ uint64_t shared_sums[8 * kSealSteps];
  const StageSource source = tables.sources[blockIdx.x];
  const auto* const words = reinterpret_cast<const unsigned long long*>(source.data);
  const uint64_t hash = ChunkHash(words, source.size - 8, tables.block_sums + source.sums_at,
                                  threadIdx.x, shared_sums);
  if (threadIdx.x == 0) tables.verdicts[blockIdx.x] = hash == words[kChecksumWord] ? 1 : 0;
}

}  // namespace wstore::cuda
