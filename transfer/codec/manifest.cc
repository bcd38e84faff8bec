#include "wstore/manifest.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/strings.h"

namespace wstore {
namespace {

// Levenshtein distance, given up (returning `limit` + 1) once it must exceed `limit`.
size_t EditDistance(std::string_view a, std::string_view b, size_t limit) {
  const size_t difference = a.size() > b.size() ? a.size() - b.size() : b.size() - a.size();
  if (difference > limit) return limit + 1;
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    size_t best = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
      best = std::min(best, row[j]);
    }
    if (best > limit) return limit + 1;
  }
  return row[b.size()];
}

}  // namespace

absl::StatusOr<Manifest> Manifest::Create(std::vector<TensorSpec> tensors) {
  if (tensors.size() > std::numeric_limits<TensorIndex>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat(tensors.size(), " tensors; the limit is 2^32 - 1"));
  }
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; });
  Manifest manifest;
  manifest.tensors_.reserve(tensors.size());
  manifest.by_name_.reserve(tensors.size());
  std::vector<std::string> repeated;
  std::vector<std::string> too_large;
  for (TensorSpec& spec : tensors) {
    const absl::StatusOr<uint64_t> bytes = TensorBytes(spec);
    if (!bytes.ok()) {
      too_large.emplace_back(bytes.status().message());
      continue;
    }
    Tensor tensor;
    tensor.element_bytes = StorageElementBytes(spec.dtype);
    tensor.elements = *bytes / tensor.element_bytes;
    const uint64_t tiles = (tensor.elements + kTileElements - 1) / kTileElements;
    if (tiles > std::numeric_limits<uint32_t>::max()) {
      too_large.push_back(absl::StrCat("tensor '", spec.name, "' has more than 2^48 elements"));
      continue;
    }
    tensor.tiles = static_cast<uint32_t>(tiles);
    tensor.first_tile = manifest.tiles_;
    if (__builtin_add_overflow(manifest.size_bytes_, *bytes, &manifest.size_bytes_)) {
      too_large.push_back(absl::StrCat("up to tensor '", spec.name, "' the sizes exceed 2^64 bytes"));
    }
    manifest.tiles_ += tiles;
    manifest.elements_ += tensor.elements;
    const TensorIndex index = static_cast<TensorIndex>(manifest.tensors_.size());
    if (!manifest.by_name_.emplace(spec.name, index).second) {
      if (repeated.empty() || repeated.back() != spec.name) repeated.push_back(spec.name);
    }
    tensor.spec = std::move(spec);
    manifest.tensors_.push_back(std::move(tensor));
  }
  if (!too_large.empty()) return absl::InvalidArgumentError(absl::StrJoin(too_large, "; "));
  if (!repeated.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("duplicate tensor name '", absl::StrJoin(repeated, "', '"), "'"));
  }
  return manifest;
}

std::optional<TensorIndex> Manifest::Find(std::string_view name) const {
  const auto it = by_name_.find(ToAbsl(name));
  if (it == by_name_.end()) return std::nullopt;
  return it->second;
}

std::vector<std::string> Manifest::NearMatches(std::string_view name, size_t limit) const {
  const size_t max_distance = std::max<size_t>(2, name.size() / 4);
  struct Match {
    size_t distance;
    const std::string* name;
  };
  std::vector<Match> matches;
  for (const Tensor& tensor : tensors_) {
    const std::string_view candidate = tensor.spec.name;
    size_t distance = EditDistance(name, candidate, max_distance);
    // A prefix that one side lacks ("model.", "module.") is the commonest cause, however long.
    const bool is_suffix = name.size() >= 4 && candidate.size() >= 4 &&
                           (name.ends_with(candidate) || candidate.ends_with(name));
    if (is_suffix) distance = 0;
    if (distance <= max_distance) matches.push_back({distance, &tensor.spec.name});
  }
  std::stable_sort(matches.begin(), matches.end(),
                   [](const Match& a, const Match& b) { return a.distance < b.distance; });
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(limit, matches.size()); ++i) names.push_back(*matches[i].name);
  return names;
}

uint64_t Manifest::GlobalTile(TilePlace place) const {
  return tensors_[place.tensor].first_tile + place.tile;
}

TilePlace Manifest::PlaceOf(uint64_t global_tile) const {
  WSTORE_CHECK(global_tile < tiles_);
  // The last tensor whose first tile is not after it; tensors without tiles share their successor's
  // first tile and come before it, so they are never the last.
  const auto after = std::upper_bound(
      tensors_.begin(), tensors_.end(), global_tile,
      [](uint64_t tile, const Tensor& tensor) { return tile < tensor.first_tile; });
  const auto index = static_cast<TensorIndex>(after - tensors_.begin() - 1);
  return {index, static_cast<uint32_t>(global_tile - tensors_[index].first_tile)};
}

uint32_t Manifest::TileElements(TilePlace place) const {
  const Tensor& tensor = tensors_[place.tensor];
  return static_cast<uint32_t>(
      std::min(kTileElements, tensor.elements - place.tile * kTileElements));
}

}  // namespace wstore
