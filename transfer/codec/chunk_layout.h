// Byte positions of the chunk format; docs/formats/patch.md explains them.
#pragma once

#include <cstdint>
#include <string_view>

#include "wstore/chunk.h"

namespace wstore {

inline constexpr uint32_t kChunkMagic = 0x4b435357;  // "WSCK"
inline constexpr uint16_t kChunkVersion = 1;
inline constexpr uint64_t kChunkHeaderBytes = 64;
inline constexpr uint64_t kTensorEntryBytes = 24;
inline constexpr uint64_t kTileEntryBytes = 8;
inline constexpr uint64_t kTileAlignment = 8;

// Offsets of the header's fields.
inline constexpr size_t kVersionAt = 4;
inline constexpr size_t kFlagsAt = 6;
inline constexpr size_t kTransactionAt = 8;
inline constexpr size_t kSpanAt = 16;
inline constexpr size_t kContributorAt = 20;
inline constexpr size_t kPartAt = 22;
inline constexpr size_t kTensorCountAt = 24;
inline constexpr size_t kTileCountAt = 28;
inline constexpr size_t kChangedAt = 32;
inline constexpr size_t kPayloadBytesAt = 40;
inline constexpr size_t kReservedAt = 48;
inline constexpr size_t kChecksumAt = 56;

// XXH3-64 of everything but the eight bytes at kChecksumAt. `bytes` has at least kChunkHeaderBytes.
uint64_t ChunkChecksum(std::string_view bytes);

// The second word of a tile entry.
struct PackedTile {
  uint32_t changed = 0;
  TileForm form = TileForm::kBlocks;
  uint32_t escapes = 0;

  uint32_t Encode() const {
    return (changed - 1) | static_cast<uint32_t>(form) << 16 | escapes << 18;
  }
  // False: a reserved bit is set.
  static bool Decode(uint32_t word, PackedTile* out) {
    *out = {(word & 0xffff) + 1, static_cast<TileForm>(word >> 16 & 3), word >> 18 & 0x1ff};
    return word >> 27 == 0;
  }
};

}  // namespace wstore
