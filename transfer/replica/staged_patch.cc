#include "transfer/replica/staged_patch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"

namespace wstore {
namespace {

template <typename T>
uint64_t BytesOf(const std::vector<T>& column) {
  return column.size() * sizeof(T);
}

template <typename T>
std::vector<T> TakeExactly(std::vector<T>* column) {
  std::vector<T> exact(column->begin(), column->end());
  column->clear();
  return exact;
}

}  // namespace

uint64_t StagedPiece::size_bytes() const {
  return sizeof(*this) + BytesOf(groups) + BytesOf(offsets) + BytesOf(near) + BytesOf(far) +
         BytesOf(values) + absent_bytes;
}

void AppendUnits(const StagedPiece& piece, std::vector<Unit>* units) {
  const auto group_count = static_cast<uint32_t>(piece.groups.size());
  for (uint32_t first = 0; first < group_count;) {
    uint32_t last = first;
    uint64_t entries = 0;
    while (last < group_count && last - first < kUnitGroups && entries < kUnitEntries) {
      entries += piece.groups[last++].count;
    }
    units->push_back({&piece, first, last - first, {}});
    first = last;
  }
}

void StagedPatch::Add(std::unique_ptr<StagedPiece> piece) {
  const size_t before = units.size();
  AppendUnits(*piece, &units);
  changed += piece->changed;
  size_bytes += piece->size_bytes() + (units.size() - before) * sizeof(Unit);
  pieces.push_back(std::move(piece));
}

void StagedPatch::Add(std::unique_ptr<StagedPiece> piece, absl::Span<const Unit> piece_units) {
  units.insert(units.end(), piece_units.begin(), piece_units.end());
  changed += piece->changed;
  size_bytes += piece->size_bytes() + piece_units.size() * sizeof(Unit);
  pieces.push_back(std::move(piece));
}

// Fills offsets_, places_ and values_ with the entries of changes_ that the cell has.
void PieceBuilder::Locate(const PlannedCell& cell, uint64_t first_element) {
  const absl::Span<const uint16_t> all(changes_.offsets);
  const uint32_t width = cell.element_bytes;
  offsets_.clear();
  places_.clear();
  values_.clear();
  SegmentCursor cursor(*cell.box);
  size_t i = 0;
  // The first entry whose element is at or behind `element`.
  const auto skip_to = [&](uint64_t element) {
    if (element <= first_element) return;
    const uint64_t offset = element - first_element;
    i = std::lower_bound(all.begin() + i, all.end(), offset) - all.begin();
  };
  skip_to(cell.begin);
  while (i < all.size() && cursor.Seek(first_element + all[i])) {
    const Segment& segment = cursor.segment();
    skip_to(segment.begin);
    const size_t begin = i;
    for (; i < all.size() && first_element + all[i] < segment.end; ++i) {
      places_.push_back(segment.local_begin +
                        (first_element + all[i] - segment.begin) * segment.local_stride);
    }
    offsets_.insert(offsets_.end(), all.begin() + begin, all.begin() + i);
    values_.insert(values_.end(), changes_.values.begin() + begin * width,
                   changes_.values.begin() + i * width);
  }
}

void PieceBuilder::AddTile(const EncodedTile& tile) {
  const uint64_t first_element = tile.place.tile * kTileElements;
  const absl::Span<const uint32_t> cells =
      plan_.CellsNear(tile.place.tensor, first_element, first_element + tile.elements);
  if (cells.empty()) return;
  DecodeTile(tile, &changes_);
  for (const uint32_t cell : cells) {
    Locate(plan_.cell(cell), first_element);
    if (!offsets_.empty()) AddGroup(cell, tile.place.tile, offsets_, places_, values_.data());
  }
}

void PieceBuilder::AddGroup(uint32_t cell, uint32_t tile, absl::Span<const uint16_t> offsets,
                            absl::Span<const uint64_t> places, const uint8_t* values) {
  const uint32_t width = plan_.cell(cell).element_bytes;
  piece_.changed += offsets.size();
  StagedGroup group;
  group.cell = cell;
  group.tile = tile;
  // Places further apart than 32 bits can tell go into groups of their own.
  for (size_t begin = 0; begin < offsets.size();) {
    uint64_t low = places[begin];
    uint64_t high = low;
    size_t end = begin + 1;
    for (; end < offsets.size(); ++end) {
      const uint64_t next_low = std::min(low, places[end]);
      const uint64_t next_high = std::max(high, places[end]);
      if (next_high - next_low > UINT32_MAX) break;
      low = next_low;
      high = next_high;
    }
    group.form = high - low > UINT16_MAX ? PlaceForm::kFar : PlaceForm::kNear;
    group.local_base = low;
    AddPlaced(group, offsets.subspan(begin, end - begin), places.subspan(begin, end - begin),
              values + begin * width);
    begin = end;
  }
}

void PieceBuilder::AddPlaced(const StagedGroup& base, absl::Span<const uint16_t> offsets,
                             absl::Span<const uint64_t> places, const uint8_t* values) {
  StagedGroup group = base;
  const uint64_t same = places[0] - offsets[0];
  bool is_same = true;
  for (size_t i = 0; i < offsets.size(); ++i) is_same &= places[i] - offsets[i] == same;
  if (is_same) {
    group.form = PlaceForm::kSame;
    group.local_base = same;
    if (allow_dense_ && AddDense(group, offsets, places[0], values)) return;
  }
  group.count = static_cast<uint32_t>(offsets.size());
  group.offsets_at = static_cast<uint32_t>(piece_.offsets.size());
  piece_.offsets.insert(piece_.offsets.end(), offsets.begin(), offsets.end());
  if (group.form == PlaceForm::kNear) {
    group.places_at = static_cast<uint32_t>(piece_.near.size());
    for (const uint64_t place : places) {
      piece_.near.push_back(static_cast<uint16_t>(place - group.local_base));
    }
  } else if (group.form == PlaceForm::kFar) {
    group.places_at = static_cast<uint32_t>(piece_.far.size());
    for (const uint64_t place : places) {
      piece_.far.push_back(static_cast<uint32_t>(place - group.local_base));
    }
  }
  AddValues(&group, values, offsets.size() * plan_.cell(group.cell).element_bytes);
  piece_.groups.push_back(group);
}

// Where most elements of a stretch change, a value for each of them is smaller than offsets are.
// False: they do not, or the cell does not have all elements of the stretch.
bool PieceBuilder::AddDense(StagedGroup group, absl::Span<const uint16_t> offsets,
                            uint64_t first_place, const uint8_t* values) {
  const PlannedCell& cell = plan_.cell(group.cell);
  const size_t width = cell.element_bytes;
  const size_t length = size_t{offsets.back()} - offsets.front() + 1;
  if (length * width >= offsets.size() * (sizeof(uint16_t) + width)) return false;
  const uint64_t first_element = group.tile * kTileElements + offsets.front();
  SegmentCursor cursor(*cell.box);
  if (!cursor.Seek(first_element) || cursor.segment().begin > first_element ||
      cursor.segment().end < first_element + length || cursor.segment().local_stride != 1) {
    return false;
  }
  group.form = PlaceForm::kDense;
  group.local_base = first_place;
  group.count = static_cast<uint32_t>(length);
  group.offsets_at = offsets.front();
  const size_t at = piece_.values.size();
  AddValues(&group, nullptr, length * width);
  for (size_t i = 0; i < offsets.size(); ++i) {
    std::memcpy(piece_.values.data() + at + (offsets[i] - offsets.front()) * width,
                values + i * width, width);
  }
  piece_.groups.push_back(group);
  return true;
}

// Without `values`, zeros.
void PieceBuilder::AddValues(StagedGroup* group, const uint8_t* values, size_t size_bytes) {
  const size_t at = piece_.values.size();
  WSTORE_CHECK(at / kValueAlignment <= UINT32_MAX);
  group->values_at = static_cast<uint32_t>(at / kValueAlignment);
  piece_.values.resize(at + (size_bytes + kValueAlignment - 1) / kValueAlignment * kValueAlignment);
  if (values != nullptr) std::memcpy(piece_.values.data() + at, values, size_bytes);
}

void PieceBuilder::Clear() {
  piece_.groups.clear();
  piece_.offsets.clear();
  piece_.near.clear();
  piece_.far.clear();
  piece_.values.clear();
  piece_.changed = 0;
}

std::unique_ptr<StagedPiece> PieceBuilder::Finish() {
  if (empty()) return nullptr;
  auto piece = std::make_unique<StagedPiece>();
  piece->groups = TakeExactly(&piece_.groups);
  piece->offsets = TakeExactly(&piece_.offsets);
  piece->near = TakeExactly(&piece_.near);
  piece->far = TakeExactly(&piece_.far);
  piece->values = TakeExactly(&piece_.values);
  piece->changed = std::exchange(piece_.changed, 0);
  return piece;
}

}  // namespace wstore
