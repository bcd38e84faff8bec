// Byte positions of the form at rest; docs/formats/patch.md explains them.
#pragma once

#include <array>
#include <cstdint>

#include "transfer/codec/chunk_layout.h"

namespace wstore {

inline constexpr uint32_t kPackMagic = 0x4b505357;  // "WSPK"
inline constexpr uint16_t kPackVersion = 1;

// The header is the chunk's, but for the magic and these fields; its checksum is over the packed
// bytes.
inline constexpr size_t kChunkSizeAt = 32;
inline constexpr size_t kColumnCountAt = 36;
inline constexpr size_t kChunkChecksumAt = 40;

// A column entry is two u32: the column's size and the bytes stored for it. Equal: stored as it is.
inline constexpr uint64_t kColumnEntryBytes = 8;

enum PackColumn : uint32_t {
  kDirectory,  // u32 each: tensors, their tile counts, distances between tiles, packed tile words
  kGaps,       // of tiles in forms kBlocks and kOffsets; see gap_code.h
  kGapExtras,
  kBitmaps,     // of tiles in forms kBitmap and kDense
  kFirstPlane,  // byte 0 of every changed element's bits; then byte 1, ...
};
inline constexpr uint32_t kMaxColumns = kFirstPlane + 8;

inline bool HasBitmap(TileForm form) {
  return form == TileForm::kBitmap || form == TileForm::kDense;
}

}  // namespace wstore
