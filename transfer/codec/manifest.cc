#include "wstore/manifest.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/fault_list.h"
#include "common/strings.h"

namespace wstore {
namespace {

// Names that differ by more edits than this are not alike, however long they are. Bounds the work.
constexpr size_t kMaxNameDistance = 12;

// Levenshtein distance, or `limit` + 1 once it must exceed `limit`. Only the band of cells that can
// still matter is computed, in `row`.
size_t EditDistance(std::string_view a, std::string_view b, size_t limit,
                    std::vector<size_t>& row) {
  if (a.size() > b.size()) std::swap(a, b);
  if (b.size() - a.size() > limit) return limit + 1;
  const size_t prefix = std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin();
  a.remove_prefix(prefix);
  b.remove_prefix(prefix);
  const size_t suffix = std::mismatch(a.rbegin(), a.rend(), b.rbegin()).first - a.rbegin();
  a.remove_suffix(suffix);
  b.remove_suffix(suffix);
  if (a.empty()) return b.size();

  const size_t beyond = limit + 1;
  row.assign(b.size() + 1, beyond);
  for (size_t j = 0; j <= std::min(limit, b.size()); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    const size_t first = i > limit ? i - limit : 1;
    const size_t last = std::min(b.size(), i + limit);
    size_t diagonal = row[first - 1];
    row[first - 1] = first == 1 ? i : beyond;
    size_t best = row[first - 1];
    for (size_t j = first; j <= last; ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
      best = std::min(best, row[j]);
    }
    if (best > limit) return beyond;
  }
  return std::min(row[b.size()], beyond);
}

// A prefix or suffix that one side lacks ("model.", ".weight") is the commonest slip, however long.
bool OneEndsTheOther(std::string_view a, std::string_view b) {
  if (a.size() > b.size()) std::swap(a, b);
  return a.size() >= 4 && (b.ends_with(a) || b.starts_with(a));
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
  FaultList repeated;
  std::string last_repeated;
  FaultList too_large;
  for (TensorSpec& spec : tensors) {
    const absl::StatusOr<uint64_t> bytes = TensorBytes(spec);
    if (!bytes.ok()) {
      too_large.Add(std::string(bytes.status().message()));
      continue;
    }
    Tensor tensor;
    tensor.element_bytes = StorageElementBytes(spec.dtype);
    tensor.elements = *bytes / tensor.element_bytes;
    const uint64_t tiles = (tensor.elements + kTileElements - 1) / kTileElements;
    if (tiles > std::numeric_limits<uint32_t>::max()) {
      too_large.Add(absl::StrCat("tensor '", spec.name, "' has ", tensor.elements,
                                 " elements, which take more than 2^32 - 1 tiles"));
      continue;
    }
    tensor.tiles = static_cast<uint32_t>(tiles);
    tensor.first_tile = manifest.tiles_;
    if (__builtin_add_overflow(manifest.size_bytes_, *bytes, &manifest.size_bytes_)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "up to tensor '", spec.name, "' the sizes add up to more than 2^64 - 1 bytes"));
    }
    manifest.tiles_ += tiles;
    manifest.elements_ += tensor.elements;
    const TensorIndex index = static_cast<TensorIndex>(manifest.tensors_.size());
    if (!manifest.by_name_.emplace(spec.name, index).second) {
      if (repeated.empty() || last_repeated != spec.name)
        repeated.Add(absl::StrCat("'", spec.name, "'"));
      last_repeated = spec.name;
    }
    tensor.spec = std::move(spec);
    manifest.tensors_.push_back(std::move(tensor));
  }
  if (!too_large.empty()) return absl::InvalidArgumentError(too_large.Text("; "));
  if (!repeated.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("duplicate tensor name ", repeated.Text(", ")));
  }
  if (manifest.spans() > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensors take ", manifest.spans(), " spans; the limit is 2^32 - 1"));
  }
  return manifest;
}

std::optional<TensorIndex> Manifest::Find(std::string_view name) const {
  const auto it = by_name_.find(ToAbsl(name));
  if (it == by_name_.end()) return std::nullopt;
  return it->second;
}

std::vector<std::string> Manifest::NearMatches(std::string_view name, size_t limit) const {
  struct Match {
    size_t distance;
    size_t length_difference;
    const std::string* name;
    auto rank() const { return std::pair(distance, length_difference); }
  };
  std::vector<Match> best;  // sorted
  std::vector<size_t> row;
  if (limit == 0) return {};
  size_t max_distance = std::clamp<size_t>(name.size() / 4, 2, kMaxNameDistance);
  for (const Tensor& tensor : tensors_) {
    const std::string_view other = tensor.spec.name;
    const size_t distance =
        OneEndsTheOther(name, other) ? 0 : EditDistance(name, other, max_distance, row);
    if (distance > max_distance) continue;
    const Match match{distance,
                      std::max(name.size(), other.size()) - std::min(name.size(), other.size()),
                      &tensor.spec.name};
    best.insert(
        std::upper_bound(best.begin(), best.end(), match,
                         [](const Match& a, const Match& b) { return a.rank() < b.rank(); }),
        match);
    if (best.size() > limit) best.pop_back();
    // The better the names at hand, the sooner the others are given up.
    if (best.size() == limit) max_distance = best.back().distance;
  }
  std::vector<std::string> names;
  for (const Match& match : best) names.push_back(*match.name);
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

std::vector<TilePlace> Manifest::SpanPlaces(uint32_t span) const {
  const uint64_t first = uint64_t{span} * kSpanTiles;
  const uint64_t count = std::min(kSpanTiles, tiles_ - first);
  std::vector<TilePlace> places;
  places.reserve(count);
  TilePlace place = PlaceOf(first);
  while (true) {
    places.push_back(place);
    if (places.size() == count) return places;
    if (++place.tile < tensors_[place.tensor].tiles) continue;
    place.tile = 0;
    do {
      ++place.tensor;
    } while (tensors_[place.tensor].tiles == 0);
  }
}

uint32_t Manifest::TileElements(TilePlace place) const {
  const Tensor& tensor = tensors_[place.tensor];
  return static_cast<uint32_t>(
      std::min(kTileElements, tensor.elements - place.tile * kTileElements));
}

}  // namespace wstore
