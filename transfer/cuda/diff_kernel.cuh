// The pass over both sides: changes found, summed and encoded, tile by tile.
//
// A thread block takes one tile at a time, each warp an eighth of it. First the warps read: every
// lane compares sixteen bytes of both sides, adds them to the fingerprints, sets the bits of what
// changed in the tile's bitmap, and packs the XOR bits behind those of its warp so far. Then the
// block knows the tile's counts, so it knows form, length and place, and writes the tile. Copies
// into shared memory run ahead, from one tile into the next, so that memory is busy all the time.
#pragma once

#include <cstdint>

#include "transfer/cuda/device_math.cuh"
#include "transfer/cuda/load.cuh"
#include "transfer/cuda/pack.cuh"
#include "transfer/cuda/sums.cuh"
#include "transfer/cuda/tables.h"
#include "transfer/cuda/tile_extent.cuh"
#include "transfer/cuda/tile_shape.cuh"
#include "transfer/cuda/touched_sums.cuh"

namespace wstore::cuda {

inline constexpr uint32_t kDiffThreads = 256;
inline constexpr uint32_t kDiffWarps = kDiffThreads / kWarpLanes;
inline constexpr uint32_t kDiffBlocksPerMultiprocessor = 3;
inline constexpr uint32_t kWarpElements = kTileElementCount / kDiffWarps;
// Steps of a warp, two of which it works on at a time while the copies of the others are under way.
inline constexpr uint32_t kDiffStages = 4;
inline constexpr uint32_t kNoTensor = UINT32_MAX;
inline constexpr uint32_t kNoTile = UINT32_MAX;

struct alignas(16) DiffShared {
  uint32_t bitmap[kTileElementCount / 32];  // later the positions, as they are written
  uint8_t values[kDiffWarps][kWarpValueBytes];
  uint4 ring[kDiffWarps][kDiffStages][2][kWarpLanes];  // old and new bytes of a step
  Multipliers multipliers[kDiffWarps][kWarpLanes];     // A of the next steps
  TouchedSumsPart touched[kDiffWarps];                 // of the open tensor
  uint32_t warp_totals[kDiffWarps];
  uint64_t slab_at;
  uint32_t next_held;  // of the tile that the block takes next, among those that are held
};

// A tile on both sides.
struct TilePair {
  TileBytes old_bytes;
  TileBytes new_bytes;
  uint32_t number;     // in the checkpoint
  uint32_t tensor_at;  // entry of DiffTables::tensors
  uint32_t width;
  uint32_t elements;  // whether they are held or not
  bool is_whole;      // a whole tile, all of it held, at aligned addresses on both sides
};

// Starts the copies of two steps of a warp, as one group. at: of the lane's bytes in the first.
__device__ __forceinline__ void CopySteps(const TilePair& tile, uint32_t at, uint32_t step,
                                          uint32_t lane, uint4 (*ring)[2][kWarpLanes]) {
#pragma unroll
  for (uint32_t k = 0; k < 2; ++k) {
    const uint32_t from = at + k * kSumBlockBytes;
    CopySixteen(&ring[(step + k) % kDiffStages][0][lane], tile.old_bytes.begin + from);
    CopySixteen(&ring[(step + k) % kDiffStages][1][lane], tile.new_bytes.begin + from);
  }
}

// Starts the copies of a tile's first steps. Of a tile that is not whole, nothing.
__device__ __forceinline__ void CopyFirstSteps(const TilePair& tile, uint32_t warp, uint32_t lane,
                                               uint4 (*ring)[2][kWarpLanes]) {
  if (!tile.is_whole) return;
  const uint32_t start = warp * kWarpElements * tile.width + lane * 16;
#pragma unroll
  for (uint32_t step = 0; step < kDiffStages; step += 2) {
    CopySteps(tile, start + step * kSumBlockBytes, step, lane, ring);
    CommitCopies();
  }
}

// Compares a warp's eighth of a tile, whose first copies are under way if it is whole. kTouched:
// what changes is summed too. Returns the number of changes; past the room for them they are only
// counted.
template <int kWidth, bool kTouched, bool kWhole>
__device__ __forceinline__ uint32_t ReadEighth(const TilePair& tile, const DiffTables& tables,
                                               uint32_t warp, uint32_t lane, WordSums* after_sums,
                                               DiffShared& shared) {
  constexpr uint32_t kSteps = kWarpElements * kWidth / kSumBlockBytes;
  const TensorEntry& tensor = tables.tensors[tile.tensor_at];
  uint4(*const ring)[2][kWarpLanes] = shared.ring[warp];
  Multipliers* const multipliers = shared.multipliers[warp];
  uint8_t* const values = shared.values[warp];
  const uint32_t start = warp * kWarpElements * kWidth;
  const uint64_t first_block =
      ((tile.number - tensor.first_tile) * kTileElementCount * kWidth + start) / kSumBlockBytes;
  constexpr uint32_t kGroup = kSteps < kWarpLanes ? kSteps : kWarpLanes;
  uint32_t found = 0;
  TouchedQueue<kWidth> queue({values, multipliers, tables.multipliers, &shared.touched[warp]});
  for (uint32_t group = 0; group < kSteps; group += kGroup) {
    __syncwarp();
    multipliers[lane] =
        BlockMultipliers(tensor.philox_key, tensor.philox_high, first_block + group + lane);
    __syncwarp();
#pragma unroll 1
    for (uint32_t i = 0; i < kGroup; i += 2) {
      const uint32_t step = group + i;
      const uint32_t at = start + step * kSumBlockBytes + lane * 16;
      uint4 before[2];
      uint4 after[2];
      if constexpr (kWhole) {
        WaitForCopies<1>();
#pragma unroll
        for (uint32_t k = 0; k < 2; ++k) {
          before[k] = ring[(step + k) % kDiffStages][0][lane];
          after[k] = ring[(step + k) % kDiffStages][1][lane];
        }
        // Each lane has read what it copied itself, so there is room for its next.
        if (step + kDiffStages < kSteps) {
          CopySteps(tile, at + kDiffStages * kSumBlockBytes, step, lane, ring);
        }
        CommitCopies();
      } else {
#pragma unroll
        for (uint32_t k = 0; k < 2; ++k) {
          before[k] = LoadSixteen(tile.old_bytes, at + k * kSumBlockBytes);
          after[k] = LoadSixteen(tile.new_bytes, at + k * kSumBlockBytes);
        }
      }
      uint4 change[2];
      uint32_t mask[2];
#pragma unroll
      for (uint32_t k = 0; k < 2; ++k) {
        const Multipliers a = multipliers[i + k];
        after_sums->Add(a, after[k]);
        change[k] = Xor(before[k], after[k]);
        mask[k] = NonZeroMask<kWidth>(change[k]);
        StoreMask<kWidth>(mask[k], lane,
                          reinterpret_cast<uint8_t*>(shared.bitmap) +
                              (start + (step + k) * kSumBlockBytes) / kWidth / 8);
      }
      if constexpr (kTouched) {
        const uint32_t total = PackSteps<kWidth>(change, mask, found, lane, values,
                                                 TouchedWatcher<kWidth>{queue, before, i, lane});
        queue.EndSteps(i, mask, before, change, found, total, i + 2 == kGroup);
        found += total;
      } else {
        found += PackSteps<kWidth>(change, mask, found, lane, values, NoWatcher());
      }
    }
  }
  return found;
}

// Writes the values of a warp's eighth that had no room, from another look at it.
template <int kWidth>
__device__ void WriteValuesAgain(const TilePair& tile, uint32_t warp, uint32_t lane, uint8_t* out) {
  constexpr uint32_t kBytes = kWarpElements * kWidth;
  for (uint32_t at = warp * kBytes; at < (warp + 1) * kBytes; at += kSumBlockBytes) {
    const uint4 change = Xor(LoadSixteen(tile.old_bytes, at + lane * 16),
                             LoadSixteen(tile.new_bytes, at + lane * 16));
    const uint32_t mask = NonZeroMask<kWidth>(change);
    const uint32_t up_to = WarpInclusiveSum(__popc(mask), lane);
    PackElements<kWidth>(change, mask, out + (up_to - __popc(mask)) * kWidth);
    out += __shfl_sync(kFullWarp, up_to, kWarpLanes - 1) * kWidth;
  }
}

__device__ inline void WriteDense(const TilePair& tile, uint32_t thread, uint8_t* out) {
  // Whole sixteens: the slab has room, and what lies behind a tile is zero.
  for (uint32_t at = thread * 16; at < tile.elements * tile.width; at += kDiffThreads * 16) {
    *reinterpret_cast<uint4*>(out + at) =
        Xor(LoadSixteen(tile.old_bytes, at), LoadSixteen(tile.new_bytes, at));
  }
}

template <int kWidth>
__device__ __forceinline__ void CopyValues(const uint8_t* from, uint32_t count, uint32_t lane,
                                           uint8_t* out) {
  for (uint32_t i = lane; i < count; i += kWarpLanes) {
    if constexpr (kWidth == 1) {
      out[i] = from[i];
    } else if constexpr (kWidth == 2) {
      reinterpret_cast<uint16_t*>(out)[i] = reinterpret_cast<const uint16_t*>(from)[i];
    } else if constexpr (kWidth == 4) {
      reinterpret_cast<uint32_t*>(out)[i] = reinterpret_cast<const uint32_t*>(from)[i];
    } else {
      reinterpret_cast<uint64_t*>(out)[i] = reinterpret_cast<const uint64_t*>(from)[i];
    }
  }
}

// Encodes what ReadEighth found: `found` by this warp. All threads of the block.
template <int kWidth, bool kTouched>
__device__ void WriteTile(const DiffTables& tables, const TilePair& tile, uint64_t number,
                          uint32_t found, DiffShared& shared) {
  const uint32_t thread = threadIdx.x;
  const uint32_t lane = thread % kWarpLanes;
  const uint32_t warp = thread / kWarpLanes;
  // A thread for each block of 256 elements. Its count and whether it is escaped, in one number.
  uint32_t bits[8];
  uint32_t count = 0;
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    bits[i] = shared.bitmap[thread * 8 + i];
    count += __popc(bits[i]);
  }
  constexpr uint32_t kOneEscape = 1 << 20;
  const uint32_t both = count + (count >= kEscaped ? kOneEscape : 0);
  const uint32_t up_to = WarpInclusiveSum(both, lane);
  if (lane == kWarpLanes - 1) shared.warp_totals[warp] = up_to;
  __syncthreads();
  uint32_t below = 0;
  uint32_t all = 0;
#pragma unroll
  for (uint32_t i = 0; i < kDiffWarps; ++i) {
    if (i < warp) below += shared.warp_totals[i];
    all += shared.warp_totals[i];
  }
  const uint32_t changes_of_warps_below = below % kOneEscape;
  below += up_to - both;

  TileShape shape{tile.elements, kWidth, all % kOneEscape, all / kOneEscape};
  const uint32_t form = ChooseForm(shape);
  const uint32_t size = shape.changed == 0 ? 0 : shape.CanonicalBytes(form);
  if (thread == 0) {
    shared.slab_at =
        size == 0 ? 0
                  : atomicAdd(&tables.counters->slab_used,
                              static_cast<unsigned long long>(RoundUp(size, kSlabAlignment)));
    const uint32_t escapes = form == kFormBlocks ? shape.escapes : 0;
    tables.tiles[number] = {shared.slab_at, size, shape.changed,
                            (shape.changed - 1) | form << 16 | escapes << 18, 0};
  }
  if (size == 0) return;
  uint8_t* const positions = reinterpret_cast<uint8_t*>(shared.bitmap);
  if (form == kFormBlocks || form == kFormOffsets) {
    LayOutPositions(shape, form, bits, count, below % kOneEscape, below / kOneEscape, thread,
                    positions);
  }
  __syncthreads();
  if (shared.slab_at + size > tables.slab_bytes) return;
  uint8_t* const out = tables.slab + shared.slab_at;
  if (form == kFormDense) {
    WriteDense(tile, thread, out);
    return;
  }
  uint8_t* const values = out + changes_of_warps_below * kWidth;
  if (found <= ValueBytes<kWidth, kTouched>() / kWidth) {
    CopyValues<kWidth>(shared.values[warp], found, lane, values);
  } else {
    WriteValuesAgain<kWidth>(tile, warp, lane, values);
  }
  // Positions in whole words; what lies behind them up to a multiple of sixteen is zero.
  const uint32_t positions_at = shape.positions_at();
  if (thread < positions_at - shape.changed * kWidth) out[shape.changed * kWidth + thread] = 0;
  const uint32_t position_bytes = size - positions_at;
  const uint32_t end = static_cast<uint32_t>(RoundUp(size, kSlabAlignment));
  for (uint32_t at = thread * 4; positions_at + at < end; at += kDiffThreads * 4) {
    uint32_t word = 0;
    if (at < position_bytes) {
      word = shared.bitmap[at / 4];
      const uint32_t left = position_bytes - at;
      if (left < 4) word &= (1u << (8 * left)) - 1;
    }
    *reinterpret_cast<uint32_t*>(out + positions_at + at) = word;
  }
}

// The tile at `held` among those that are held; past the last one, kNoTile. kShare: not all tiles
// are, or not all of each.
template <bool kShare>
__device__ __forceinline__ TilePair FindTile(const DiffTables& tables, uint64_t held) {
  TilePair tile;
  tile.number = kNoTile;
  tile.is_whole = false;
  if (held >= tables.end_held) return tile;
  tile.number = kShare ? tables.held_tiles[held] : static_cast<uint32_t>(held);
  tile.tensor_at = tables.tile_tensors[tile.number];
  const TensorEntry& tensor = tables.tensors[tile.tensor_at];
  const TileExtent extent = ExtentOf<kShare>(tensor, tile.number);
  tile.width = tensor.element_bytes;
  tile.elements = extent.elements;
  const uint32_t first = extent.held_first * tile.width;
  const uint32_t end = extent.held_end * tile.width;
  tile.old_bytes = {tensor.old_data + extent.first * tile.width, first, end};
  tile.new_bytes = {tensor.new_data + extent.first * tile.width, first, end};
  const uint64_t shifts = reinterpret_cast<uintptr_t>(tile.old_bytes.begin) |
                          reinterpret_cast<uintptr_t>(tile.new_bytes.begin);
  tile.is_whole = extent.held_end - extent.held_first == kTileElementCount && shifts % 16 == 0;
  return tile;
}

// The first tile of a turn: of a run, or of the tiles behind all runs. Among those that are held.
__device__ __forceinline__ uint32_t HeldOfTurn(const DiffTables& tables, uint32_t turn) {
  return static_cast<uint32_t>(tables.first_held) +
         (turn < tables.tile_runs ? turn * kTileRun : turn + tables.tile_runs * (kTileRun - 1));
}

// The tile that the block takes after `held`, in its turn `*turns`, which it counts. One thread.
__device__ __forceinline__ uint32_t TakeTile(const DiffTables& tables, uint32_t held,
                                             uint32_t* turns) {
  const uint32_t at = held - static_cast<uint32_t>(tables.first_held);
  if (at < tables.tile_runs * kTileRun && (at + 1) % kTileRun != 0) return held + 1;
  if (++*turns > tables.block_turns) return static_cast<uint32_t>(tables.end_held);
  return HeldOfTurn(tables, gridDim.x + atomicAdd(&tables.counters->next_tile, 1u));
}

// Reads and writes `tile` and starts on the next one. Returns that one.
template <int kWidth, bool kTouched, bool kShare>
__device__ __forceinline__ TilePair DiffOneTile(const DiffTables& tables, const TilePair& tile,
                                                WordSums* after_sums, DiffShared& shared) {
  const uint32_t lane = threadIdx.x % kWarpLanes;
  const uint32_t warp = threadIdx.x / kWarpLanes;
  const uint32_t found =
      tile.is_whole
          ? ReadEighth<kWidth, kTouched, true>(tile, tables, warp, lane, after_sums, shared)
          : ReadEighth<kWidth, kTouched, false>(tile, tables, warp, lane, after_sums, shared);
  __syncthreads();
  const TilePair next = FindTile<kShare>(tables, shared.next_held);
  CopyFirstSteps(next, warp, lane, shared.ring[warp]);
  WriteTile<kWidth, kTouched>(tables, tile, tile.number, found, shared);
  return next;
}

// Adds what a warp has summed to the sums of a tensor, and begins anew; at first, without a tensor,
// only that. All lanes of the warp.
template <bool kTouched>
__device__ __forceinline__ void CloseSums(const DiffTables& tables, uint32_t tensor_at,
                                          WordSums* after_sums, TouchedSumsPart* touched) {
  const uint32_t lane = threadIdx.x % kWarpLanes;
  TensorSumsEntry* const entry = &tables.sums[tensor_at];
  if (tensor_at != kNoTensor) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint64_t after = WarpSum(after_sums->Total(tables.multipliers, lane, k));
      if (lane == 0) atomicAdd(&entry->after[k], static_cast<unsigned long long>(after));
    }
  }
  *after_sums = WordSums();
  if constexpr (kTouched) {
    __syncwarp();
    if (lane < 2) {
      if (tensor_at != kNoTensor) {
        atomicAdd(&entry->touched_before[lane],
                  static_cast<unsigned long long>(touched->before[lane]));
        atomicAdd(&entry->touched_after[lane],
                  static_cast<unsigned long long>(touched->after[lane]));
      }
      touched->before[lane] = 0;
      touched->after[lane] = 0;
    }
    __syncwarp();
  }
}

// DiffBlocks blocks, of which each takes the next tile until there is none, or it has had its
// turns. kTouched: changed elements are summed on both sides, beside the whole of the new one.
// kShare: see FindTile. Needs sizeof(DiffShared) of dynamic shared memory.
template <bool kTouched, bool kShare>
__global__ void __launch_bounds__(kDiffThreads, kDiffBlocksPerMultiprocessor)
    DiffKernel(const DiffTables tables) {
  WSTORE_DYNAMIC_SHARED(DiffShared, shared);
  WordSums after_sums;
  TouchedSumsPart* const touched = &shared.touched[threadIdx.x / kWarpLanes];
  uint32_t open_tensor = kNoTensor;
  CloseSums<kTouched>(tables, open_tensor, &after_sums, touched);
  const uint32_t first_held = HeldOfTurn(tables, blockIdx.x);
  if (threadIdx.x == 0) shared.next_held = first_held;
  TilePair tile = FindTile<kShare>(tables, first_held);
  CopyFirstSteps(tile, threadIdx.x / kWarpLanes, threadIdx.x % kWarpLanes,
                 shared.ring[threadIdx.x / kWarpLanes]);
  uint32_t turns = 1;
  while (tile.number != kNoTile) {
    if (threadIdx.x == 0) shared.next_held = TakeTile(tables, shared.next_held, &turns);
    if (tile.tensor_at != open_tensor) {
      if (open_tensor != kNoTensor) {
        CloseSums<kTouched>(tables, open_tensor, &after_sums, touched);
      }
      open_tensor = tile.tensor_at;
    }
    switch (tile.width) {
      case 1:
        tile = DiffOneTile<1, kTouched, kShare>(tables, tile, &after_sums, shared);
        break;
      case 2:
        tile = DiffOneTile<2, kTouched, kShare>(tables, tile, &after_sums, shared);
        break;
      case 4:
        tile = DiffOneTile<4, kTouched, kShare>(tables, tile, &after_sums, shared);
        break;
      default:
        tile = DiffOneTile<8, kTouched, kShare>(tables, tile, &after_sums, shared);
        break;
    }
    __syncthreads();
  }
  CloseSums<kTouched>(tables, open_tensor, &after_sums, touched);
}

}  // namespace wstore::cuda
