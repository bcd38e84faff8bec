// From encoded tiles to chunks: where the chunks are cut, their headers and directories, one thread
// block a span. The bytes are those of ChunkBuilder and the cuts those of SpanWriter.
#pragma once

#include <cstdint>

#include "transfer/cuda/chunk_hash.cuh"
#include "transfer/cuda/device_math.cuh"
#include "transfer/cuda/tables.h"

namespace wstore::cuda {

inline constexpr uint32_t kPlanThreads = kSpanTileCount;

struct PlanShared {
  uint32_t warp_totals[kPlanThreads / kWarpLanes];
  // By item: a changed tile of the span, in order.
  uint32_t tile[kSpanTileCount];
  uint32_t tensor[kSpanTileCount];  // entry of DiffTables::tensors
  uint32_t packed[kSpanTileCount];
  uint64_t slab_at[kSpanTileCount];
  // Sums over the items up to each.
  uint32_t payload_up_to[kSpanTileCount];
  uint32_t changed_up_to[kSpanTileCount];
  uint32_t tensors_up_to[kSpanTileCount];  // distinct ones
  // By group: the tiles of one tensor in one chunk.
  uint16_t group_first[kSpanTileCount + 1];  // item
  // By chunk of the span, and one past the last.
  uint16_t chunk_first[kSpanTileCount + 1];  // item
  uint16_t chunk_first_group[kSpanTileCount + 1];
  uint64_t chunk_arena_at[kSpanTileCount];
  uint32_t groups;
  uint32_t chunks;
  // Where the span's leaves are counted and listed.
  uint32_t first_leaf;
  uint32_t first_whole_leaf;
  uint32_t first_last_leaf;
};

// The sum over the block's threads up to this one.
__device__ inline uint32_t PlanInclusiveSum(uint32_t value, PlanShared& shared) {
  const uint32_t lane = threadIdx.x % kWarpLanes;
  const uint32_t warp = threadIdx.x / kWarpLanes;
  uint32_t up_to = WarpInclusiveSum(value, lane);
  if (lane == kWarpLanes - 1) shared.warp_totals[warp] = up_to;
  __syncthreads();
  for (uint32_t i = 0; i < warp; ++i) up_to += shared.warp_totals[i];
  __syncthreads();
  return up_to;
}

// Of sums up to items: the sum over items [first, end).
__device__ __forceinline__ uint32_t SumOf(const uint32_t* up_to, uint32_t first, uint32_t end) {
  return up_to[end - 1] - (first == 0 ? 0 : up_to[first - 1]);
}

// Bytes of a chunk of items [first, end).
__device__ __forceinline__ uint64_t ChunkSize(const PlanShared& shared, uint32_t first,
                                              uint32_t end) {
  const uint32_t groups = shared.tensors_up_to[end - 1] - shared.tensors_up_to[first] + 1;
  return 8 * (kHeaderWords + kTensorEntryWords * groups + end - first) +
         SumOf(shared.payload_up_to, first, end);
}

// Cuts `items` tiles into chunks: each ends with the item that fills it. One thread.
__device__ inline void CutChunks(PlanShared& shared, uint32_t items, uint64_t target_bytes) {
  uint32_t chunks = 0;
  for (uint32_t first = 0; first < items;) {
    shared.chunk_first[chunks++] = static_cast<uint16_t>(first);
    // The first end that is enough.
    uint32_t low = first + 1;
    uint32_t high = items;
    while (low < high) {
      const uint32_t middle = (low + high) / 2;
      if (ChunkSize(shared, first, middle) >= target_bytes) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    first = low;
  }
  shared.chunk_first[chunks] = static_cast<uint16_t>(items);
  shared.chunks = chunks;
}

// The chunk of the span that has an item.
__device__ __forceinline__ uint32_t ChunkOf(const PlanShared& shared, uint32_t item) {
  uint32_t low = 0;
  uint32_t high = shared.chunks;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (shared.chunk_first[middle] <= item) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Registers chunk `i` of the span and writes its header.
__device__ inline void OpenChunk(const DiffTables& tables, PlanShared& shared, uint32_t span,
                                 uint32_t i) {
  const uint32_t items = shared.chunk_first[i + 1] - shared.chunk_first[i];
  const uint32_t groups = shared.chunk_first_group[i + 1] - shared.chunk_first_group[i];
  const uint32_t first = shared.chunk_first[i];
  const uint32_t payload_at = 8 * (kHeaderWords + kTensorEntryWords * groups + items);
  const uint32_t payload = SumOf(shared.payload_up_to, first, first + items);
  const uint32_t changed = SumOf(shared.changed_up_to, first, first + items);
  const uint32_t size = payload_at + payload;
  const uint64_t at = atomicAdd(&tables.counters->arena_used,
                                static_cast<unsigned long long>(RoundUp(size, kChunkAlignment)));
  const uint32_t number = atomicAdd(&tables.counters->chunks, 1u);
  const uint32_t pieces = (size + kPieceBytes - 1) / kPieceBytes;
  const uint32_t first_piece = atomicAdd(&tables.counters->pieces, pieces);
  shared.chunk_arena_at[i] = UINT64_MAX;
  if (at + size > tables.arena_bytes || number >= tables.max_chunks ||
      first_piece + pieces > tables.max_pieces) {
    // The host sees the cursors past their ends.
    return;
  }
  shared.chunk_arena_at[i] = at;
  tables.chunks[number] = {at,   changed, size, payload_at, span, i, span * kSpanTileCount + first,
                           items};
  for (uint32_t k = 0; k < pieces; ++k) tables.pieces[first_piece + k] = {number, k};
  uint64_t* const header = reinterpret_cast<uint64_t*>(tables.arena + at);
  header[0] = 0x4b435357ull | 1ull << 32;
  header[1] = tables.transaction;
  header[2] = span | uint64_t{tables.contributor} << 32 | uint64_t{i} << 48;
  header[3] = groups | uint64_t{items} << 32;
  header[4] = changed;
  header[5] = payload;
  header[6] = 0;
}

__device__ inline void WriteTensorEntry(const DiffTables& tables, const PlanShared& shared,
                                        uint32_t group) {
  const uint32_t item = shared.group_first[group];
  const uint32_t chunk = ChunkOf(shared, item);
  if (shared.chunk_arena_at[chunk] == UINT64_MAX) return;
  const TensorEntry& tensor = tables.tensors[shared.tensor[item]];
  uint64_t* const entry = reinterpret_cast<uint64_t*>(tables.arena + shared.chunk_arena_at[chunk]) +
                          kHeaderWords +
                          kTensorEntryWords * (group - shared.chunk_first_group[chunk]);
  // The next group may be in the next chunk, whose first item ends this one.
  entry[0] = tensor.index | uint64_t{shared.group_first[group + 1] - item} << 32;
  entry[1] = tensor.elements;
  entry[2] = tensor.element_bytes;
}

__device__ inline void WriteTileEntry(const DiffTables& tables, const PlanShared& shared,
                                      uint32_t span, uint32_t item) {
  const uint32_t chunk = ChunkOf(shared, item);
  if (shared.chunk_arena_at[chunk] == UINT64_MAX) return;
  const uint32_t first = shared.chunk_first[chunk];
  const uint32_t groups = shared.chunk_first_group[chunk + 1] - shared.chunk_first_group[chunk];
  const uint32_t items = shared.chunk_first[chunk + 1] - first;
  const uint32_t entries = kHeaderWords + kTensorEntryWords * groups;
  const uint64_t number = uint64_t{span} * kSpanTileCount + shared.tile[item];
  const uint64_t first_tile = tables.tensors[shared.tensor[item]].first_tile;
  reinterpret_cast<uint64_t*>(tables.arena + shared.chunk_arena_at[chunk])[entries + item - first] =
      number - first_tile | uint64_t{shared.packed[item]} << 32;
  tables.items[span * kSpanTileCount + item] = {
      shared.slab_at[item],
      8 * (entries + items) + (item == first ? 0 : SumOf(shared.payload_up_to, first, item)),
      shared.tile[item]};
}

// Gives the leaves of the span's tiles their numbers and lists them; record: of the thread's tile,
// null where nothing changes. There is room: SizesFor.
__device__ inline void AddLeaves(const DiffTables& tables, PlanShared& shared, TileRecord* record) {
  const uint32_t bytes = record != nullptr ? record->bytes : 0;
  const uint32_t whole = bytes / kLeafBytes;
  const uint32_t last = bytes % kLeafBytes;
  const uint32_t has_last = last != 0 ? 1 : 0;
  const uint32_t whole_up_to = PlanInclusiveSum(whole, shared);
  const uint32_t last_up_to = PlanInclusiveSum(has_last, shared);
  if (threadIdx.x == kPlanThreads - 1) {
    shared.first_leaf = atomicAdd(&tables.counters->leaves, whole_up_to + last_up_to);
    shared.first_whole_leaf = atomicAdd(&tables.counters->whole_leaves, whole_up_to);
    shared.first_last_leaf = atomicAdd(&tables.counters->last_leaves, last_up_to);
  }
  __syncthreads();
  if (record == nullptr) return;
  const uint32_t first = shared.first_leaf + whole_up_to - whole + last_up_to - has_last;
  record->leaf = first;
  const uint32_t at = shared.first_whole_leaf + whole_up_to - whole;
  for (uint32_t i = 0; i < whole; ++i) {
    tables.leaves[at + i] = {record->slab_at + i * kLeafBytes, kLeafBytes, first + i};
  }
  if (last != 0) {
    const uint32_t from_end = shared.first_last_leaf + last_up_to - 1;
    tables.leaves[tables.max_leaves - 1 - from_end] = {record->slab_at + whole * kLeafBytes, last,
                                                       first + whole};
  }
}

__global__ void __launch_bounds__(kPlanThreads) PlanKernel(const DiffTables tables) {
  __shared__ PlanShared shared;
  const uint32_t span = tables.first_span + blockIdx.x;
  const uint32_t thread = threadIdx.x;
  // The whole pass has failed, and the host will say so.
  if (tables.counters->slab_used > tables.slab_bytes) return;

  const uint64_t number = uint64_t{span} * kSpanTileCount + thread;
  TileRecord* const record = number < tables.end_tile ? &tables.tiles[number] : nullptr;
  const bool is_changed = record != nullptr && record->bytes != 0;
  const uint32_t up_to = PlanInclusiveSum(is_changed ? 1 : 0, shared);
  const uint32_t item = up_to - 1;
  if (tables.max_leaves != 0) AddLeaves(tables, shared, is_changed ? record : nullptr);
  if (thread == kPlanThreads - 1) shared.groups = up_to;
  if (is_changed) {
    shared.tile[item] = thread;
    shared.tensor[item] = tables.tile_tensors[number];
    shared.packed[item] = record->packed;
    shared.slab_at[item] = record->slab_at;
    shared.payload_up_to[item] = static_cast<uint32_t>(RoundUp(record->bytes, 8));
    shared.changed_up_to[item] = record->changed;
  }
  __syncthreads();
  // From here on a thread for each item.
  const uint32_t items = shared.groups;
  const bool is_item = thread < items;
  const bool is_new_tensor =
      is_item && (thread == 0 || shared.tensor[thread] != shared.tensor[thread - 1]);
  if (is_new_tensor) tables.sums[shared.tensor[thread]].is_touched = 1;
  const uint32_t payload = PlanInclusiveSum(is_item ? shared.payload_up_to[thread] : 0, shared);
  const uint32_t changed = PlanInclusiveSum(is_item ? shared.changed_up_to[thread] : 0, shared);
  const uint32_t tensors = PlanInclusiveSum(is_new_tensor ? 1 : 0, shared);
  if (is_item) {
    shared.payload_up_to[thread] = payload;
    shared.changed_up_to[thread] = changed;
    shared.tensors_up_to[thread] = tensors;
  }
  __syncthreads();
  if (thread == 0) CutChunks(shared, items, tables.chunk_target_bytes);
  __syncthreads();
  const uint32_t chunk = is_item ? ChunkOf(shared, thread) : 0;
  const bool is_new_chunk = is_item && shared.chunk_first[chunk] == thread;
  const bool is_new_group = is_new_tensor || is_new_chunk;
  const uint32_t groups = PlanInclusiveSum(is_new_group ? 1 : 0, shared);
  if (is_new_group) shared.group_first[groups - 1] = static_cast<uint16_t>(thread);
  if (is_new_chunk) shared.chunk_first_group[chunk] = static_cast<uint16_t>(groups - 1);
  if (thread == kPlanThreads - 1) {
    shared.group_first[groups] = static_cast<uint16_t>(items);
    shared.chunk_first_group[shared.chunks] = static_cast<uint16_t>(groups);
    shared.groups = groups;
    atomicAdd(&tables.counters->changed_tiles, items);
    atomicAdd(&tables.counters->changed, static_cast<unsigned long long>(changed));
  }
  __syncthreads();
  if (thread < shared.chunks) OpenChunk(tables, shared, span, thread);
  __syncthreads();
  if (thread < shared.groups) WriteTensorEntry(tables, shared, thread);
  if (is_item) WriteTileEntry(tables, shared, span, thread);
}

}  // namespace wstore::cuda
