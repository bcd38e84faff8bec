// The tables of a pass that follow from the manifest alone, on the host.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "transfer/cuda/tables.h"
#include "wstore/fingerprint.h"
#include "wstore/manifest.h"
#include "wstore/share.h"

namespace wstore::cuda {

struct HostTables {
  // Of tensors with elements, in order of the manifest. Without addresses.
  std::vector<TensorEntry> tensors;
  std::vector<uint32_t> tile_tensors;  // by tile of the checkpoint
  // Numbers of tiles with elements that are held, if that is not all of the checkpoint.
  std::vector<uint32_t> held_tiles;
  bool holds_all = true;
  std::vector<unsigned long long> multipliers;

  uint64_t held_count() const { return holds_all ? tile_tensors.size() : held_tiles.size(); }
};

// held: see HeldRanges.
HostTables MakeHostTables(const Manifest& manifest, const FingerprintKey& key,
                          absl::Span<const ElementRange> held);

// What an entry says of a tensor whose first held element is at `address`.
const uint8_t* BeginOfTensor(const TensorEntry& entry, const void* address);

// Part `part` of `parts` of a whole pass: spans one after another, with about as many held tiles in
// each part. Some are empty where there are fewer spans. whole.before: for each part, and the
// first, all zero. `host` is what the pass is of.
DiffTables PartOf(const DiffTables& whole, const HostTables& host, uint32_t part, uint32_t parts);

// Lengths of the tables whose need is not known before the pass.
struct TableSizes {
  uint64_t slab_bytes = 0;
  uint64_t arena_bytes = 0;
  uint32_t max_chunks = 0;
  uint32_t max_pieces = 0;
  uint32_t max_leaves = 0;
};

// Enough for changes of `patch_bytes` as a pass counts them (Counters::slab_used); with_digest: and
// for their digests.
TableSizes SizesFor(const Manifest& manifest, uint64_t patch_bytes, bool with_digest);

}  // namespace wstore::cuda
