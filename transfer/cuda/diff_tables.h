// The tables of a pass that follow from the manifest alone, on the host.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "transfer/cuda/tables.h"
#include "wstore/fingerprint.h"
#include "wstore/manifest.h"

namespace wstore::cuda {

struct HostTables {
  // Of tensors with elements, in order of the manifest. Without addresses.
  std::vector<TensorEntry> tensors;
  std::vector<uint32_t> tile_tensors;  // by tile of the checkpoint
  std::vector<unsigned long long> multipliers;
};

HostTables MakeHostTables(const Manifest& manifest, const FingerprintKey& key);

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
