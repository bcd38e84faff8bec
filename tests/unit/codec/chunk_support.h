// Changes for tests of the codec, and chunks of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/unit/codec/chunk_reference.h"
#include "tests/unit/codec/weights.h"
#include "wstore/chunk.h"

namespace wstore::testing {

inline const ChunkHeader kTestHeader{TransactionNumber(0x1122334455667788),
                                     {.contributor = 7, .span = 0, .part = 9}};

// `count` changes at distinct random places, their bits random but never all zero. With `clustered`
// they lie close together, so that blocks are escaped.
inline Changes RandomChanges(uint32_t elements, uint32_t element_bytes, uint32_t count,
                             bool clustered, std::mt19937_64& random) {
  const uint64_t mask = element_bytes == 8 ? ~uint64_t{0} : (uint64_t{1} << 8 * element_bytes) - 1;
  const uint32_t range = clustered ? std::min(elements, count + count / 4 + 1) : elements;
  const uint32_t start = static_cast<uint32_t>(random() % (elements - range + 1));
  std::vector<bool> is_changed(range, 2 * count > range);
  // Draws the smaller of the two sides.
  for (uint32_t left = 2 * count > range ? range - count : count; left > 0;) {
    const uint32_t at = static_cast<uint32_t>(random() % range);
    if (is_changed[at] != (2 * count > range)) continue;
    is_changed[at] = !is_changed[at];
    --left;
  }
  Changes changes;
  for (uint32_t i = 0; i < range; ++i) {
    if (!is_changed[i]) continue;
    uint64_t bits = 0;
    while (bits == 0) bits = random() >> (random() % 64) & mask;
    changes.emplace_hint(changes.end(), start + i, bits);
  }
  return changes;
}

// The same as the codec takes and gives them.
inline TileChanges ToColumns(const Changes& changes, uint32_t element_bytes) {
  TileChanges columns;
  std::string values;
  for (const auto& [offset, bits] : changes) {
    columns.offsets.push_back(static_cast<uint16_t>(offset));
    PutLe(bits, element_bytes, &values);
  }
  columns.values.assign(values.begin(), values.end());
  return columns;
}

inline Dtype DtypeOfWidth(uint32_t element_bytes) {
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

inline void AddChanges(const Manifest& manifest, const PlacedChanges& tile, ChunkBuilder* builder) {
  const TileChanges columns =
      ToColumns(tile.changes, manifest.tensor(tile.place.tensor).element_bytes);
  builder->AddTile(tile.place, columns.offsets, columns.values.data());
}

inline std::string BuildChunk(const Manifest& manifest, const std::vector<PlacedChanges>& tiles,
                              const ChunkHeader& header = kTestHeader) {
  ChunkBuilder builder(manifest);
  for (const PlacedChanges& tile : tiles) AddChanges(manifest, tile, &builder);
  return builder.Finish(header);
}

// A chunk's changes, decoded and written again.
inline std::string Rebuild(const Manifest& manifest, const ChunkView& view) {
  ChunkBuilder builder(manifest);
  TileChanges changes;
  for (const EncodedTile& tile : view.tiles()) {
    DecodeTile(tile, &changes);
    builder.AddTile(tile.place, changes.offsets, changes.values.data());
  }
  return builder.Finish(view.header());
}

// One tile in every form, escaped blocks, several tensors and widths: what damage is done to.
struct Sample {
  Manifest manifest = ManifestOf({{"blocks", Dtype::kBF16, {600}},
                                  {"dense", Dtype::kF32, {3}},
                                  {"empty", Dtype::kU8, {0}},
                                  {"map", Dtype::kU8, {100}},
                                  {"offsets", Dtype::kBF16, {kTileElements + 2000}}});
  std::vector<PlacedChanges> tiles;
  std::string chunk;

  Sample() {
    Changes blocks{{599, 0x8000}};
    for (uint32_t i = 0; i < 20; ++i) blocks[3 * i] = 1 + i;
    Changes map;
    for (uint32_t i = 0; i < 40; ++i) map[2 * i + 1] = 0xff - i;
    tiles = {{{0, 0}, blocks},
             {{1, 0}, {{0, 1}, {1, 0xffffffff}, {2, 0x80000000}}},
             {{3, 0}, map},
             {{4, 0}, {{0, 1}, {32768, 2}, {65535, 3}}},
             {{4, 1}, {{1999, 0x7fff}}}};
    chunk = BuildChunk(manifest, tiles);
  }
};

}  // namespace wstore::testing
