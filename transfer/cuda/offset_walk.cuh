// The offsets of a tile's changes out of its canonical bytes, whatever their form, a window at a
// time, by one warp. The bytes may be anything: nothing beside them is read.
#pragma once

#include <cstdint>

#include "transfer/cuda/device_math.cuh"
#include "transfer/cuda/stage_tables.h"
#include "transfer/cuda/tile_shape.cuh"

namespace wstore::cuda {

inline constexpr uint32_t kWindowEntries = 1024;
inline constexpr uint32_t kLaneBlocks = kTileElementCount / kBlockElementCount / kWarpLanes;

// Shared memory of a warp.
static_assert(kWindowEntries == 32 * kWarpLanes);
struct WalkShared {
  uint16_t window[kWindowEntries];
  // Form 0: a bit for each entry of the window that is the first of its block, and the blocks that
  // have entries, in order.
  uint32_t starts[kWindowEntries / 32];
  uint8_t blocks[kTileElementCount / kBlockElementCount];
};

// An encoded tile.
struct StageTile {
  const uint8_t* bytes;
  TileShape shape;
  uint32_t form;
};

__device__ __forceinline__ StageTile TileOf(const StageJob& job) {
  return {job.bytes,
          {job.elements, job.element_bytes, (job.packed & 0xffff) + 1, job.packed >> 18},
          job.packed >> 16 & 3};
}

__device__ __forceinline__ bool IsZeroElement(const uint8_t* values, uint32_t width, uint32_t i) {
  switch (width) {
    case 1:
      return values[i] == 0;
    case 2:
      return reinterpret_cast<const uint16_t*>(values)[i] == 0;
    case 4:
      return reinterpret_cast<const uint32_t*>(values)[i] == 0;
    default:
      return reinterpret_cast<const uint64_t*>(values)[i] == 0;
  }
}

// Four bytes of `size` from byte `at` on, zero past the end. `bytes` is at a multiple of 4, and so
// is what may be read.
__device__ __forceinline__ uint32_t LoadWord(const uint8_t* bytes, uint32_t size, uint32_t at) {
  if (at >= size) return 0;
  const uint32_t word = *reinterpret_cast<const uint32_t*>(bytes + at);
  const uint32_t have = size - at;
  return have < 4 ? word & ((1u << 8 * have) - 1) : word;
}

// One bit for each change among elements [32 word, 32 word + 32), in the forms that have a bit or
// an element for each. All lanes, which all get the word of their own lane behind `first_word`.
__device__ __forceinline__ uint32_t LoadMask(const StageTile& tile, uint32_t first_word,
                                             uint32_t lane) {
  if (tile.form == kFormBitmap) {
    return LoadWord(tile.bytes + tile.shape.positions_at(), (tile.shape.elements + 7) / 8,
                    4 * (first_word + lane));
  }
  uint32_t mask = 0;
  for (uint32_t i = 0; i < kWarpLanes; ++i) {
    const uint32_t element = (first_word + i) * 32 + lane;
    const bool is_change = element < tile.shape.elements &&
                           !IsZeroElement(tile.bytes, tile.shape.element_bytes, element);
    const uint32_t ballot = __ballot_sync(kFullWarp, is_change);
    if (lane == i) mask = ballot;
  }
  return mask;
}

// All methods are for all lanes of the warp.
class OffsetWalk {
 public:
  __device__ OffsetWalk(const StageTile& tile, WalkShared& shared, uint32_t lane)
      : tile_(tile), shared_(shared), lane_(lane) {}

  // False: form 0 with counts that do not add up.
  __device__ bool Start() { return tile_.form != kFormBlocks || DecodeCounts(); }

  // Puts the next offsets into shared.window, and their number, which may be zero, into `count`.
  // False: none is left. Those of forms 0 and 1 are as many as change.
  __device__ bool Next(uint32_t* count) {
    // Everybody has used the last ones.
    __syncwarp();
    bool is_there;
    if (tile_.form == kFormBlocks) {
      is_there = NextOfBlocks(count);
    } else if (tile_.form == kFormOffsets) {
      is_there = NextOfOffsets(count);
    } else {
      is_there = NextOfMasks(count);
    }
    __syncwarp();
    return is_there;
  }

 private:
  __device__ bool DecodeCounts() {
    const TileShape& shape = tile_.shape;
    const uint8_t* const counts = tile_.bytes + shape.positions_at();
    const uint8_t* const escapes = counts + shape.count_bytes();
    const uint32_t word = LoadWord(counts, shape.count_bytes(), 4 * lane_);
    const uint32_t first_block = kLaneBlocks * lane_;
    const uint32_t left = shape.blocks() > first_block ? shape.blocks() - first_block : 0;
    // The half of a byte that no block has.
    bool fits = left >= kLaneBlocks || word >> 4 * left == 0;
    uint32_t escaped = 0;
#pragma unroll
    for (uint32_t k = 0; k < kLaneBlocks; ++k) escaped += (word >> 4 * k & 15) == kEscaped ? 1 : 0;
    const uint32_t escaped_up_to = WarpInclusiveSum(escaped, lane_);
    fits &= __shfl_sync(kFullWarp, escaped_up_to, kWarpLanes - 1) == shape.escapes;
    uint32_t escape = escaped_up_to - escaped;
    uint32_t total = 0;
    uint32_t used = 0;
#pragma unroll
    for (uint32_t k = 0; k < kLaneBlocks; ++k) {
      uint32_t count = word >> 4 * k & 15;
      if (count == kEscaped) {
        if (escape < shape.escapes) count += escapes[escape];
        ++escape;
      }
      starts_[k] = count != 0 ? total : UINT32_MAX;
      total += count;
      used += count != 0 ? 1 : 0;
    }
    const uint32_t up_to = WarpInclusiveSum(total, lane_);
    fits &= __shfl_sync(kFullWarp, up_to, kWarpLanes - 1) == shape.changed;
    uint32_t rank = WarpInclusiveSum(used, lane_) - used;
#pragma unroll
    for (uint32_t k = 0; k < kLaneBlocks; ++k) {
      if (starts_[k] == UINT32_MAX) continue;
      starts_[k] += up_to - total;
      shared_.blocks[rank++] = static_cast<uint8_t>(first_block + k);
    }
    return !__any_sync(kFullWarp, !fits);
  }

  __device__ bool NextOfBlocks(uint32_t* count) {
    const TileShape& shape = tile_.shape;
    if (begin_ >= shape.changed) return false;
    const uint8_t* const offsets =
        tile_.bytes + shape.positions_at() + shape.count_bytes() + shape.escapes + begin_;
    const uint32_t left = shape.changed - begin_;
    *count = left < kWindowEntries ? left : kWindowEntries;
    shared_.starts[lane_] = 0;
    __syncwarp();
#pragma unroll
    for (uint32_t k = 0; k < kLaneBlocks; ++k) {
      const uint32_t at = starts_[k] - begin_;
      if (starts_[k] != UINT32_MAX && at < kWindowEntries) {
        atomicOr(&shared_.starts[at / 32], 1u << at % 32);
      }
    }
    __syncwarp();
    for (uint32_t first = 0; first < *count; first += kWarpLanes) {
      const uint32_t starts = shared_.starts[first / 32];
      const uint32_t i = first + lane_;
      if (i < *count) {
        // Entry 0 of the tile starts a block, so there is one.
        const uint32_t rank = blocks_ + __popc(starts & ((2u << lane_) - 1)) - 1;
        const uint32_t block = shared_.blocks[rank];
        shared_.window[i] = static_cast<uint16_t>(block * kBlockElementCount + offsets[i]);
      }
      blocks_ += __popc(starts);
    }
    begin_ += kWindowEntries;
    return true;
  }

  __device__ bool NextOfOffsets(uint32_t* count) {
    const TileShape& shape = tile_.shape;
    if (begin_ >= shape.changed) return false;
    const uint16_t* const offsets =
        reinterpret_cast<const uint16_t*>(tile_.bytes + shape.positions_at());
    const uint32_t left = shape.changed - begin_;
    *count = left < kWindowEntries ? left : kWindowEntries;
    for (uint32_t i = lane_; i < *count; i += kWarpLanes) shared_.window[i] = offsets[begin_ + i];
    begin_ += kWindowEntries;
    return true;
  }

  __device__ bool NextOfMasks(uint32_t* count) {
    const uint32_t first_word = begin_ / 32;
    if (begin_ >= tile_.shape.elements) return false;
    const uint32_t mask = LoadMask(tile_, first_word, lane_);
    const uint32_t own = __popc(mask);
    const uint32_t up_to = WarpInclusiveSum(own, lane_);
    *count = __shfl_sync(kFullWarp, up_to, kWarpLanes - 1);
    uint32_t at = up_to - own;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
      const uint32_t bit = __ffs(static_cast<int>(left)) - 1;
      shared_.window[at++] = static_cast<uint16_t>((first_word + lane_) * 32 + bit);
    }
    begin_ += kWindowEntries;
    return true;
  }

  const StageTile& tile_;
  WalkShared& shared_;
  const uint32_t lane_;
  uint32_t begin_ = 0;  // first entry of the next window; of masks, its first element
  // Form 0: the first entry of each of the lane's blocks, or UINT32_MAX; and how many blocks have
  // started before the next window.
  uint32_t starts_[kLaneBlocks];
  uint32_t blocks_ = 0;
};

}  // namespace wstore::cuda
