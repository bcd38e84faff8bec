// A second chunk encoder, written from docs/formats/patch.md alone: one byte after the other, with
// no thought for speed. What the codec writes must equal it.
#pragma once

#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "wstore/chunk.h"

namespace wstore::testing {

// Changes of one tile: XOR bits by offset.
using Changes = std::map<uint32_t, uint64_t>;

struct PlacedChanges {
  TilePlace place;
  Changes changes;
};

inline void PutLe(uint64_t value, uint32_t bytes, std::string* out) {
  for (uint32_t i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

inline void PadTo(size_t alignment, std::string* out) {
  while (out->size() % alignment != 0) out->push_back(0);
}

struct ReferenceTile {
  TileForm form = TileForm::kBlocks;
  uint32_t escapes = 0;
  std::string bytes;
};

inline std::string ReferenceBlocks(uint32_t elements, const Changes& changes, uint32_t* escapes) {
  std::vector<uint32_t> counts((elements + 255) / 256);
  for (const auto& [offset, bits] : changes) ++counts[offset / 256];
  std::string nibbles;
  std::string escaped;
  for (size_t block = 0; block < counts.size(); block += 2) {
    uint32_t byte = 0;
    for (size_t i = block; i < std::min(block + 2, counts.size()); ++i) {
      byte |= (counts[i] < 15 ? counts[i] : 15) << (i == block ? 0 : 4);
      if (counts[i] >= 15) escaped.push_back(static_cast<char>(counts[i] - 15));
    }
    nibbles.push_back(static_cast<char>(byte));
  }
  *escapes = static_cast<uint32_t>(escaped.size());
  std::string out = nibbles + escaped;
  for (const auto& [offset, bits] : changes) out.push_back(static_cast<char>(offset % 256));
  return out;
}

inline std::string ReferenceBitmap(uint32_t elements, const Changes& changes) {
  std::string out((elements + 7) / 8, 0);
  for (const auto& [offset, bits] : changes) out[offset / 8] |= static_cast<char>(1 << offset % 8);
  return out;
}

inline ReferenceTile ReferenceEncodeTile(uint32_t elements, uint32_t element_bytes,
                                         const Changes& changes) {
  std::string values;
  for (const auto& [offset, bits] : changes) PutLe(bits, element_bytes, &values);
  PadTo(4, &values);
  std::string offsets;
  for (const auto& [offset, bits] : changes) PutLe(offset, 2, &offsets);
  std::string dense;
  for (uint32_t i = 0; i < elements; ++i) {
    const auto it = changes.find(i);
    PutLe(it == changes.end() ? 0 : it->second, element_bytes, &dense);
  }
  uint32_t escapes = 0;
  const std::string blocks = ReferenceBlocks(elements, changes, &escapes);
  ReferenceTile best{TileForm::kBlocks, escapes, values + blocks};
  const auto offer = [&](TileForm form, const std::string& bytes) {
    if (bytes.size() < best.bytes.size()) best = {form, 0, bytes};
  };
  offer(TileForm::kOffsets, values + offsets);
  offer(TileForm::kBitmap, values + ReferenceBitmap(elements, changes));
  offer(TileForm::kDense, dense);
  return best;
}

// Puts the right checksum into a chunk.
inline void Seal(std::string* chunk) {
  const std::string covered = chunk->substr(0, 56) + chunk->substr(64);
  std::string checksum;
  PutLe(XXH3_64bits(covered.data(), covered.size()), 8, &checksum);
  chunk->replace(56, 8, checksum);
}

inline std::string ReferenceChunk(const Manifest& manifest, const ChunkHeader& header,
                                  const std::vector<PlacedChanges>& tiles) {
  std::map<TensorIndex, uint32_t> tensors;
  std::string tile_entries;
  std::string payload;
  uint64_t changed = 0;
  for (const PlacedChanges& tile : tiles) {
    const uint32_t width = manifest.tensor(tile.place.tensor).element_bytes;
    const ReferenceTile encoded =
        ReferenceEncodeTile(manifest.TileElements(tile.place), width, tile.changes);
    ++tensors[tile.place.tensor];
    PutLe(tile.place.tile, 4, &tile_entries);
    PutLe((tile.changes.size() - 1) + (static_cast<uint32_t>(encoded.form) << 16) +
              (encoded.escapes << 18),
          4, &tile_entries);
    payload += encoded.bytes;
    PadTo(8, &payload);
    changed += tile.changes.size();
  }
  std::string out = "WSCK";
  PutLe(1, 2, &out);
  PutLe(0, 2, &out);
  PutLe(header.transaction.value(), 8, &out);
  PutLe(header.key.span, 4, &out);
  PutLe(header.key.contributor, 2, &out);
  PutLe(header.key.part, 2, &out);
  PutLe(tensors.size(), 4, &out);
  PutLe(tiles.size(), 4, &out);
  PutLe(changed, 8, &out);
  PutLe(payload.size(), 8, &out);
  PutLe(0, 16, &out);
  for (const auto& [tensor, count] : tensors) {
    PutLe(tensor, 4, &out);
    PutLe(count, 4, &out);
    PutLe(manifest.tensor(tensor).elements, 8, &out);
    PutLe(manifest.tensor(tensor).element_bytes, 8, &out);
  }
  out += tile_entries + payload;
  Seal(&out);
  return out;
}

}  // namespace wstore::testing
