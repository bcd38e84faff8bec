#include "transfer/replica/undo_history.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "common/bytes.h"

namespace wstore {

void UndoHistory::Add(Entry entry) {
  entries_.push_back(std::move(entry));
  uint64_t kept_bytes = 0;
  size_t first = entries_.size();
  while (first > 0 && entries_[first - 1].patch->size_bytes <= budget_bytes_ - kept_bytes) {
    kept_bytes += entries_[--first].patch->size_bytes;
  }
  Drop(0, first);
}

void UndoHistory::DropNewest(size_t count) { Drop(entries_.size() - count, entries_.size()); }

void UndoHistory::Drop(size_t first, size_t last) {
  for (size_t i = first; i < last; ++i) reaper_->Take(std::move(entries_[i].patch));
  entries_.erase(entries_.begin() + first, entries_.begin() + last);
}

std::optional<size_t> UndoHistory::StepsTo(VersionId version) const {
  for (size_t steps = 1; steps <= entries_.size(); ++steps) {
    if (entries_[entries_.size() - steps].from.version == version) return steps;
  }
  return std::nullopt;
}

namespace {

struct PlacedGroup {
  const StagedPiece* piece;
  const StagedGroup* group;
};

// The joined changes of one tile in one cell.
class TileMerge {
 public:
  TileMerge() : values_(kTileElements), places_(kTileElements), is_touched_(kTileElements) {}

  void Add(const PlacedGroup& placed, uint32_t element_bytes) {
    const StagedGroup& group = *placed.group;
    const uint8_t* const values = placed.piece->values_of(group);
    for (uint32_t i = 0; i < group.count; ++i) {
      const uint16_t offset = OffsetOf(placed, i);
      uint64_t value = 0;
      std::memcpy(&value, values + size_t{i} * element_bytes, element_bytes);
      if (value == 0) continue;  // between the changes of a dense group
      values_[offset] ^= value;
      places_[offset] = group.local_base + PlaceOf(placed, i);
      is_touched_[offset] = true;
    }
  }

  // Adds what is left of the changes, and forgets them.
  void Finish(uint32_t cell, uint32_t tile, uint32_t element_bytes, PieceBuilder* builder) {
    offsets_.clear();
    entry_places_.clear();
    entry_values_.clear();
    for (uint32_t offset = 0; offset < kTileElements; ++offset) {
      if (!is_touched_[offset]) continue;
      is_touched_[offset] = false;
      const uint64_t value = std::exchange(values_[offset], 0);
      if (value == 0) continue;
      offsets_.push_back(static_cast<uint16_t>(offset));
      entry_places_.push_back(places_[offset]);
      const auto* const bytes = reinterpret_cast<const uint8_t*>(&value);
      entry_values_.insert(entry_values_.end(), bytes, bytes + element_bytes);
    }
    if (offsets_.empty()) return;
    builder->AddGroup(cell, tile, offsets_, entry_places_, entry_values_.data());
  }

 private:
  static uint16_t OffsetOf(const PlacedGroup& placed, uint32_t i) {
    const StagedGroup& group = *placed.group;
    if (group.form == PlaceForm::kDense) return static_cast<uint16_t>(group.offsets_at + i);
    return placed.piece->offsets[group.offsets_at + i];
  }
  static uint64_t PlaceOf(const PlacedGroup& placed, uint32_t i) {
    const StagedGroup& group = *placed.group;
    switch (group.form) {
      case PlaceForm::kSame:
        return placed.piece->offsets[group.offsets_at + i];
      case PlaceForm::kNear:
        return placed.piece->near[group.places_at + i];
      case PlaceForm::kFar:
        return placed.piece->far[group.places_at + i];
      case PlaceForm::kDense:
        return i;
    }
    return 0;
  }

  // By offset.
  std::vector<uint64_t> values_;
  std::vector<uint64_t> places_;
  std::vector<bool> is_touched_;
  // By entry.
  std::vector<uint16_t> offsets_;
  std::vector<uint64_t> entry_places_;
  std::vector<uint8_t> entry_values_;
};

}  // namespace

std::shared_ptr<StagedPatch> ComposeStaged(const Plan& plan,
                                           absl::Span<const UndoHistory::Entry> entries) {
  std::vector<PlacedGroup> groups;
  for (const UndoHistory::Entry& entry : entries) {
    for (const auto& piece : entry.patch->pieces) {
      for (const StagedGroup& group : piece->groups) groups.push_back({piece.get(), &group});
    }
  }
  const auto key = [](const PlacedGroup& a) { return std::tie(a.group->cell, a.group->tile); };
  std::sort(groups.begin(), groups.end(),
            [&](const PlacedGroup& a, const PlacedGroup& b) { return key(a) < key(b); });

  auto composed = std::make_shared<StagedPatch>();
  PieceBuilder builder(plan, /*allow_dense=*/true);
  TileMerge merge;
  for (size_t i = 0; i < groups.size();) {
    const StagedGroup& first = *groups[i].group;
    const uint32_t width = plan.cell(first.cell).element_bytes;
    for (; i < groups.size() && key(groups[i]) == std::tie(first.cell, first.tile); ++i) {
      merge.Add(groups[i], width);
    }
    merge.Finish(first.cell, first.tile, width, &builder);
    if (builder.size_bytes() >= kChunkTargetBytes || i == groups.size()) {
      if (auto piece = builder.Finish(); piece != nullptr) composed->Add(std::move(piece));
    }
  }
  return composed;
}

}  // namespace wstore
