// The columns of staged pieces, as PieceBuilder makes them, from tiles that StageCountKernel has
// checked. The memory that they are read from is somebody else's: if it has changed meanwhile,
// nothing is written beside a group, nor is a place outside of what was found, and it shows.
#pragma once

#include <cstdint>

#include "transfer/cuda/stage_count_kernel.cuh"

namespace wstore::cuda {

// One group to be filled from a tile.
template <typename Element>
struct GroupWriter {
  const StageTile& tile;
  const GroupEntry& group;
  const StageFound& found;
  const PieceColumns& columns;

  __device__ __forceinline__ Element* values() const {
    return reinterpret_cast<Element*>(const_cast<uint8_t*>(columns.values) +
                                      uint64_t{group.values_at} * 8);
  }
  __device__ __forceinline__ const Element* tile_values() const {
    return reinterpret_cast<const Element*>(tile.bytes);
  }

  // Values that follow each other in the tile, and zeros behind them up to a multiple of 8.
  __device__ __forceinline__ void CopyValues(uint32_t first, uint32_t lane) const {
    constexpr uint32_t kPerWord = 8 / sizeof(Element);
    const uint32_t all = static_cast<uint32_t>(RoundUp(group.count, kPerWord));
    if (first % kPerWord == 0) {
      // By words; what the last one has behind the values is not theirs.
      const uint64_t* const from = reinterpret_cast<const uint64_t*>(tile.bytes) + first / kPerWord;
      uint64_t* const to = reinterpret_cast<uint64_t*>(values());
      for (uint32_t i = lane; i < group.count / kPerWord; i += kWarpLanes) to[i] = from[i];
    } else {
      for (uint32_t i = lane; i < group.count / kPerWord * kPerWord; i += kWarpLanes) {
        values()[i] = tile_values()[first + i];
      }
    }
    const uint32_t i = group.count / kPerWord * kPerWord + lane;
    if (i < all) values()[i] = i < group.count ? tile_values()[first + i] : Element{0};
  }

  // Zeros in a dense group, and behind any other.
  __device__ __forceinline__ void ClearValues(uint32_t lane) const {
    constexpr uint32_t kPerWord = 8 / sizeof(Element);
    const uint32_t all = static_cast<uint32_t>(RoundUp(group.count, kPerWord));
    if (group.form == kPlaceDense) {
      uint64_t* const words = reinterpret_cast<uint64_t*>(values());
      for (uint32_t i = lane; i < all / kPerWord; i += kWarpLanes) words[i] = 0;
    } else if (group.count + lane < all) {
      values()[group.count + lane] = 0;
    }
  }

  // Writes entry `at`, whose value is number `value` in the tile. False: it is not what was found.
  __device__ __forceinline__ bool Put(uint32_t at, uint32_t offset, uint64_t place,
                                      uint32_t value) const {
    if (at >= found.count || offset < found.first || offset > found.last) return false;
    if (place - found.low > found.spread) return false;
    if (tile.form != kFormDense && value >= tile.shape.changed) return false;
    if (group.form == kPlaceDense) {
      values()[offset - found.first] = tile_values()[value];
      return true;
    }
    const_cast<uint16_t*>(columns.offsets)[group.offsets_at + at] = static_cast<uint16_t>(offset);
    if (group.form == kPlaceNear) {
      const_cast<uint16_t*>(columns.near)[group.places_at + at] =
          static_cast<uint16_t>(place - group.local_base);
    } else if (group.form == kPlaceFar) {
      const_cast<uint32_t*>(columns.far)[group.places_at + at] =
          static_cast<uint32_t>(place - group.local_base);
    }
    values()[at] = tile_values()[value];
    return true;
  }
};

// The offsets alone, of a group that has all of the tile's entries. All lanes; each says whether
// its part is as it was found.
__device__ inline bool WriteOffsets(const StageTile& tile, const GroupEntry& group,
                                    const StageFound& found, const PieceColumns& columns,
                                    WalkShared& shared, uint32_t lane) {
  OffsetWalk walk(tile, shared, lane);
  if (!walk.Start()) return false;
  bool fits = true;
  uint32_t seen = 0;
  for (uint32_t count; walk.Next(&count); seen += count) {
    uint16_t* const out = const_cast<uint16_t*>(columns.offsets) + group.offsets_at + seen;
    for (uint32_t i = lane; i < count; i += kWarpLanes) {
      const uint16_t offset = shared.window[i];
      fits &= offset >= found.first && offset <= found.last;
      if (seen + i < found.count) out[i] = offset;
    }
  }
  return fits && seen == found.count;
}

// As WriteOffsets, of any group.
template <typename Element>
__device__ inline bool WriteEntries(const StageTables& tables, const StageJob& job,
                                    const GroupWriter<Element>& writer, WalkShared& shared,
                                    uint32_t lane) {
  OffsetWalk walk(writer.tile, shared, lane);
  if (!walk.Start()) return false;
  const bool is_whole = (job.flags & kStageWhole) != 0;
  const bool is_dense = writer.tile.form == kFormDense;
  const uint64_t first_element = uint64_t{job.tile} * kTileElementCount;
  bool fits = true;
  uint32_t seen = 0;
  uint32_t entry = 0;
  for (uint32_t count; walk.Next(&count); seen += count) {
    for (uint32_t first = 0; first < count; first += kWarpLanes) {
      const uint32_t i = first + lane;
      const uint32_t offset = i < count ? shared.window[i] : 0;
      uint64_t place = job.base + offset;
      const bool is_inside = i < count && (is_whole || FindPlace(tables.cells[job.cell],
                                                                 first_element + offset, &place));
      const uint32_t inside = __ballot_sync(kFullWarp, is_inside);
      const uint32_t at = entry + __popc(inside & ((1u << lane) - 1));
      entry += __popc(inside);
      if (is_inside) fits &= writer.Put(at, offset, place, is_dense ? offset : seen + i);
    }
  }
  return fits && entry == writer.found.count;
}

template <typename Element>
__device__ __forceinline__ bool WriteGroup(const StageTables& tables, const StageJob& job,
                                           const StageFound& found, const GroupEntry& group,
                                           WalkShared& shared, uint32_t lane) {
  const StageTile tile = TileOf(job);
  const bool is_whole = (job.flags & kStageWhole) != 0;
  const PieceColumns& columns = tables.columns[job.chunk];
  const GroupWriter<Element> writer{tile, group, found, columns};
  if (tile.form == kFormDense && group.form == kPlaceDense) {
    writer.CopyValues(found.first, lane);
    return true;
  }
  if (is_whole && group.form != kPlaceDense && tile.form != kFormDense) {
    writer.CopyValues(0, lane);
    return WriteOffsets(tile, group, found, columns, shared, lane);
  }
  writer.ClearValues(lane);
  // Before anybody writes among them.
  __syncwarp();
  return WriteEntries(tables, job, writer, shared, lane);
}

// A warp for each group.
__global__ void __launch_bounds__(kStageThreads) StageWriteKernel(const StageTables tables) {
  __shared__ WalkShared shared[kStageWarps];
  const uint32_t lane = threadIdx.x % kWarpLanes;
  const uint32_t warp = threadIdx.x / kWarpLanes;
  const uint32_t number = blockIdx.x * kStageWarps + warp;
  if (number >= tables.write_count) return;
  const StageWrite write = tables.writes[number];
  const StageJob job = tables.jobs[write.job];
  const StageFound found = tables.found[write.job];
  const GroupEntry group = tables.columns[job.chunk].groups[write.group];
  bool fits = false;
  switch (job.element_bytes) {
    case 1:
      fits = WriteGroup<uint8_t>(tables, job, found, group, shared[warp], lane);
      break;
    case 2:
      fits = WriteGroup<uint16_t>(tables, job, found, group, shared[warp], lane);
      break;
    case 4:
      fits = WriteGroup<uint32_t>(tables, job, found, group, shared[warp], lane);
      break;
    default:
      fits = WriteGroup<uint64_t>(tables, job, found, group, shared[warp], lane);
      break;
  }
  if (!fits) tables.faults[job.chunk] = 1;
}

}  // namespace wstore::cuda
