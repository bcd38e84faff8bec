// Dense weights in memory: the reference that streams of patches are compared with.
#pragma once

#include <cstring>
#include <ctime>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/catch.h"
#include "wstore/chunk.h"
#include "wstore/manifest.h"
#include "wstore/patch_digest.h"
#include "wstore/patch_set.h"
#include "wstore/patch_source.h"

namespace wstore::testing {

inline Manifest ManifestOf(std::vector<TensorSpec> tensors) {
  absl::StatusOr<Manifest> manifest = Manifest::Create(std::move(tensors));
  REQUIRE_OK(manifest);
  return *std::move(manifest);
}

class Weights final : public TensorSource {
 public:
  // All zero.
  explicit Weights(const Manifest& manifest) : manifest_(&manifest) {
    for (const Manifest::Tensor& tensor : manifest.tensors()) {
      tensors.emplace_back(tensor.size_bytes());
    }
  }

  absl::Status Read(TensorIndex tensor, uint64_t offset_bytes,
                    absl::Span<uint8_t> out) const override {
    const std::vector<uint8_t>& bytes = tensors.at(tensor);
    if (offset_bytes > bytes.size() || out.size() > bytes.size() - offset_bytes) {
      return absl::InternalError("read past the end of a tensor");
    }
    if (!out.empty()) std::memcpy(out.data(), bytes.data() + offset_bytes, out.size());
    return absl::OkStatus();
  }

  void Randomize(std::mt19937_64& random) {
    for (std::vector<uint8_t>& tensor : tensors) {
      for (uint8_t& byte : tensor) byte = static_cast<uint8_t>(random());
    }
  }

  // XORs a patch set, tile by tile and byte by byte.
  void Apply(const PatchSource& patches) {
    for (uint32_t span = 0; span < manifest_->spans(); ++span) {
      REQUIRE_OK(patches.ReadSpan(span, [this](const ChunkView& chunk) {
        for (const EncodedTile& tile : chunk.tiles()) ApplyTile(tile);
        return absl::OkStatus();
      }));
    }
  }

  friend bool operator==(const Weights& a, const Weights& b) { return a.tensors == b.tensors; }

  std::vector<std::vector<uint8_t>> tensors;  // by tensor index

 private:
  void ApplyTile(const EncodedTile& tile) {
    TileChanges changes;
    DecodeTile(tile, &changes);
    const uint64_t width = tile.element_bytes;
    for (size_t i = 0; i < changes.offsets.size(); ++i) {
      const uint64_t element = tile.place.tile * kTileElements + changes.offsets[i];
      for (uint64_t byte = 0; byte < width; ++byte) {
        tensors.at(tile.place.tensor).at(element * width + byte) ^=
            changes.values[i * width + byte];
      }
    }
  }

  const Manifest* manifest_;
};

// Every tile that a source has, in the order of its visits, as owned bytes.
inline std::vector<std::pair<TilePlace, std::string>> TilesOf(const Manifest& manifest,
                                                              const PatchSource& patches) {
  std::vector<std::pair<TilePlace, std::string>> tiles;
  for (uint32_t span = 0; span < manifest.spans(); ++span) {
    REQUIRE_OK(patches.ReadSpan(span, [&](const ChunkView& chunk) {
      for (const EncodedTile& tile : chunk.tiles()) {
        tiles.emplace_back(tile.place, std::string(tile.bytes.begin(), tile.bytes.end()));
      }
      return absl::OkStatus();
    }));
  }
  return tiles;
}

inline Digest DigestOf(const Manifest& manifest, const PatchSource& patches) {
  PatchDigester digester(manifest);
  for (uint32_t span = 0; span < manifest.spans(); ++span) {
    REQUIRE_OK(patches.ReadSpan(span, [&](const ChunkView& chunk) {
      for (const EncodedTile& tile : chunk.tiles()) {
        digester.Add(tile.place, tile.form, tile.changed, TileDigest(tile));
      }
      return absl::OkStatus();
    }));
  }
  return digester.Finish();
}

// Seconds of processor time that the process has used: a bound on them holds on a busy machine too.
inline double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// A patch that owns its arrays.
struct OwnedPatch {
  TensorSpec spec;
  std::vector<int64_t> indices = {};
  std::vector<uint8_t> values = {};
  TensorPatch::Form form = TensorPatch::Form::kNew;

  TensorPatch View() const { return {spec.name, spec.dtype, spec.shape, indices, values, form}; }
};

inline std::vector<TensorPatch> Views(const std::vector<OwnedPatch>& patches) {
  std::vector<TensorPatch> views;
  for (const OwnedPatch& patch : patches) views.push_back(patch.View());
  return views;
}

}  // namespace wstore::testing
