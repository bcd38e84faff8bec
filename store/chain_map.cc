#include "store/chain_map.h"

#include <algorithm>
#include <utility>

#include "store/records.h"

namespace wstore {

void ChainMap::Reset(std::vector<Fingerprint> base) {
  Clear();
  has_version_ = true;
  fingerprints_ = std::move(base);
}

void ChainMap::Clear() {
  has_version_ = false;
  version_ = VersionId(0);
  fingerprints_.clear();
  touching_.clear();
  pairs_ = 0;
  unlisted_.clear();
  has_removed_ = false;
}

void ChainMap::Append(VersionId child, const v1::TouchedTable& table, const TileList* tiles) {
  DropRemoved();
  for (const v1::TouchedTensor& entry : table.tensors()) {
    fingerprints_[entry.tensor()] = FromProto(entry.fingerprint());
  }
  version_ = child;
  if (tiles == nullptr || tiles->size() > limits_.tiles_of_set ||
      pairs_ + tiles->size() > limits_.pairs) {
    unlisted_.insert(child);
    return;
  }
  for (const TilePlace place : *tiles) touching_[manifest_.GlobalTile(place)].push_back(child);
  pairs_ += tiles->size();
}

void ChainMap::Remove(VersionId parent, const v1::TouchedTable& table) {
  for (const v1::TouchedTensor& entry : table.tensors()) {
    const TouchedSums sums{FromProto(entry.touched_before()), FromProto(entry.touched_after())};
    fingerprints_[entry.tensor()] = FromProto(entry.fingerprint()) - sums.change();
  }
  version_ = parent;
  has_removed_ = true;
}

// Versions only grow along a chain, so all above this one are off it, and each list's last.
void ChainMap::DropRemoved() {
  if (!std::exchange(has_removed_, false)) return;
  unlisted_.erase(unlisted_.upper_bound(version_), unlisted_.end());
  pairs_ = 0;
  for (auto it = touching_.begin(); it != touching_.end();) {
    const auto tile = it++;
    auto& versions = tile->second;
    while (!versions.empty() && versions.back() > version_) versions.pop_back();
    pairs_ += versions.size();
    if (versions.empty()) touching_.erase(tile);
  }
}

std::vector<VersionId> ChainMap::Touching(const TileList& tiles) {
  DropRemoved();
  std::vector<VersionId> versions(unlisted_.begin(), unlisted_.end());
  for (const TilePlace place : tiles) {
    const auto found = touching_.find(manifest_.GlobalTile(place));
    if (found == touching_.end()) continue;
    versions.insert(versions.end(), found->second.begin(), found->second.end());
  }
  std::sort(versions.begin(), versions.end());
  versions.erase(std::unique(versions.begin(), versions.end()), versions.end());
  return versions;
}

}  // namespace wstore
