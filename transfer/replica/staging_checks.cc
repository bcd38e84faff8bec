// What Staging proves of an update's content once all of it is there.
#include <algorithm>
#include <bitset>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/parallel.h"
#include "common/status_macros.h"
#include "transfer/replica/staging.h"
#include "wstore/patch_digest.h"

namespace wstore {
namespace {

struct ClaimedGroup {
  const StagedPiece* piece;
  const StagedGroup* group;
};

// Appends the groups of a tile, which are neighbours in its piece.
void AppendGroups(const Plan& plan, const StagedPiece* piece, TilePlace place,
                  std::vector<ClaimedGroup>* groups) {
  const auto place_of = [&plan](const StagedGroup& group) {
    return TilePlace{plan.cell(group.cell).box->tensor, group.tile};
  };
  auto group =
      std::lower_bound(piece->groups.begin(), piece->groups.end(), place,
                       [&](const StagedGroup& a, const TilePlace& b) { return place_of(a) < b; });
  for (; group != piece->groups.end() && place_of(*group) == place; ++group) {
    groups->push_back({piece, &*group});
  }
}

// An offset that two of the groups have, in any cell. With several contributors no group is dense.
std::optional<uint16_t> OffsetClaimedTwice(std::vector<ClaimedGroup> groups) {
  std::sort(groups.begin(), groups.end(), [](const ClaimedGroup& a, const ClaimedGroup& b) {
    return a.group->cell < b.group->cell;
  });
  std::bitset<kTileElements> claimed;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (i > 0 && groups[i].group->cell != groups[i - 1].group->cell) claimed.reset();
    for (const uint16_t offset : groups[i].piece->offsets_of(*groups[i].group)) {
      if (claimed[offset]) return offset;
      claimed.set(offset);
    }
  }
  return std::nullopt;
}

}  // namespace

absl::Status Staging::CheckClaims(absl::Span<const PlacedTile> tiles) const {
  for (size_t begin = 0; begin < tiles.size();) {
    const TilePlace place = tiles[begin].tile->place;
    size_t end = begin + 1;
    for (; end < tiles.size() && tiles[end].tile->place == place; ++end) {
      if (tiles[end].contributor == tiles[end - 1].contributor) {
        return absl::InvalidArgumentError(absl::StrCat(
            "contributor ", tiles[end].contributor, " sent tile ", place.tile, " of tensor '",
            plan_->manifest().tensor(place.tensor).spec.name, "' in two chunks"));
      }
    }
    if (end - begin > 1) RETURN_IF_ERROR(CheckShared(tiles.subspan(begin, end - begin)));
    begin = end;
  }
  return absl::OkStatus();
}

absl::Status Staging::CheckShared(absl::Span<const PlacedTile> parts) const {
  const TilePlace place = parts[0].tile->place;
  std::vector<ClaimedGroup> groups;
  for (const PlacedTile& part : parts) {
    if (part.piece == nullptr) continue;
    std::lock_guard<std::mutex> lock(fetch_mutex_);
    if (!part.piece->has_columns()) RETURN_IF_ERROR(backend_.fetch(part.piece));
    AppendGroups(*plan_, part.piece, place, &groups);
  }
  const std::optional<uint16_t> offset = OffsetClaimedTwice(std::move(groups));
  if (!offset.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("element ", place.tile * kTileElements + *offset, " of tensor '",
                   plan_->manifest().tensor(place.tensor).spec.name,
                   "' is changed by two contributors; their boxes must be disjoint"));
}

Digest Staging::TakeDigest(uint16_t contributor, absl::Span<const PlacedTile> tiles) {
  if (contributor >= incoming_.size() || incoming_[contributor].digester == nullptr) {
    return PatchDigester(plan_->manifest()).Finish();
  }
  Incoming& incoming = incoming_[contributor];
  if (incoming.digester->is_sound()) return incoming.digester->Finish();
  std::vector<const TileRecord*> sent;
  for (const PlacedTile& placed : tiles) {
    if (placed.contributor == contributor) sent.push_back(placed.tile);
  }
  const auto tile_at = [&](size_t i) {
    return DigestedTile{sent[i]->place, sent[i]->form, sent[i]->changed, &sent[i]->digest};
  };
  const int threads = std::min(DefaultParallelism(), kDigestThreads);
  return DigestTiles(plan_->manifest(), sent.size(), tile_at, threads);
}

absl::Status Staging::CheckDigests(absl::Span<const PlacedTile> tiles,
                                   absl::Span<const ContributorContent> contents) {
  std::vector<std::string> wrong;
  for (size_t i = 0; i < contents.size(); ++i) {
    const Digest digest = TakeDigest(static_cast<uint16_t>(i), tiles);
    if (digest != contents[i].digest) {
      wrong.push_back(absl::StrCat("contributor ", i, " sent ", ToHex(digest), ", declared is ",
                                   ToHex(contents[i].digest)));
    }
  }
  if (wrong.empty()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("transaction ", header_.transaction.value(),
                   ": content of another digest: ", absl::StrJoin(wrong, ", ")));
}

// Equal digests of equal tiles are equal changes. Where a tile came in several parts, these are
// compared in the order of their digests, whoever sent them.
absl::Status Staging::CheckAliases(absl::Span<const PlacedTile> tiles, bool is_partial) const {
  const auto changes_of = [&](TensorIndex tensor) {
    const auto by_tensor = [](const PlacedTile& a, TensorIndex b) {
      return a.tile->place.tensor < b;
    };
    auto placed = std::lower_bound(tiles.begin(), tiles.end(), tensor, by_tensor);
    std::vector<std::tuple<uint32_t, Digest, TileForm, uint32_t>> changes;
    for (; placed != tiles.end() && placed->tile->place.tensor == tensor; ++placed) {
      const TileRecord& tile = *placed->tile;
      changes.emplace_back(tile.place.tile, tile.digest, tile.form, tile.changed);
    }
    std::sort(changes.begin(), changes.end());
    return changes;
  };
  std::vector<std::string> unequal;
  for (const AliasGroup& group : plan_->layout().aliases()) {
    if (is_partial && plan_->layout().placements(group[0]).empty()) continue;
    const auto expected = changes_of(group[0]);
    for (size_t i = 1; i < group.size(); ++i) {
      if (changes_of(group[i]) == expected) continue;
      unequal.push_back(absl::StrCat("'", plan_->manifest().tensor(group[0]).spec.name, "' and '",
                                     plan_->manifest().tensor(group[i]).spec.name, "'"));
    }
  }
  if (unequal.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "tensors that are one memory here have unequal patches: ", absl::StrJoin(unequal, ", "),
      "; publish the same changes for both"));
}

}  // namespace wstore
