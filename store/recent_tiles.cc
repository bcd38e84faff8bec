#include "store/recent_tiles.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "wstore/chunk.h"

namespace wstore {
namespace {

class HeldTiles final : public DenseSource {
 public:
  explicit HeldTiles(const TileBits& tiles) : tiles_(tiles) {}
  absl::StatusOr<std::unique_ptr<SpanTiles>> OpenSpan(uint32_t) const override {
    return std::make_unique<Tiles>(tiles_);
  }

 private:
  class Tiles final : public SpanTiles {
   public:
    explicit Tiles(const TileBits& tiles) : tiles_(tiles) {}
    absl::Status ReadTile(TilePlace place, uint8_t* out) override {
      const auto found = tiles_.find(place);
      if (found == tiles_.end()) {
        return absl::InternalError(
            absl::StrCat("tile ", place.tile, " of tensor ", place.tensor, " is not held"));
      }
      std::copy(found->second->begin(), found->second->end(), out);
      return absl::OkStatus();
    }

   private:
    const TileBits& tiles_;
  };

  const TileBits& tiles_;
};

}  // namespace

absl::StatusOr<TileList> TilesOf(const Manifest& manifest, const PatchSource& patches) {
  TileList tiles;
  for (uint32_t span = 0; span < manifest.spans(); ++span) {
    RETURN_IF_ERROR(patches.ReadSpan(span, [&](const ChunkView& chunk) {
      for (const EncodedTile& tile : chunk.tiles()) tiles.push_back(tile.place);
      return absl::OkStatus();
    }));
  }
  return tiles;
}

std::unique_ptr<DenseSource> MakeDense(const TileBits& tiles) {
  return std::make_unique<HeldTiles>(tiles);
}

absl::Status ReadTiles(const Manifest& manifest, const DenseSource& version, const TileList& wanted,
                       TileBits* tiles) {
  std::unique_ptr<SpanTiles> opened;
  std::optional<uint64_t> opened_span;
  for (const TilePlace place : wanted) {
    const uint64_t span = manifest.GlobalTile(place) / kSpanTiles;
    if (opened_span != span) {
      opened.reset();  // gives back what the next takes
      ASSIGN_OR_RETURN(opened, version.OpenSpan(static_cast<uint32_t>(span)));
      opened_span = span;
    }
    auto bits = std::make_shared<std::vector<uint8_t>>(manifest.TileBytes(place));
    RETURN_IF_ERROR(opened->ReadTile(place, bits->data()));
    (*tiles)[place] = std::move(bits);
  }
  return absl::OkStatus();
}

absl::StatusOr<TileBits> Patched(const Manifest& manifest, const TileBits& tiles,
                                 const PatchSource& patches) {
  TileBits patched;
  for (uint32_t span = 0; span < manifest.spans(); ++span) {
    RETURN_IF_ERROR(patches.ReadSpan(span, [&](const ChunkView& chunk) -> absl::Status {
      for (const EncodedTile& tile : chunk.tiles()) {
        const auto found = tiles.find(tile.place);
        if (found == tiles.end()) return absl::InternalError("a tile is touched that is not held");
        auto bits = std::make_shared<std::vector<uint8_t>>(*found->second);
        XorTile(tile, bits->data());
        patched[tile.place] = std::move(bits);
      }
      return absl::OkStatus();
    }));
  }
  return patched;
}

bool RecentTiles::HasRoomFor(const TileList& tiles) const {
  uint64_t size_bytes = 0;
  for (const TilePlace place : tiles) {
    size_bytes += manifest_.TileBytes(place);
    if (size_bytes > limit_bytes_) return false;
  }
  return true;
}

TileBits RecentTiles::Find(VersionId version, const TileList& wanted) {
  TileBits found;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (version != version_) return found;
  for (const TilePlace place : wanted) {
    const auto it = tiles_.find(place);
    if (it == tiles_.end()) continue;
    used_.splice(used_.begin(), used_, it->second.used);
    found.emplace(place, it->second.bits);
  }
  return found;
}

void RecentTiles::Keep(VersionId version, const TileBits& tiles) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (version != version_) SetVersion(version);
  for (const auto& [place, bits] : tiles) Put(place, bits);
}

void RecentTiles::Advance(VersionId parent, VersionId version, const TileList* touched,
                          const TileBits& tiles) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (parent != version_ || touched == nullptr) SetVersion(version);
  version_ = version;
  if (touched != nullptr) {
    for (const TilePlace place : *touched) {
      if (!tiles.contains(place)) Remove(place);
    }
  }
  for (const auto& [place, bits] : tiles) Put(place, bits);
}

void RecentTiles::SetVersion(VersionId version) {
  version_ = version;
  tiles_.clear();
  used_.clear();
  size_bytes_ = 0;
}

void RecentTiles::Remove(TilePlace place) {
  const auto found = tiles_.find(place);
  if (found == tiles_.end()) return;
  size_bytes_ -= found->second.bits->size();
  used_.erase(found->second.used);
  tiles_.erase(found);
}

void RecentTiles::Put(TilePlace place, std::shared_ptr<const std::vector<uint8_t>> bits) {
  const auto [it, is_new] = tiles_.try_emplace(place);
  if (is_new) {
    it->second.used = used_.insert(used_.begin(), place);
    size_bytes_ += bits->size();
  } else {
    used_.splice(used_.begin(), used_, it->second.used);
  }
  it->second.bits = std::move(bits);
  while (size_bytes_ > limit_bytes_) Remove(used_.back());
}

}  // namespace wstore
