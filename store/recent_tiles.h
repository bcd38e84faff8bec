// Dense tiles of the version that is published on, of those that publishes touch.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/journal_patch.h"
#include "wstore/manifest.h"
#include "wstore/patch_source.h"

namespace wstore {

// Bits of tiles, by place. Shared, and never changed.
using TileBits = std::map<TilePlace, std::shared_ptr<const std::vector<uint8_t>>>;

// The tiles that a set touches.
absl::StatusOr<TileList> TilesOf(const Manifest& manifest, const PatchSource& patches);

// What `tiles` hold as a dense version, of which nothing else may be read. `tiles` must outlive it.
std::unique_ptr<DenseSource> MakeDense(const TileBits& tiles);

// Reads `wanted`, ascending, of a version.
absl::Status ReadTiles(const Manifest& manifest, const DenseSource& version, const TileList& wanted,
                       TileBits* tiles);

// `tiles` with the changes of `patches`, which touch no others.
absl::StatusOr<TileBits> Patched(const Manifest& manifest, const TileBits& tiles,
                                 const PatchSource& patches);

// Those of one version that were read or changed last. Thread-safe. Holds `limit_bytes` at most,
// and what it costs to find them.
class RecentTiles {
 public:
  // `manifest` must outlive it.
  RecentTiles(const Manifest& manifest, uint64_t limit_bytes)
      : manifest_(manifest), limit_bytes_(limit_bytes) {}

  // Whether as many tiles are worth keeping.
  bool HasRoomFor(const TileList& tiles) const;
  // Those of `wanted` that are there.
  TileBits Find(VersionId version, const TileList& wanted);
  // Tiles of `version`. What was held of another one goes.
  void Keep(VersionId version, const TileBits& tiles);
  // `version` was committed on `parent`: it differs in `touched` (null: anywhere), of which these
  // are the bits. What was held of other versions goes.
  void Advance(VersionId parent, VersionId version, const TileList* touched, const TileBits& tiles);

 private:
  struct Held {
    std::shared_ptr<const std::vector<uint8_t>> bits;
    std::list<TilePlace>::iterator used;  // in used_
  };
  // All need mutex_.
  void SetVersion(VersionId version);
  void Remove(TilePlace place);
  void Put(TilePlace place, std::shared_ptr<const std::vector<uint8_t>> bits);

  const Manifest& manifest_;
  const uint64_t limit_bytes_;
  std::mutex mutex_;  // guards what follows
  VersionId version_;
  std::map<TilePlace, Held> tiles_;
  std::list<TilePlace> used_;  // the latest first
  uint64_t size_bytes_ = 0;
};

}  // namespace wstore
