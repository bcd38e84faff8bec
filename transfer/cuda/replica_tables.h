// What host and device code of the replica backend share.
#pragma once

#include <cstdint>

namespace wstore::cuda {

inline constexpr uint32_t kMaxCellDims = 8;

// One dimension of a cell's loop nest, outermost first. See PlacementDim.
struct CellDim {
  uint64_t count;
  uint64_t checkpoint_stride;
  uint64_t local_stride;
};

// A cell of the rank, in memory.
struct CellEntry {
  uint8_t* buffer;
  uint64_t checkpoint_offset;
  uint64_t local_offset;
  uint64_t elements;
  uint64_t philox_key;
  uint64_t philox_high;
  uint32_t element_bytes;
  uint32_t dims;
  CellDim dim[kMaxCellDims];
};

// PlaceForm.
inline constexpr uint8_t kPlaceSame = 0;
inline constexpr uint8_t kPlaceNear = 1;
inline constexpr uint8_t kPlaceFar = 2;
inline constexpr uint8_t kPlaceDense = 3;

// StagedGroup, byte for byte.
struct GroupEntry {
  uint64_t local_base;
  uint32_t cell;
  uint32_t tile;
  uint32_t count;
  uint32_t offsets_at;
  uint32_t places_at;
  uint32_t values_at;
  uint8_t form;
  uint8_t reserved[7];
};

// A staged piece where the device reaches it.
struct PieceColumns {
  const GroupEntry* groups;
  const uint16_t* offsets;
  const uint16_t* near;
  const uint32_t* far;
  const uint8_t* values;
};

struct UnitEntry {
  PieceColumns columns;
  uint32_t first_group;
  uint32_t group_count;
  uint64_t sums_at;  // of its first group, in the array of group sums
};

// Two lanes before and after.
struct SumsEntry {
  unsigned long long before[2];
  unsigned long long after[2];
};

// A stretch of one cell, in elements of its loop nest, in order.
struct CellStretch {
  uint64_t begin;
  uint64_t end;
  uint32_t cell;
  uint32_t reserved;
};

struct ReplicaTables {
  const CellEntry* cells;
  const UnitEntry* units;
  const unsigned long long* multipliers;  // B, as in DiffTables
  SumsEntry* unit_sums;                   // by unit
  SumsEntry* group_sums;                  // see UnitEntry::sums_at
  uint64_t unit_key[2];                   // of the sums of units
  uint64_t group_count;                   // of all units
  uint32_t unit_count;
  uint32_t reserved;
};

}  // namespace wstore::cuda
