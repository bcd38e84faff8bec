// What a publish needs to know of its parent without going through the chain: the sum of each
// tensor, and which patch sets touch a tile.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "store/journal_patch.h"
#include "wstore/fingerprint.h"
#include "wstore/manifest.h"
#include "wstore/v1/journal.pb.h"
#include "wstore/version.h"

namespace wstore {

// Describes one version, and is moved from it to a parent or child by what that one patch set
// touches. It only says where to look: bits, digests and records come from the journal as ever.
//
// Memory: 16 bytes a tensor; at most 80 bytes a pair of a tile and a set that touches it, up to
// Limits::pairs of them; and 40 bytes for each set whose tiles are not listed. Not thread-safe.
class ChainMap {
 public:
  struct Limits {
    uint64_t pairs = 1 << 20;
    size_t tiles_of_set = 1024;  // the tiles of a set with more are not listed
  };

  ChainMap(const Manifest& manifest, const Limits& limits) : manifest_(manifest), limits_(limits) {}

  // Describes v0 from now on.
  void Reset(std::vector<Fingerprint> base);
  // Describes nothing, as a new one.
  void Clear();
  // Whether it describes any version.
  bool has_version() const { return has_version_; }
  VersionId version() const { return version_; }

  // To a child. `tiles`: all that its set touches, or more; null: unknown, or too many to be
  // listed.
  void Append(VersionId child, const v1::TouchedTable& table, const TileList* tiles);
  // Back to the parent. `table`: of the version that it describes.
  void Remove(VersionId parent, const v1::TouchedTable& table);

  const Fingerprint& fingerprint(TensorIndex tensor) const { return fingerprints_[tensor]; }
  // The versions whose sets touch any of these tiles, or may: ascending.
  std::vector<VersionId> Touching(const TileList& tiles);

 private:
  void DropRemoved();

  const Manifest& manifest_;
  const Limits limits_;
  bool has_version_ = false;
  VersionId version_;
  std::vector<Fingerprint> fingerprints_;
  // By the tile's number in the model.
  absl::flat_hash_map<uint64_t, absl::InlinedVector<VersionId, 2>> touching_;
  uint64_t pairs_ = 0;
  std::set<VersionId> unlisted_;
  bool has_removed_ = false;  // versions above version_ are still listed
};

}  // namespace wstore
