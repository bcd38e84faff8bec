// A staged update: the changed elements of one rank, with their places in its memory, in the form
// that is fastest to apply. It takes little more memory than the chunks it came from.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "transfer/replica/plan.h"
#include "wstore/chunk.h"

namespace wstore {

// How the local places of a group are known. A place counts elements from the group's local_base,
// modulo 2^64.
enum class PlaceForm : uint8_t {
  kSame,   // the place is the offset within the tile
  kNear,   // a column of 16 bits
  kFar,    // a column of 32 bits
  kDense,  // consecutive places, one value for each, zero where nothing changes
};

// Changes of one tile in one cell.
struct StagedGroup {
  uint64_t local_base = 0;
  uint32_t cell = 0;
  uint32_t tile = 0;
  uint32_t count = 0;       // entries, of which there is a value each
  uint32_t offsets_at = 0;  // first entry in the offset column; kDense: offset of the first entry
  uint32_t places_at = 0;   // kNear, kFar: first entry in the column of places
  uint32_t values_at = 0;   // in units of kValueAlignment
  PlaceForm form = PlaceForm::kSame;
};
inline constexpr uint32_t kValueAlignment = 8;

// The groups of one chunk, by tile, then by cell. The columns of one that the backend decoded are
// in its copy alone, until MemoryBackend::FetchColumns brings them.
struct StagedPiece {
  std::vector<StagedGroup> groups;
  std::vector<uint16_t> offsets;  // within the tile, of all groups but dense ones
  std::vector<uint16_t> near;
  std::vector<uint32_t> far;
  std::vector<uint8_t> values;  // XOR bits
  uint64_t changed = 0;         // elements, copies counted each
  uint64_t absent_bytes = 0;    // of the columns, where they are not here
  // What the backend keeps beside it, such as a copy in device memory.
  std::shared_ptr<const void> backend_copy;

  bool has_columns() const { return absent_bytes == 0; }
  uint64_t size_bytes() const;  // with what is absent
  const uint8_t* values_of(const StagedGroup& group) const {
    return values.data() + size_t{group.values_at} * kValueAlignment;
  }
  absl::Span<const uint16_t> offsets_of(const StagedGroup& group) const {
    return absl::MakeConstSpan(offsets.data() + group.offsets_at, group.count);
  }
};

// What is written, checked and undone as one: consecutive groups of a piece. `expected` are sums
// over the old and the new bits of its entries in the order in which they are staged, as the
// backend takes them.
struct Unit {
  const StagedPiece* piece = nullptr;
  uint32_t first_group = 0;
  uint32_t group_count = 0;
  TouchedSums expected;

  absl::Span<const StagedGroup> groups() const {
    return absl::MakeConstSpan(piece->groups).subspan(first_group, group_count);
  }
};
// A unit is closed when it has this many entries. A group, of at most a tile, is never cut.
inline constexpr uint64_t kUnitEntries = 32768;
// Nor has it more groups than this.
inline constexpr uint32_t kUnitGroups = 4096;

// A whole update.
struct StagedPatch {
  std::vector<std::unique_ptr<StagedPiece>> pieces;
  std::vector<Unit> units;
  uint64_t changed = 0;
  uint64_t size_bytes = 0;

  void Add(std::unique_ptr<StagedPiece> piece);
  // With the units that it was cut into before.
  void Add(std::unique_ptr<StagedPiece> piece, absl::Span<const Unit> piece_units);
};

// Cuts a piece into units.
void AppendUnits(const StagedPiece& piece, std::vector<Unit>* units);

// Makes pieces. Keeps its buffers between uses. Not thread-safe.
class PieceBuilder {
 public:
  // `plan` must outlive the builder. `allow_dense`: nobody else changes elements between those of a
  // tile, so that they may be rewritten as they are.
  PieceBuilder(const Plan& plan, bool allow_dense) : plan_(plan), allow_dense_(allow_dense) {}

  // Adds the local elements of a tile's changes, for each cell that has some.
  void AddTile(const EncodedTile& tile);
  // Adds changes in one cell. places: local elements, by entry. Offsets ascend.
  void AddGroup(uint32_t cell, uint32_t tile, absl::Span<const uint16_t> offsets,
                absl::Span<const uint64_t> places, const uint8_t* values);

  // The piece, of exactly the size that it needs, or null if it is empty. The builder is as new.
  std::unique_ptr<StagedPiece> Finish();
  // Drops what was added.
  void Clear();
  bool empty() const { return piece_.groups.empty(); }
  uint64_t size_bytes() const { return piece_.size_bytes(); }

 private:
  void Locate(const PlannedCell& cell, uint64_t first_element);
  void AddPlaced(const StagedGroup& group, absl::Span<const uint16_t> offsets,
                 absl::Span<const uint64_t> places, const uint8_t* values);
  bool AddDense(StagedGroup group, absl::Span<const uint16_t> offsets, uint64_t first_place,
                const uint8_t* values);
  void AddValues(StagedGroup* group, const uint8_t* values, size_t size_bytes);

  const Plan& plan_;
  const bool allow_dense_;
  StagedPiece piece_;
  TileChanges changes_;
  // The entries of changes_ that are in one cell.
  std::vector<uint16_t> offsets_;
  std::vector<uint64_t> places_;
  std::vector<uint8_t> values_;
};

}  // namespace wstore
