// Dense tiles of the version that was committed last, of those that its publishes touched.
#pragma once

#include <cstdint>
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

// What `tiles` hold as a dense version, of which nothing else may be read. `tiles` must outlive it.
std::unique_ptr<DenseSource> MakeDense(const TileBits& tiles);

// Reads `wanted`, ascending, of a version.
absl::Status ReadTiles(const Manifest& manifest, const DenseSource& version, const TileList& wanted,
                       TileBits* tiles);

// `tiles` with the changes of `patches`, which touch no others.
absl::StatusOr<TileBits> Patched(const Manifest& manifest, const TileBits& tiles,
                                 const PatchSource& patches);

// Thread-safe. Holds `limit_bytes` at most.
class RecentTiles {
 public:
  RecentTiles(const Manifest& manifest, uint64_t limit_bytes)
      : manifest_(manifest), limit_bytes_(limit_bytes) {}

  // Whether as many tiles are worth keeping.
  bool HasRoomFor(const TileList& tiles) const;
  // Those of `wanted` that are there.
  TileBits Find(VersionId version, const TileList& wanted) const;
  // `version` was committed on `parent`, with these bits where it differs. What was held of other
  // versions goes.
  void Advance(VersionId parent, VersionId version, TileBits tiles);
  void Clear();

 private:
  const Manifest& manifest_;
  const uint64_t limit_bytes_;
  mutable std::mutex mutex_;  // guards what follows
  VersionId version_;
  TileBits tiles_;
};

}  // namespace wstore
