// Random weights on two sides, and what the host's encoder makes of their difference.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/codec/weights.h"
#include "wstore/chunk.h"
#include "wstore/fingerprint.h"
#include "wstore/patch_digest.h"
#include "wstore/share.h"

namespace wstore::testing {

inline Dtype DtypeOfBytes(uint32_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return Dtype::kF8E4M3;
    case 2:
      return Dtype::kBF16;
    case 4:
      return Dtype::kF32;
    default:
      return Dtype::kI64;
  }
}

// What changes in a tensor.
struct ChangePattern {
  double density = 0;
  // Only the first so many elements of every stretch of twice as many change, if not 0.
  uint64_t stretch = 0;
};

// A manifest, and both sides of it in host memory.
struct TwoSides {
  Manifest manifest;
  Weights before;
  Weights after;

  TwoSides(std::vector<TensorSpec> specs, const std::vector<ChangePattern>& patterns,
           std::mt19937_64& random)
      : manifest(ManifestOf(std::move(specs))), before(manifest), after(manifest) {
    before.Randomize(random);
    after = before;
    for (TensorIndex i = 0; i < manifest.size(); ++i) {
      Change(i, patterns[i % patterns.size()], random);
    }
  }

  // The same, with changes only to elements that are held: what a contributor knows of it.
  TwoSides Within(const std::vector<ElementRange>& held) const {
    TwoSides within = *this;
    for (TensorIndex i = 0; i < manifest.size(); ++i) {
      const uint32_t width = manifest.tensor(i).element_bytes;
      const std::vector<uint8_t>& old = before.tensors[i];
      std::vector<uint8_t>& now = within.after.tensors[i];
      std::copy(old.begin(), old.begin() + held[i].first * width, now.begin());
      std::copy(old.begin() + held[i].end * width, old.end(), now.begin() + held[i].end * width);
    }
    return within;
  }

 private:
  void Change(TensorIndex tensor, const ChangePattern& pattern, std::mt19937_64& random) {
    const uint32_t width = manifest.tensor(tensor).element_bytes;
    std::uniform_real_distribution<double> draw;
    for (uint64_t e = 0; e < manifest.tensor(tensor).elements; ++e) {
      if (pattern.stretch != 0 && e / pattern.stretch % 2 != 0) continue;
      if (draw(random) >= pattern.density) continue;
      // Some bits of some bytes, at least one.
      const uint32_t byte = static_cast<uint32_t>(random() % width);
      after.tensors[tensor][e * width + byte] ^= static_cast<uint8_t>(1 + random() % 255);
    }
  }
};

struct ReferenceDiff {
  std::map<ChunkKey, std::string> chunks;
  std::map<TilePlace, Digest> tile_digests;
  Digest digest;
  uint64_t changed = 0;
};

inline ReferenceDiff DiffOnHost(const TwoSides& sides, TransactionNumber transaction,
                                uint16_t contributor) {
  ReferenceDiff reference;
  PatchDigester digester(sides.manifest);
  std::vector<uint16_t> offsets(kTileElements);
  std::vector<uint8_t> values(kTileElements * 8);
  ChunkBuilder builder(sides.manifest);
  for (uint32_t span = 0; span < sides.manifest.spans(); ++span) {
    ChunkKey key{contributor, span, 0};
    const auto finish = [&] {
      std::string bytes = builder.Finish({transaction, key});
      const absl::StatusOr<ChunkView> view = ChunkView::Parse(bytes, sides.manifest);
      REQUIRE_OK(view);
      for (const EncodedTile& tile : view->tiles()) {
        const Digest digest = TileDigest(tile);
        digester.Add(tile.place, tile.form, tile.changed, digest);
        reference.tile_digests[tile.place] = digest;
      }
      reference.chunks[key] = std::move(bytes);
      ++key.part;
    };
    for (const TilePlace place : sides.manifest.SpanPlaces(span)) {
      const uint32_t width = sides.manifest.tensor(place.tensor).element_bytes;
      const uint64_t at = place.tile * kTileElements * width;
      const uint32_t changed =
          DiffTile(&sides.before.tensors[place.tensor][at], &sides.after.tensors[place.tensor][at],
                   sides.manifest.TileElements(place), width, offsets.data(), values.data());
      reference.changed += changed;
      if (changed == 0) continue;
      builder.AddTile(place, absl::MakeConstSpan(offsets.data(), changed), values.data());
      if (builder.size_bytes() >= kChunkTargetBytes) finish();
    }
    if (!builder.empty()) finish();
  }
  reference.digest = digester.Finish();
  return reference;
}

inline std::vector<ElementRange> AllOf(const Manifest& manifest) {
  return *HeldRanges(manifest, {});
}

// The bytes of a tensor that are held.
inline absl::Span<const uint8_t> HeldBytes(const Manifest& manifest, const Weights& weights,
                                           TensorIndex tensor, const ElementRange& held) {
  const uint32_t width = manifest.tensor(tensor).element_bytes;
  return absl::MakeConstSpan(weights.tensors[tensor])
      .subspan(held.first * width, held.size() * width);
}

inline Fingerprint SumOnHost(const Manifest& manifest, const FingerprintKey& key,
                             const Weights& weights, TensorIndex tensor, const ElementRange& held) {
  return TensorFingerprinter(key, manifest.tensor(tensor).spec.name)
      .Sum(held.first * manifest.tensor(tensor).element_bytes,
           HeldBytes(manifest, weights, tensor, held));
}

// Splits every tensor among contributors at random bounds, some of them within tiles.
inline std::vector<Share> RandomShares(const Manifest& manifest, size_t contributors,
                                       std::mt19937_64& random) {
  std::vector<Share> shares(contributors);
  for (TensorIndex i = 0; i < manifest.size(); ++i) {
    const uint64_t elements = manifest.tensor(i).elements;
    std::vector<uint64_t> bounds = {0, elements};
    for (size_t k = 1; k < contributors; ++k) {
      const uint64_t blocks = elements / kShareElements;
      const uint64_t bound = random() % (blocks + 1) * kShareElements;
      bounds.push_back(random() % 4 == 0 ? bound / kTileElements * kTileElements : bound);
    }
    std::sort(bounds.begin(), bounds.end());
    const size_t first = random();
    for (size_t k = 0; k < contributors; ++k) {
      shares[(first + k) % contributors].push_back({i, {bounds[k], bounds[k + 1]}});
    }
  }
  for (Share& share : shares) std::shuffle(share.begin(), share.end(), random);
  return shares;
}

// Tensors whose shares may end within tiles, in all widths.
inline std::vector<TensorSpec> ShareTensors() {
  std::vector<TensorSpec> specs;
  for (const uint32_t width : {1, 2, 4, 8}) {
    for (const uint64_t elements : {0, 5, 256, 1000, 65536, 2 * 65536 + 300, 5 * 65536}) {
      specs.push_back(
          {absl::StrCat("w", width, ".", 1000000 + elements), DtypeOfBytes(width), {elements}});
    }
  }
  return specs;
}

// The sums over the changed elements of each tensor that has some.
inline std::map<TensorIndex, TouchedSums> TouchedOnHost(const TwoSides& sides,
                                                        const FingerprintKey& key) {
  std::map<TensorIndex, TouchedSums> touched;
  std::vector<uint16_t> offsets(kTileElements);
  std::vector<uint8_t> values(kTileElements * 8);
  for (uint64_t tile = 0; tile < sides.manifest.tiles(); ++tile) {
    const TilePlace place = sides.manifest.PlaceOf(tile);
    const Manifest::Tensor& tensor = sides.manifest.tensor(place.tensor);
    const uint64_t first = place.tile * kTileElements;
    const uint8_t* const before = &sides.before.tensors[place.tensor][first * tensor.element_bytes];
    const uint32_t changed = DiffTile(
        before, &sides.after.tensors[place.tensor][first * tensor.element_bytes],
        sides.manifest.TileElements(place), tensor.element_bytes, offsets.data(), values.data());
    if (changed == 0) continue;
    touched[place.tensor] +=
        TensorFingerprinter(key, tensor.spec.name)
            .Touched(first, tensor.element_bytes, absl::MakeConstSpan(offsets.data(), changed),
                     before, values.data());
  }
  return touched;
}

// Tensors of many sizes around the edges of lanes, blocks and tiles, in all widths.
inline std::vector<TensorSpec> EdgeTensors() {
  std::vector<TensorSpec> specs;
  for (const uint32_t width : {1, 2, 4, 8}) {
    for (const uint64_t elements : {0, 1, 31, 32, 33, 255, 256, 257, 511, 65535, 65536, 65537}) {
      specs.push_back(
          {absl::StrCat("w", width, ".", 100000 + elements), DtypeOfBytes(width), {elements}});
    }
  }
  return specs;
}

inline std::vector<ChangePattern> AllDensities() {
  return {{0},    {0.0002}, {0.002}, {0.01},     {0.05},    {0.075},  {0.2},
          {0.45}, {0.7},    {1},     {0.3, 100}, {1, 3000}, {1, 300}, {0.9, 20000}};
}

}  // namespace wstore::testing
