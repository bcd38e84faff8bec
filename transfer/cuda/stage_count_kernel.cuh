// Whether the bytes of tiles are what a writer would have written, as ChunkView::Parse checks it,
// and how much of each tile each cell has.
#pragma once

#include <cstdint>

#include "transfer/cuda/cell_place.cuh"
#include "transfer/cuda/device_math.cuh"
#include "transfer/cuda/offset_walk.cuh"
#include "transfer/cuda/stage_tables.h"
#include "transfer/cuda/tile_shape.cuh"

namespace wstore::cuda {

inline constexpr uint32_t kStageThreads = 256;
inline constexpr uint32_t kStageWarps = kStageThreads / kWarpLanes;

// Whether none of the values is zero. They end where `tile` may still be read up to the next
// multiple of 8.
__device__ inline bool AreChanges(const StageTile& tile, uint32_t lane) {
  const uint32_t width = tile.shape.element_bytes;
  const uint32_t size = tile.shape.changed * width;
  // One in every element, and the top bit of each.
  const uint64_t ones = width == 8   ? 1
                        : width == 4 ? 0x0000000100000001
                        : width == 2 ? 0x0001000100010001
                                     : 0x0101010101010101;
  const uint64_t tops = ones << (8 * width - 1);
  const uint64_t* const words = reinterpret_cast<const uint64_t*>(tile.bytes);
  bool fits = true;
  for (uint32_t i = lane; 8 * i < size; i += kWarpLanes) {
    uint64_t word = words[i];
    if (size - 8 * i < 8) word |= ~uint64_t{0} << 8 * (size - 8 * i);
    fits &= ((word - ones) & ~word & tops) == 0;
  }
  return fits;
}

// Whether bytes [begin, end) are zero, of which there are no more than lanes.
__device__ __forceinline__ bool AreZero(const uint8_t* bytes, uint32_t begin, uint32_t end,
                                        uint32_t lane) {
  return begin + lane >= end || bytes[begin + lane] == 0;
}

// Blocks with kEscaped changes or more, of form 1 or 2 with offsets that ascend. In all lanes.
__device__ inline uint32_t CountEscapes(const StageTile& tile, uint32_t lane) {
  const TileShape& shape = tile.shape;
  uint32_t escapes = 0;
  if (tile.form == kFormOffsets) {
    const uint16_t* const offsets =
        reinterpret_cast<const uint16_t*>(tile.bytes + shape.positions_at());
    for (uint32_t i = lane; i + kEscaped <= shape.changed; i += kWarpLanes) {
      const uint32_t block = offsets[i] / kBlockElementCount;
      const bool is_first = i == 0 || offsets[i - 1] / kBlockElementCount != block;
      escapes += is_first && offsets[i + kEscaped - 1] / kBlockElementCount == block ? 1 : 0;
    }
  } else {
    constexpr uint32_t kBlockWords = kBlockElementCount / 32;
    for (uint32_t word = 0; word * 32 < shape.elements; word += kWarpLanes) {
      uint32_t count = __popc(LoadMask(tile, word, lane));
      for (uint32_t step = 1; step < kBlockWords; step *= 2) {
        count += __shfl_xor_sync(kFullWarp, count, step);
      }
      escapes += lane % kBlockWords == 0 && count >= kEscaped ? 1 : 0;
    }
  }
  return static_cast<uint32_t>(WarpSum(escapes));
}

// Whether all but the offsets is as it must be, these ascending. All lanes; each says its part.
__device__ inline bool FitsForm(const StageTile& tile, uint32_t lane) {
  TileShape shape = tile.shape;
  const uint32_t size = shape.CanonicalBytes(tile.form);
  bool fits = AreZero(tile.bytes, size, static_cast<uint32_t>(RoundUp(size, 8)), lane);
  if (tile.form != kFormDense) {
    fits &= AreChanges(tile, lane);
    fits &= AreZero(tile.bytes, shape.changed * shape.element_bytes, shape.positions_at(), lane);
  }
  const bool may_be_blocks = tile.form == kFormOffsets || tile.form == kFormBitmap;
  if (may_be_blocks && ChooseForm(shape) == kFormBlocks) shape.escapes = CountEscapes(tile, lane);
  return fits && ChooseForm(shape) == tile.form;
}

// What a lane has seen of the entries in a cell.
struct LaneFound {
  uint64_t low = UINT64_MAX;
  uint64_t high = 0;
  uint64_t same = 0;  // place less offset of the first
  uint32_t count = 0;
  uint32_t first = UINT32_MAX;
  uint32_t last = 0;
  bool is_same = true;

  __device__ __forceinline__ void Add(uint32_t offset, uint64_t place) {
    if (count++ == 0) {
      same = place - offset;
      first = offset;
    }
    is_same &= place - offset == same;
    low = place < low ? place : low;
    high = place > high ? place : high;
    last = offset;
  }
};

// Joins what the lanes have seen. All lanes.
__device__ inline StageFound Join(const LaneFound& own) {
  StageFound found{};
  found.count = static_cast<uint32_t>(WarpSum(own.count));
  const uint32_t lanes = __ballot_sync(kFullWarp, own.count != 0);
  if (lanes == 0) return found;
  const uint64_t same = Shuffle64(own.same, __ffs(static_cast<int>(lanes)) - 1);
  const bool differs = own.count != 0 && (!own.is_same || own.same != same);
  found.is_same = __any_sync(kFullWarp, differs) ? 0 : 1;
  uint64_t low = own.low;
  uint64_t high = own.high;
  uint32_t first = own.first;
  uint32_t last = own.last;
  for (int step = 16; step > 0; step /= 2) {
    const uint64_t other_low =
        __shfl_xor_sync(kFullWarp, static_cast<unsigned long long>(low), step);
    const uint64_t other_high =
        __shfl_xor_sync(kFullWarp, static_cast<unsigned long long>(high), step);
    const uint32_t other_first = __shfl_xor_sync(kFullWarp, first, step);
    const uint32_t other_last = __shfl_xor_sync(kFullWarp, last, step);
    low = other_low < low ? other_low : low;
    high = other_high > high ? other_high : high;
    first = other_first < first ? other_first : first;
    last = other_last > last ? other_last : last;
  }
  found.low = low;
  found.spread = high - low;
  found.first = first;
  found.last = last;
  return found;
}

// Counts a job's entries, and says whether its offsets ascend and are as many as they must be. All
// lanes; each says its part.
__device__ inline bool CountEntries(const StageTables& tables, const StageJob& job,
                                    const StageTile& tile, WalkShared& shared, uint32_t lane,
                                    StageFound* found) {
  OffsetWalk walk(tile, shared, lane);
  if (!walk.Start()) return false;
  const bool is_whole = (job.flags & kStageWhole) != 0;
  const bool is_sought = job.cell != kNoCell && !is_whole;
  const uint64_t first_element = uint64_t{job.tile} * kTileElementCount;
  LaneFound own;
  bool fits = true;
  uint32_t seen = 0;
  uint32_t first = 0;
  int32_t last = -1;
  for (uint32_t count; walk.Next(&count); seen += count) {
    for (uint32_t i = lane; i < count; i += kWarpLanes) {
      const uint32_t offset = shared.window[i];
      const int32_t before = i > 0 ? static_cast<int32_t>(shared.window[i - 1]) : last;
      fits &= static_cast<int32_t>(offset) > before && offset < job.elements;
      uint64_t place;
      if (is_sought && FindPlace(tables.cells[job.cell], first_element + offset, &place)) {
        own.Add(offset, place);
      }
    }
    if (count == 0) continue;
    if (seen == 0) first = shared.window[0];
    last = shared.window[count - 1];
  }
  if (is_sought) {
    *found = Join(own);
  } else if (is_whole && last >= 0) {
    *found = {job.base + first,           static_cast<uint32_t>(last) - first, seen, 1, first,
              static_cast<uint32_t>(last)};
  }
  return fits && seen == tile.shape.changed;
}

// A warp for each job.
__global__ void __launch_bounds__(kStageThreads) StageCountKernel(const StageTables tables) {
  __shared__ WalkShared shared[kStageWarps];
  const uint32_t lane = threadIdx.x % kWarpLanes;
  const uint32_t warp = threadIdx.x / kWarpLanes;
  const uint32_t number = blockIdx.x * kStageWarps + warp;
  if (number >= tables.job_count) return;
  const StageJob job = tables.jobs[number];
  const StageTile tile = TileOf(job);
  StageFound found{};
  bool fits = CountEntries(tables, job, tile, shared[warp], lane, &found);
  // Only of offsets that ascend.
  const bool ascends = !__any_sync(kFullWarp, !fits);
  if (ascends && (job.flags & kStageChecks) != 0) fits = FitsForm(tile, lane);
  if (__any_sync(kFullWarp, !fits)) found = {};
  if (!fits) tables.faults[job.chunk] = 1;
  if (lane == 0) tables.found[number] = found;
}

}  // namespace wstore::cuda
