// What host and device code of the differ share: tables in device memory, as plain numbers.
#pragma once

#include <cstdint>

namespace wstore::cuda {

inline constexpr uint32_t kTileElementCount = 65536;
inline constexpr uint32_t kBlockElementCount = 256;
inline constexpr uint32_t kSpanTileCount = 512;
// Bytes that one pair of multipliers A of the fingerprint covers.
inline constexpr uint32_t kSumBlockBytes = 512;
// Tiles lie at multiples of this in the slab, chunks at multiples of this in the arena.
inline constexpr uint32_t kSlabAlignment = 16;
inline constexpr uint32_t kChunkAlignment = 1024;
// A chunk is put together in pieces of so many bytes, each by one thread block.
inline constexpr uint32_t kPieceBytes = 64 << 10;
inline constexpr uint32_t kLeafBytes = 4096;

// One tensor, at one address on each side: of its first element, or where that would be if only
// later ones are held.
struct TensorEntry {
  const uint8_t* old_data;
  const uint8_t* new_data;  // null where only one side is summed
  uint64_t elements;        // of all of it
  // Elements that are there, from a multiple of kBlockElementCount on. Nothing else is read.
  uint64_t held_first;
  uint64_t held_end;
  uint64_t first_tile;  // its number in the whole checkpoint
  // Philox key and upper half of the counter: TensorFingerprinter::philox_key.
  uint64_t philox_key;
  uint64_t philox_high;
  uint32_t element_bytes;
  uint32_t index;  // in the manifest
};

// Sums of one tensor, both lanes of each: the whole of its new side, and its changed elements on
// both sides.
struct TensorSumsEntry {
  unsigned long long after[2];
  unsigned long long touched_before[2];
  unsigned long long touched_after[2];
  unsigned long long is_touched;  // or 0: nothing changes
};

// The encoded changes of one tile, by number of the tile in the whole checkpoint. All zero where no
// element of the tile is held.
struct TileRecord {
  uint64_t slab_at;
  uint32_t bytes;    // canonical; 0: nothing changes
  uint32_t changed;  // elements
  uint32_t packed;   // the second word of a tile entry of the chunk format
  uint32_t leaf;     // number of its first leaf digest
};

// A tile in a chunk. Those of a chunk are consecutive.
struct ChunkItem {
  uint64_t slab_at;
  uint32_t chunk_at;  // byte in the chunk
  uint32_t tile;      // number in its span
};

struct ChunkRecord {
  uint64_t arena_at;
  uint64_t changed;
  uint32_t size;  // bytes
  uint32_t payload_at;
  uint32_t span;
  uint32_t part;
  uint32_t first_item;
  uint32_t items;
};

struct Piece {
  uint32_t chunk;
  uint32_t number;  // in its chunk
};

struct LeafJob {
  uint64_t slab_at;
  uint32_t bytes;
  uint32_t leaf;  // number of its digest
};

// Cursors that the kernels move. All zero at the start of a pass; next_tile also at the start of
// each of its parts.
struct Counters {
  unsigned long long slab_used;   // bytes asked for; past the capacity, the pass has failed
  unsigned long long arena_used;  // the same
  unsigned long long changed;     // elements
  unsigned int next_tile;
  unsigned int chunks;
  unsigned int pieces;
  unsigned int leaves;
  unsigned int whole_leaves;  // jobs for leaves of kLeafBytes, from the front of the list
  unsigned int last_leaves;   // and for shorter ones, from its end
  unsigned int changed_tiles;
};

// Everything that a pass needs, given to each of its kernels by value. A pass may be done in parts,
// ranges of spans one after another: kernels that make chunks and digests go on where those of the
// part before have stopped.
struct DiffTables {
  const TensorEntry* tensors;
  const uint32_t* tile_tensors;           // by tile of the checkpoint: which entry of `tensors`
  const uint32_t* held_tiles;             // numbers of those held at least in part; null: all are
  const unsigned long long* multipliers;  // B of the fingerprint: 128 of lane 0, 128 of lane 1
  TileRecord* tiles;
  TensorSumsEntry* sums;  // by entry of `tensors`
  Counters* counters;
  const Counters* before;  // as the part before left them
  uint8_t* slab;
  uint8_t* arena;
  ChunkItem* items;                // kSpanTileCount for each span
  ChunkRecord* chunks;             // max_chunks
  Piece* pieces;                   // max_pieces
  unsigned long long* block_sums;  // 8 for each KiB of the arena
  LeafJob* leaves;                 // max_leaves
  uint32_t* leaf_digests;          // 8 words for each leaf
  uint32_t* tile_digests;          // 8 words for each tile of the checkpoint, as they are in memory
  uint64_t slab_bytes;
  uint64_t arena_bytes;
  uint64_t first_tile;  // of this part
  uint64_t end_tile;
  uint64_t first_held;  // of this part, in held_tiles; without that, its first tile
  uint64_t end_held;
  uint64_t transaction;
  uint64_t chunk_target_bytes;
  uint32_t first_span;  // of this part
  uint32_t span_count;
  uint32_t max_chunks;
  uint32_t max_pieces;
  uint32_t max_leaves;
  uint32_t contributor;
  uint32_t sums_touched;  // not only the new side
  uint32_t tile_runs;     // TileRuns
  uint32_t block_turns;   // kFewTurns or kAllTurns
};

// Thread blocks of the differ take kTileRun tiles at a time, so that the sums of small tensors are
// closed less often; and one by one near the end, so that no block is late. The number of runs.
inline constexpr uint32_t kTileRun = 4;
constexpr uint32_t TileRuns(uint64_t tile_count, uint64_t blocks) {
  const uint64_t one_by_one = 8 * blocks;
  return tile_count > one_by_one ? static_cast<uint32_t>((tile_count - one_by_one) / kTileRun) : 0;
}

// After so many turns (runs, or tiles behind them) a block may end, some 200 us, so that work of a
// stream of higher priority finds room on the device in the middle of a pass. Without that a pass
// is 5% faster.
inline constexpr uint32_t kFewTurns = 2;
inline constexpr uint32_t kAllTurns = UINT32_MAX;
// The blocks that all turns take, of which `resident` are on the device at a time.
constexpr uint32_t DiffBlocks(uint64_t tile_count, uint64_t resident, uint32_t block_turns) {
  const uint64_t turns = tile_count - TileRuns(tile_count, resident) * (kTileRun - uint64_t{1});
  const uint64_t blocks = (turns + block_turns - 1) / block_turns;
  return static_cast<uint32_t>(blocks > resident ? blocks : resident);
}

// What an audit needs: the new side of these tables, and sums only of it.
struct AuditTables {
  const TensorEntry* tensors;
  const uint32_t* tile_tensors;
  const uint32_t* held_tiles;  // null: all
  const unsigned long long* multipliers;
  TensorSumsEntry* sums;
  uint64_t first_held;  // those to be summed, in held_tiles; without that, tiles
  uint64_t end_held;
};

}  // namespace wstore::cuda
