#include "transfer/cuda/diff_tables.h"

#include <algorithm>

#include "wstore/chunk.h"

namespace wstore::cuda {

static_assert(kTileElementCount == kTileElements && kSpanTileCount == kSpanTiles);

HostTables MakeHostTables(const Manifest& manifest, const FingerprintKey& key) {
  HostTables tables;
  tables.tile_tensors.reserve(manifest.tiles());
  for (TensorIndex i = 0; i < manifest.size(); ++i) {
    const Manifest::Tensor& tensor = manifest.tensor(i);
    if (tensor.elements == 0) continue;
    const TensorFingerprinter fingerprinter(key, tensor.spec.name);
    tables.tile_tensors.insert(tables.tile_tensors.end(), tensor.tiles,
                               static_cast<uint32_t>(tables.tensors.size()));
    tables.tensors.push_back({nullptr, nullptr, tensor.elements, tensor.first_tile,
                              fingerprinter.philox_key()[0], fingerprinter.philox_key()[1],
                              tensor.element_bytes, i});
  }
  for (const auto& lane : key.b()) {
    tables.multipliers.insert(tables.multipliers.end(), lane.begin(), lane.end());
  }
  return tables;
}

TableSizes SizesFor(const Manifest& manifest, uint64_t patch_bytes, bool with_digest) {
  TableSizes sizes;
  sizes.slab_bytes = (patch_bytes + kSlabAlignment - 1) / kSlabAlignment * kSlabAlignment;
  // A span has one chunk, and one more for each time that it fills one.
  const uint64_t chunks =
      std::min(manifest.tiles(), manifest.spans() + sizes.slab_bytes / kChunkTargetBytes + 1);
  const uint64_t directories =
      manifest.tiles() * 8 + std::min<uint64_t>(manifest.tiles(), manifest.size() + chunks) * 24;
  sizes.arena_bytes = sizes.slab_bytes + directories + chunks * (64 + kChunkAlignment);
  sizes.arena_bytes = (sizes.arena_bytes + kChunkAlignment - 1) / kChunkAlignment * kChunkAlignment;
  sizes.max_chunks = static_cast<uint32_t>(chunks);
  sizes.max_pieces = static_cast<uint32_t>(chunks + sizes.arena_bytes / kPieceBytes);
  if (with_digest) {
    sizes.max_leaves = static_cast<uint32_t>(manifest.tiles() + sizes.slab_bytes / kLeafBytes);
  }
  return sizes;
}

}  // namespace wstore::cuda
