// Staged patches into and out of weights at their places, and sums of whole cells.
#pragma once

#include <cstdint>

#include "transfer/cuda/cell_place.cuh"
#include "transfer/cuda/device_math.cuh"
#include "transfer/cuda/load.cuh"
#include "transfer/cuda/replica_tables.h"
#include "transfer/cuda/sums.cuh"
#include "transfer/cuda/tables.h"

namespace wstore::cuda {

inline constexpr uint32_t kUnitThreads = 256;
inline constexpr uint32_t kUnitWarps = kUnitThreads / kWarpLanes;
// Entries that a thread has under way at a time.
inline constexpr uint32_t kEntriesAtOnce = 4;
// Groups are cut into slices, and a warp works on one at a time.
inline constexpr uint32_t kSliceEntries = kWarpLanes * kEntriesAtOnce;
// Blocks that share a unit. Where groups have few entries, and these lie far apart, memory answers
// faster if what is under way at a time lies close together: then more blocks share one.
inline constexpr uint32_t kUnitParts = 16;
inline constexpr uint32_t kSparseUnitParts = 40;
// A unit with so many groups has few entries in each.
inline constexpr uint32_t kSparseUnitGroups = 16;

enum class UnitWork {
  kRead,               // sums of what is there and of what would be, by unit and by group
  kExchange,           // XOR, re-read, sums by unit
  kExchangeUnchecked,  // XOR, sums by unit of what is written, not re-read
};

struct Sums {
  uint64_t before[2] = {0, 0};
  uint64_t after[2] = {0, 0};
};

// The multipliers of entry `index` of a unit: any function of key and index that is hard to hit.
__device__ __forceinline__ Multipliers EntryMultipliers(const uint64_t (&key)[2], uint64_t index) {
  uint64_t z = key[0] + index * 0x9e3779b97f4a7c15;
  z = (z ^ z >> 32) * 0xd6e8feb86659fd93;
  z ^= z >> 32;
  return {{z | 1, (z * 0xbf58476d1ce4e5b9 + key[1]) | 1}};
}

// What an element at a place of its tensor counts in the fingerprint: bits x this, in two parts for
// elements of eight bytes.
__device__ __forceinline__ void AddFingerprint(const CellEntry& cell,
                                               const unsigned long long* multipliers,
                                               uint64_t element, uint64_t bits,
                                               uint64_t (&sums)[2]) {
  const uint64_t byte = element * cell.element_bytes;
  const Multipliers a = BlockMultipliers(cell.philox_key, cell.philox_high, byte / kSumBlockBytes);
  const uint32_t word = byte % kSumBlockBytes / 4;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const unsigned long long* const b = multipliers + 128 * k + word;
    if (cell.element_bytes == 8) {
      sums[k] += a.lane[k] * (b[0] * (bits & UINT32_MAX) + b[1] * (bits >> 32));
    } else {
      sums[k] += a.lane[k] * (b[0] * (bits << (byte % 4 * 8)));
    }
  }
}

template <typename Element>
struct EntryColumns {
  Element* base;  // of place 0, modulo 2^64
  const Element* values;
  const PieceColumns* columns;
  GroupEntry group;

  __device__ __forceinline__ Element* Place(uint32_t entry) const {
    switch (group.form) {
      case kPlaceSame:
        return base + columns->offsets[group.offsets_at + entry];
      case kPlaceNear:
        return base + columns->near[group.places_at + entry];
      case kPlaceFar:
        return base + columns->far[group.places_at + entry];
      default:
        return base + entry;
    }
  }
  __device__ __forceinline__ uint32_t Offset(uint32_t entry) const {
    return group.form == kPlaceDense ? group.offsets_at + entry
                                     : columns->offsets[group.offsets_at + entry];
  }
};

// A slice of one group: for each lane, the entry `at` and every 32nd from there.
template <UnitWork kWork, typename Element>
__device__ __forceinline__ void WorkOnSlice(const ReplicaTables& tables, const CellEntry& cell,
                                            const EntryColumns<Element>& entries,
                                            uint64_t first_index, uint32_t at, Sums* unit,
                                            Sums* fingerprints) {
  Element* places[kEntriesAtOnce];
  Element before[kEntriesAtOnce];
  Element values[kEntriesAtOnce];
#pragma unroll
  for (uint32_t i = 0; i < kEntriesAtOnce; ++i) {
    const uint32_t entry = at + i * kWarpLanes;
    const bool is_there = entry < entries.group.count;
    places[i] = is_there ? entries.Place(entry) : nullptr;
    values[i] = is_there ? entries.values[entry] : Element{0};
  }
#pragma unroll
  for (uint32_t i = 0; i < kEntriesAtOnce; ++i) {
    before[i] = places[i] != nullptr ? *places[i] : Element{0};
  }
  if constexpr (kWork != UnitWork::kRead) {
#pragma unroll
    for (uint32_t i = 0; i < kEntriesAtOnce; ++i) {
      if (places[i] != nullptr) *places[i] = static_cast<Element>(before[i] ^ values[i]);
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < kEntriesAtOnce; ++i) {
    if (places[i] == nullptr) continue;
    const uint32_t entry = at + i * kWarpLanes;
    Element after = static_cast<Element>(before[i] ^ values[i]);
    if constexpr (kWork == UnitWork::kExchange) {
      // Volatile: from memory again, not what was just written to it.
      after = *static_cast<volatile Element*>(places[i]);
    }
    const Multipliers m = EntryMultipliers(tables.unit_key, first_index + entry);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      unit->before[k] += m.lane[k] * before[i];
      unit->after[k] += m.lane[k] * after;
    }
    if constexpr (kWork == UnitWork::kRead) {
      if (values[i] == 0) continue;
      const uint64_t element =
          uint64_t{entries.group.tile} * kTileElementCount + entries.Offset(entry);
      AddFingerprint(cell, tables.multipliers, element, before[i], fingerprints->before);
      AddFingerprint(cell, tables.multipliers, element, after, fingerprints->after);
    }
  }
}

template <UnitWork kWork, typename Element>
__device__ __forceinline__ void StartSlice(const ReplicaTables& tables, const UnitEntry& unit,
                                           const GroupEntry& group, const CellEntry& cell,
                                           uint64_t first_index, uint32_t at, Sums* sums,
                                           Sums* fingerprints) {
  const EntryColumns<Element> entries{
      reinterpret_cast<Element*>(reinterpret_cast<uintptr_t>(cell.buffer) +
                                 group.local_base * sizeof(Element)),
      reinterpret_cast<const Element*>(unit.columns.values + uint64_t{group.values_at} * 8),
      &unit.columns, group};
  WorkOnSlice<kWork, Element>(tables, cell, entries, first_index, at, sums, fingerprints);
}

// Adds a lane's sums to an entry. All lanes of the warp.
__device__ inline void AddWarpSums(const Sums& sums, SumsEntry* entry) {
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const uint64_t before = WarpSum(sums.before[k]);
    const uint64_t after = WarpSum(sums.after[k]);
    if (threadIdx.x % kWarpLanes == 0) {
      atomicAdd(&entry->before[k], static_cast<unsigned long long>(before));
      atomicAdd(&entry->after[k], static_cast<unsigned long long>(after));
    }
  }
}

// Works on group `number` of a unit from entry `first` on. All lanes of the warp.
template <UnitWork kWork>
__device__ __forceinline__ void WorkOnGroup(const ReplicaTables& tables, const UnitEntry& unit,
                                            uint32_t number, uint32_t first, Sums* sums) {
  const GroupEntry group = unit.columns.groups[unit.first_group + number];
  const CellEntry& cell = tables.cells[group.cell];
  const uint32_t at = first + threadIdx.x % kWarpLanes;
  // A unit has less than 2^32 entries in groups of less than 2^17.
  const uint64_t first_index = uint64_t{number} << 17;
  Sums fingerprints;
  switch (cell.element_bytes) {
    case 1:
      StartSlice<kWork, uint8_t>(tables, unit, group, cell, first_index, at, sums, &fingerprints);
      break;
    case 2:
      StartSlice<kWork, uint16_t>(tables, unit, group, cell, first_index, at, sums, &fingerprints);
      break;
    case 4:
      StartSlice<kWork, uint32_t>(tables, unit, group, cell, first_index, at, sums, &fingerprints);
      break;
    default:
      StartSlice<kWork, unsigned long long>(tables, unit, group, cell, first_index, at, sums,
                                            &fingerprints);
      break;
  }
  if constexpr (kWork == UnitWork::kRead) {
    AddWarpSums(fingerprints, &tables.group_sums[unit.sums_at + number]);
  }
}

// Adds the sums of a block to an entry. All threads of the block.
__device__ inline void AddBlockSums(const Sums& sums, SumsEntry* entry) {
  __shared__ unsigned long long parts[4][kUnitWarps];
  const uint32_t warp = threadIdx.x / kWarpLanes;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const uint64_t before = WarpSum(sums.before[k]);
    const uint64_t after = WarpSum(sums.after[k]);
    if (threadIdx.x % kWarpLanes == 0) {
      parts[k][warp] = before;
      parts[2 + k][warp] = after;
    }
  }
  __syncthreads();
  if (threadIdx.x >= 4) return;
  unsigned long long sum = 0;
  for (uint32_t i = 0; i < kUnitWarps; ++i) sum += parts[threadIdx.x][i];
  atomicAdd(threadIdx.x < 2 ? &entry->before[threadIdx.x] : &entry->after[threadIdx.x - 2], sum);
}

// Thread blocks that run at a time on a multiprocessor: more for entries that lie close together.
template <UnitWork kWork, uint32_t kParts>
constexpr uint32_t UnitBlocks() {
  return kWork != UnitWork::kRead && kParts == kUnitParts ? 5 : 4;
}

// kParts thread blocks a unit, whose warps take its slices in turn. Needs the sums zeroed.
template <UnitWork kWork, uint32_t kParts>
__global__ void __launch_bounds__(kUnitThreads, UnitBlocks<kWork, kParts>())
    UnitKernel(const ReplicaTables tables) {
  const UnitEntry& unit = tables.units[blockIdx.x / kParts];
  const uint32_t lane = threadIdx.x % kWarpLanes;
  Sums sums;
  // This warp's next slice, counted from the first of the groups looked at.
  uint32_t next = blockIdx.x % kParts * kUnitWarps + threadIdx.x / kWarpLanes;
  for (uint32_t base = 0; base < unit.group_count; base += kWarpLanes) {
    const uint32_t number = base + lane;
    const uint32_t slices =
        number < unit.group_count
            ? (unit.columns.groups[unit.first_group + number].count + kSliceEntries - 1) /
                  kSliceEntries
            : 0;
    const uint32_t up_to = WarpInclusiveSum(slices, lane);
    const uint32_t all = __shfl_sync(kFullWarp, up_to, kWarpLanes - 1);
    for (; next < all; next += kParts * kUnitWarps) {
      const uint32_t group = __popc(__ballot_sync(kFullWarp, up_to <= next));
      const uint32_t first = next - __shfl_sync(kFullWarp, up_to - slices, static_cast<int>(group));
      WorkOnGroup<kWork>(tables, unit, base + group, first * kSliceEntries, &sums);
    }
    next -= all;
  }
  AddBlockSums(sums, &tables.unit_sums[blockIdx.x / kParts]);
}

// Where an element of a cell's loop nest is.
struct CellPlace {
  uint64_t checkpoint;
  uint64_t local;
};

__device__ __forceinline__ CellPlace PlaceOf(const CellEntry& cell, uint64_t index) {
  CellPlace place{cell.checkpoint_offset, cell.local_offset};
  for (uint32_t d = cell.dims; d-- > 0;) {
    const uint64_t i = index % cell.dim[d].count;
    index /= cell.dim[d].count;
    place.checkpoint += i * cell.dim[d].checkpoint_stride;
    place.local += i * cell.dim[d].local_stride;
  }
  return place;
}

__device__ __forceinline__ uint64_t LoadElement(const CellEntry& cell, uint64_t local) {
  switch (cell.element_bytes) {
    case 1:
      return cell.buffer[local];
    case 2:
      return reinterpret_cast<const uint16_t*>(cell.buffer)[local];
    case 4:
      return reinterpret_cast<const uint32_t*>(cell.buffer)[local];
    default:
      return reinterpret_cast<const unsigned long long*>(cell.buffer)[local];
  }
}

// Whether the elements of a cell follow each other on both sides.
__device__ __forceinline__ bool IsOneRun(const CellEntry& cell) {
  return cell.dims == 0 ||
         (cell.dims == 1 && cell.dim[0].checkpoint_stride == 1 && cell.dim[0].local_stride == 1);
}

// Sums bytes [begin, end) of a tensor, of which `begin` is at `data`. A warp.
__device__ inline void SumBytes(const CellEntry& cell, const uint8_t* data, uint64_t begin,
                                uint64_t end, uint32_t lane, WordSums* sums) {
  const uint64_t first_block = begin / kSumBlockBytes;
  const uint64_t last_block = (end - 1) / kSumBlockBytes;
  for (uint64_t group = first_block; group <= last_block; group += kWarpLanes) {
    const Multipliers own = BlockMultipliers(cell.philox_key, cell.philox_high, group + lane);
    for (uint32_t i = 0; i < kWarpLanes && group + i <= last_block; ++i) {
      const uint64_t at = (group + i) * kSumBlockBytes + lane * 16;
      uint4 words = make_uint4(0, 0, 0, 0);
      if (at >= begin && at < end) {
        // From here on the tile's bytes are a range whose start has the alignment of `data`.
        const uint64_t from = at - begin;
        const uint8_t* const address = data + from;
        const uint64_t left = end - at;
        const uint32_t shift = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address)) % 16;
        if (left >= 16 && shift == 0) {
          words = LoadStreaming(address);
        } else if (left >= 32 && from >= 16) {
          const uint4* const aligned = reinterpret_cast<const uint4*>(address - shift);
          words = Realign(aligned[0], aligned[1], shift);
        } else {
          words = LoadEnd(address, left < 16 ? static_cast<uint32_t>(left) : 16, 0);
        }
      } else if (at < begin && at + 16 > begin) {
        // The first bytes of these sixteen are not ours.
        const uint32_t skip = static_cast<uint32_t>(begin - at);
        const uint64_t have = end - begin;
        uint32_t bytes[4] = {0, 0, 0, 0};
#pragma unroll
        for (uint32_t k = 0; k < 16; ++k) {
          if (k >= skip && k - skip < have) bytes[k / 4] |= uint32_t{data[k - skip]} << (k % 4 * 8);
        }
        words = make_uint4(bytes[0], bytes[1], bytes[2], bytes[3]);
      }
      sums->Add({{Shuffle64(own.lane[0], i), Shuffle64(own.lane[1], i)}}, words);
    }
  }
}

// Adds the fingerprints of stretches of cells to sums[cell].after. A thread block a stretch.
__global__ void __launch_bounds__(kUnitThreads)
    CellKernel(const ReplicaTables tables, const CellStretch* stretches, SumsEntry* cell_sums) {
  const CellStretch stretch = stretches[blockIdx.x];
  const CellEntry& cell = tables.cells[stretch.cell];
  const uint32_t lane = threadIdx.x % kWarpLanes;
  const uint32_t warp = threadIdx.x / kWarpLanes;
  uint64_t sums[2] = {0, 0};
  if (IsOneRun(cell)) {
    WordSums words;
    const uint64_t width = cell.element_bytes;
    const uint64_t part =
        RoundUp((stretch.end - stretch.begin + kUnitWarps - 1) / kUnitWarps, kSumBlockBytes);
    const uint64_t begin = stretch.begin + warp * part;
    const uint64_t end = begin + part < stretch.end ? begin + part : stretch.end;
    if (begin < end) {
      SumBytes(cell, cell.buffer + (cell.local_offset + begin) * width,
               (cell.checkpoint_offset + begin) * width, (cell.checkpoint_offset + end) * width,
               lane, &words);
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) sums[k] = words.Total(tables.multipliers, lane, k);
  } else {
    for (uint64_t i = stretch.begin + threadIdx.x; i < stretch.end; i += kUnitThreads) {
      const CellPlace place = PlaceOf(cell, i);
      AddFingerprint(cell, tables.multipliers, place.checkpoint, LoadElement(cell, place.local),
                     sums);
    }
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const uint64_t sum = WarpSum(sums[k]);
    if (lane == 0) {
      atomicAdd(&cell_sums[stretch.cell].after[k], static_cast<unsigned long long>(sum));
    }
  }
}

// Writes the elements of a cell in [begin, begin + count) of its tensor from dense bytes. A grid of
// any size.
__global__ void __launch_bounds__(kUnitThreads)
    WriteCellKernel(const CellEntry* cells, uint32_t number, const uint8_t* dense, uint64_t begin,
                    uint32_t count) {
  const CellEntry& cell = cells[number];
  for (uint64_t i = blockIdx.x * kUnitThreads + threadIdx.x; i < count;
       i += gridDim.x * kUnitThreads) {
    uint64_t local;
    if (!FindPlace(cell, begin + i, &local)) continue;
    switch (cell.element_bytes) {
      case 1:
        cell.buffer[local] = dense[i];
        break;
      case 2:
        reinterpret_cast<uint16_t*>(cell.buffer)[local] =
            reinterpret_cast<const uint16_t*>(dense)[i];
        break;
      case 4:
        reinterpret_cast<uint32_t*>(cell.buffer)[local] =
            reinterpret_cast<const uint32_t*>(dense)[i];
        break;
      default:
        reinterpret_cast<unsigned long long*>(cell.buffer)[local] =
            reinterpret_cast<const unsigned long long*>(dense)[i];
        break;
    }
  }
}

}  // namespace wstore::cuda
