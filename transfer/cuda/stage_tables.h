// What host and device code share of staging chunks that lie in device memory.
#pragma once

#include <cstdint>

#include "transfer/cuda/replica_tables.h"
#include "transfer/cuda/tables.h"

namespace wstore::cuda {

// Room for the header and the entries of a chunk: kMaxDirectoryBytes.
inline constexpr uint32_t kHeadBytes = 16448;

// A chunk that may be anything, of a size that one can have.
struct StageSource {
  const uint8_t* data;  // at a multiple of 16
  uint64_t sums_at;     // of its first KiB, in StageTables::block_sums
  uint32_t size;        // 64 and more, a multiple of 8
  uint32_t reserved;
};

// The changes of one tile in one cell, or in none. A tile has a job at least, and one that checks
// its bytes.
struct StageJob {
  const uint8_t* bytes;  // of the tile, at a multiple of 8; zeros up to the next one are part of it
  uint64_t base;         // kStageWhole: the place of offset 0, modulo 2^64
  uint32_t tile;         // number in its tensor
  uint32_t cell;         // or kNoCell
  uint32_t packed;       // the second word of the tile's entry
  uint32_t elements;     // of the tile
  uint32_t chunk;        // number in StageTables::faults and columns
  uint8_t element_bytes;
  uint8_t flags;
  uint16_t reserved;
};
inline constexpr uint32_t kNoCell = UINT32_MAX;
inline constexpr uint8_t kStageChecks = 1;
inline constexpr uint8_t kStageWhole = 2;  // the cell has the whole tile, in one run of stride 1

// What a job's cell has of its tile. Without entries all zero.
struct StageFound {
  uint64_t low;      // the lowest place
  uint64_t spread;   // the highest less the lowest
  uint32_t count;    // entries
  uint32_t is_same;  // places less offsets are all equal
  uint32_t first;    // offset of the first entry
  uint32_t last;
};

// A group that a job fills.
struct StageWrite {
  uint32_t job;
  uint32_t group;  // in the columns of its chunk
};

struct StageLeaf {
  const uint8_t* data;  // at a multiple of 8; as StageJob::bytes
  uint32_t bytes;
  uint32_t leaf;  // number of its digest
};

struct StageRoot {
  uint32_t leaf;  // the first of the tile's
  uint32_t bytes;
};

// Given to each kernel by value; each needs the part that is its own.
struct StageTables {
  const StageSource* sources;
  const Piece* pieces;             // of sources
  unsigned long long* block_sums;  // 8 for each KiB of a source
  uint8_t* heads;                  // kHeadBytes for each source; in host memory
  uint32_t* verdicts;              // by source: 1 if its checksum is right; in host memory
  const CellEntry* cells;
  const StageJob* jobs;
  StageFound* found;  // by job
  uint32_t* faults;   // by chunk, zero at first: not 0 if its bytes are not those of a chunk
  const StageWrite* writes;
  const PieceColumns* columns;  // by chunk
  const StageLeaf* leaves;      // whole ones first
  const StageRoot* roots;       // by tile
  uint32_t* leaf_digests;       // 8 words for each leaf
  uint32_t* tile_digests;       // 8 words for each tile, as they are in memory
  uint32_t source_count;
  uint32_t piece_count;
  uint32_t job_count;
  uint32_t write_count;
  uint32_t leaf_count;
  uint32_t root_count;
};

}  // namespace wstore::cuda
