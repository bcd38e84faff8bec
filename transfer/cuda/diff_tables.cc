#include "transfer/cuda/diff_tables.h"

#include <algorithm>

#include "wstore/chunk.h"

namespace wstore::cuda {

static_assert(kTileElementCount == kTileElements && kSpanTileCount == kSpanTiles);

static_assert(kBlockElementCount == kShareElements);

HostTables MakeHostTables(const Manifest& manifest, const FingerprintKey& key,
                          absl::Span<const ElementRange> held) {
  HostTables tables;
  tables.tile_tensors.reserve(manifest.tiles());
  for (TensorIndex i = 0; i < manifest.size(); ++i) {
    const Manifest::Tensor& tensor = manifest.tensor(i);
    if (tensor.elements == 0) continue;
    const TensorFingerprinter fingerprinter(key, tensor.spec.name);
    tables.tile_tensors.insert(tables.tile_tensors.end(), tensor.tiles,
                               static_cast<uint32_t>(tables.tensors.size()));
    tables.tensors.push_back({nullptr, nullptr, tensor.elements, held[i].first, held[i].end,
                              tensor.first_tile, fingerprinter.philox_key()[0],
                              fingerprinter.philox_key()[1], tensor.element_bytes, i});
    tables.holds_all = tables.holds_all && held[i].size() == tensor.elements;
  }
  for (const TensorEntry& entry : tables.tensors) {
    if (tables.holds_all || entry.held_first == entry.held_end) continue;
    const uint64_t end = entry.first_tile + (entry.held_end - 1) / kTileElements;
    for (uint64_t tile = entry.first_tile + entry.held_first / kTileElements; tile <= end; ++tile) {
      tables.held_tiles.push_back(static_cast<uint32_t>(tile));
    }
  }
  for (const auto& lane : key.b()) {
    tables.multipliers.insert(tables.multipliers.end(), lane.begin(), lane.end());
  }
  return tables;
}

const uint8_t* BeginOfTensor(const TensorEntry& entry, const void* address) {
  const auto begin = reinterpret_cast<uintptr_t>(address) - entry.held_first * entry.element_bytes;
  return reinterpret_cast<const uint8_t*>(begin);
}

namespace {

// Of a whole pass, by weight, the parts before part `part` of `parts`. The last ones are smaller:
// what is still to be done once all is compared is for the last one alone.
uint64_t WeightBefore(uint32_t part, uint32_t parts) {
  constexpr uint32_t kMostWeight = 4;
  uint64_t weight = 0;
  for (uint32_t i = 0; i < part; ++i) weight += std::min(parts - i, kMostWeight);
  return weight;
}

}  // namespace

DiffTables PartOf(const DiffTables& whole, const HostTables& host, uint32_t part, uint32_t parts) {
  const std::vector<uint32_t>& held = host.held_tiles;
  const auto span_at = [&](uint32_t i) -> uint64_t {
    const auto share = [&](uint64_t of) {
      return of * WeightBefore(i, parts) / WeightBefore(parts, parts);
    };
    if (host.holds_all) return share(whole.span_count);
    if (i == 0) return 0;
    const uint64_t next = share(held.size());
    return next < held.size() ? held[next] / kSpanTileCount : whole.span_count;
  };
  const auto tile_at = [&](uint64_t span) {
    return std::min(span * kSpanTileCount, whole.end_tile);
  };
  const auto held_at = [&](uint64_t tile) -> uint64_t {
    if (host.holds_all) return tile;
    return static_cast<uint64_t>(std::lower_bound(held.begin(), held.end(), tile) - held.begin());
  };
  const uint64_t end_span = span_at(part + 1);
  DiffTables tables = whole;
  tables.before += part;
  tables.first_span = static_cast<uint32_t>(span_at(part));
  tables.span_count = static_cast<uint32_t>(end_span) - tables.first_span;
  tables.first_tile = tile_at(tables.first_span);
  tables.end_tile = tile_at(end_span);
  tables.first_held = held_at(tables.first_tile);
  tables.end_held = held_at(tables.end_tile);
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
