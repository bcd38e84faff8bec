// Chunks for random layouts, and what the host makes of them.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/bytes.h"
#include "tests/conformance/replica/random_layouts.h"
#include "tests/unit/cuda/differ_reference.h"
#include "transfer/codec/chunk_layout.h"
#include "transfer/replica/plan.h"
#include "transfer/replica/staged_chunk.h"
#include "transfer/replica/staged_patch.h"

namespace wstore::testing {

inline FingerprintKey RandomStageKey(std::mt19937_64& random) {
  Digest digest;
  for (uint8_t& byte : digest.bytes) byte = static_cast<uint8_t>(random());
  return FingerprintKey(digest);
}

// A plan for each rank of a random instance, over matrices of all widths, some of several tiles.
struct StageCase {
  TwoSides sides;
  std::vector<std::shared_ptr<const Plan>> plans;
  std::vector<std::string> chunks;

  explicit StageCase(std::mt19937_64& random, uint64_t most_rows = 700)
      : sides(Matrices(random, most_rows), Shuffled(random), random) {
    std::vector<Layout> layouts = RandomLayouts(random, sides.manifest);
    std::vector<const Layout*> pointers;
    for (const Layout& layout : layouts) pointers.push_back(&layout);
    absl::StatusOr<RegionMap> made = RegionMap::Create(sides.manifest, pointers);
    REQUIRE_OK(made);
    const auto regions = std::make_shared<const RegionMap>(*std::move(made));
    const FingerprintKey key = RandomStageKey(random);
    for (uint32_t rank = 0; rank < layouts.size(); ++rank) {
      auto layout = std::make_shared<const Layout>(std::move(layouts[rank]));
      auto plan = Plan::Create(sides.manifest, key, {std::move(layout), regions, rank});
      REQUIRE_OK(plan);
      plans.push_back(*std::move(plan));
    }
    AddChunks(random);
  }

 private:
  static std::vector<TensorSpec> Matrices(std::mt19937_64& random, uint64_t most_rows) {
    std::vector<TensorSpec> specs;
    for (const uint32_t width : {1, 2, 4, 8}) {
      for (const uint64_t rows : {most_rows, most_rows / 20 + 1}) {
        specs.push_back({absl::StrCat("w", width, ".", 100000 + rows),
                         DtypeOfBytes(width),
                         {1 + Below(random, rows), 4 * (1 + Below(random, 70))}});
      }
    }
    return specs;
  }
  static std::vector<ChangePattern> Shuffled(std::mt19937_64& random) {
    std::vector<ChangePattern> patterns = AllDensities();
    std::shuffle(patterns.begin(), patterns.end(), random);
    return patterns;
  }
  // With a few tiles in each.
  void AddChunks(std::mt19937_64& random) {
    ChunkHeader header{TransactionNumber(77), {}};
    ChunkBuilder builder(sides.manifest);
    for (const auto& [key, bytes] : DiffOnHost(sides, header.transaction, 0).chunks) {
      const absl::StatusOr<ChunkView> view = ChunkView::Parse(bytes, sides.manifest);
      REQUIRE_OK(view);
      header.key = {0, key.span, 0};
      for (const EncodedTile& tile : view->tiles()) {
        builder.AddTile(tile);
        if (Below(random, 3) != 0) continue;
        chunks.push_back(builder.Finish(header));
        ++header.key.part;
      }
      if (!builder.empty()) chunks.push_back(builder.Finish(header));
    }
  }
};

// Each tensor in a buffer of its own.
inline std::shared_ptr<const Plan> WholePlanOf(const Manifest& manifest, std::mt19937_64& random) {
  LayoutBuilder builder(manifest);
  for (TensorIndex i = 0; i < manifest.size(); ++i) {
    builder.Place(builder.Tensor(i), builder.Buffer(manifest.tensor(i).spec));
  }
  absl::StatusOr<Layout> layout = builder.Build(1);
  REQUIRE_OK(layout);
  auto plan = Plan::Create(manifest, RandomStageKey(random),
                           {std::make_shared<const Layout>(*std::move(layout)), nullptr, 0});
  REQUIRE_OK(plan);
  return *std::move(plan);
}

inline StagedChunk StageOnHost(const std::string& bytes, const Plan& plan, bool allow_dense) {
  const absl::StatusOr<ChunkView> view = ChunkView::Parse(bytes, plan.manifest());
  REQUIRE_OK(view);
  StagedChunk chunk;
  PieceBuilder builder(plan, allow_dense);
  for (const EncodedTile& tile : view->tiles()) {
    chunk.tiles.push_back({tile.place, tile.form, tile.changed, TileDigest(tile)});
    builder.AddTile(tile);
  }
  chunk.piece = builder.Finish();
  return chunk;
}

inline bool operator==(const StagedGroup& a, const StagedGroup& b) {
  return a.local_base == b.local_base && a.cell == b.cell && a.tile == b.tile &&
         a.count == b.count && a.offsets_at == b.offsets_at && a.places_at == b.places_at &&
         a.values_at == b.values_at && a.form == b.form;
}

// Byte for byte, of pieces that have their columns.
inline void RequireSamePiece(const StagedPiece* piece, const StagedPiece* expected) {
  REQUIRE((piece == nullptr) == (expected == nullptr));
  if (piece == nullptr) return;
  REQUIRE(piece->changed == expected->changed);
  REQUIRE(piece->groups.size() == expected->groups.size());
  for (size_t i = 0; i < piece->groups.size(); ++i) {
    INFO("group " << i);
    REQUIRE((piece->groups[i] == expected->groups[i]));
  }
  REQUIRE((piece->offsets == expected->offsets));
  REQUIRE((piece->near == expected->near));
  REQUIRE((piece->far == expected->far));
  REQUIRE((piece->values == expected->values));
  REQUIRE(piece->size_bytes() == expected->size_bytes());
}

// Gives a chunk whose bytes were changed a checksum that is right.
inline std::string Resealed(std::string chunk) {
  StoreLe<uint64_t>(ChunkChecksum(chunk), chunk.data() + kChecksumAt);
  return chunk;
}

// A chunk with every `step`th of its bytes changed, the checksum wrong and right, and with
// neighbours swapped.
inline std::vector<std::string> DamagedChunks(const std::string& chunk, size_t step,
                                              std::mt19937_64& random) {
  std::vector<std::string> damaged;
  for (size_t i = Below(random, step); i < chunk.size(); i += step) {
    const auto bits = static_cast<uint8_t>(i % 2 == 0 ? 1 << Below(random, 8) : random() | 1);
    std::string copy = chunk;
    copy[i] = static_cast<char>(static_cast<uint8_t>(copy[i]) ^ bits);
    damaged.push_back(copy);
    damaged.push_back(Resealed(copy));
    std::string swapped = chunk;
    std::swap(swapped[i], swapped[(i + 1) % chunk.size()]);
    damaged.push_back(Resealed(swapped));
  }
  return damaged;
}

// Small tiles, in all forms and widths.
struct AllForms {
  Manifest manifest = ManifestOf({{"a.blocks", Dtype::kBF16, {300}},
                                  {"b.offsets", Dtype::kF32, {2500}},
                                  {"c.bitmap", Dtype::kF32, {60}},
                                  {"d.dense", Dtype::kF8E4M3, {41}},
                                  {"e.escaped", Dtype::kBF16, {515}},
                                  {"f.wide", Dtype::kI64, {300}},
                                  {"g.escapes decide", Dtype::kF8E4M3, {kTileElements}}});
  std::string chunk;

  explicit AllForms(std::mt19937_64& random) {
    ChunkBuilder builder(manifest);
    const auto add = [&](TensorIndex tensor, std::vector<uint16_t> offsets) {
      std::vector<uint8_t> values(offsets.size() * manifest.tensor(tensor).element_bytes);
      for (uint8_t& value : values) value = static_cast<uint8_t>(random() | 1);
      builder.AddTile({tensor, 0}, offsets, values.data());
    };
    const auto range = [](uint16_t first, uint16_t count) {
      std::vector<uint16_t> offsets(count);
      for (uint16_t i = 0; i < count; ++i) offsets[i] = static_cast<uint16_t>(first + i);
      return offsets;
    };
    add(0, {3, 250, 270});
    add(1, {7, 2000});
    add(2, range(5, 50));
    add(3, range(0, 41));
    add(4, range(256, 20));
    add(5, {0, 299});
    add(6, range(700, 128));
    chunk = builder.Finish({TransactionNumber(77), {}});
    const absl::StatusOr<ChunkView> view = ChunkView::Parse(chunk, manifest);
    REQUIRE_OK(view);
    std::vector<int> forms;
    for (const EncodedTile& tile : view->tiles()) forms.push_back(static_cast<int>(tile.form));
    REQUIRE(forms == std::vector<int>{0, 1, 2, 3, 0, 0, 1});
  }
};

}  // namespace wstore::testing
