#include <zstd.h>

#include <array>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "transfer/codec/gap_code.h"
#include "transfer/codec/pack_layout.h"
#include "transfer/codec/tile_codec.h"
#include "wstore/chunk.h"
#include "wstore/packed_places.h"

namespace wstore {
namespace {

struct FreeContext {
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

// One column, unpacked, and how far it has been used.
struct ColumnReader {
  std::vector<uint8_t> bytes;  // with kGapSlackBytes behind
  size_t size = 0;
  size_t used = 0;

  // The next bytes, or nothing if there are too few.
  const uint8_t* Take(size_t count) {
    if (count > size - used) return nullptr;
    used += count;
    return bytes.data() + used - count;
  }
  bool TakeU32(uint32_t* value) {
    const uint8_t* const at = Take(sizeof(*value));
    if (at != nullptr) *value = LoadLe<uint32_t>(at);
    return at != nullptr;
  }
};

template <typename... Parts>
absl::Status Damaged(const Parts&... parts) {
  return absl::DataLossError(absl::StrCat("packed chunk: ", parts...));
}

class Unpacker {
 public:
  Unpacker(std::string_view packed, const Manifest& manifest)
      : packed_(packed), manifest_(manifest), builder_(manifest) {}

  absl::Status ReadColumns(uint32_t most = kMaxColumns);
  absl::Status ReadDirectory();
  std::vector<TilePlace> places() const;
  absl::Status ReadTiles();
  absl::StatusOr<std::string> Finish();

 private:
  struct Tile {
    TilePlace place;
    PackedTile packed;
  };

  uint64_t Field(size_t at, size_t size) const {
    uint64_t value = 0;
    std::memcpy(&value, packed_.data() + at, size);
    return value;
  }
  absl::Status ReadTensor(TensorIndex tensor, uint32_t tiles);
  bool ReadPositions(const Tile& tile, uint32_t elements);
  bool ReadValues(const Tile& tile, uint32_t element_bytes);

  const std::string_view packed_;
  const Manifest& manifest_;
  ChunkBuilder builder_;
  uint64_t chunk_size_ = 0;
  std::array<ColumnReader, kMaxColumns> columns_;
  std::vector<Tile> tiles_;
  TileChanges changes_;
};

absl::Status Unpack(absl::Span<const char> stored, ColumnReader* column) {
  column->bytes.resize(column->size + kGapSlackBytes);
  if (stored.size() == column->size) {
    std::memcpy(column->bytes.data(), stored.data(), stored.size());
    return absl::OkStatus();
  }
  thread_local const std::unique_ptr<ZSTD_DCtx, FreeContext> context(ZSTD_createDCtx());
  WSTORE_CHECK(context != nullptr);
  const size_t size = ZSTD_decompressDCtx(context.get(), column->bytes.data(), column->size,
                                          stored.data(), stored.size());
  if (ZSTD_isError(size) != 0) return Damaged("zstd: ", ZSTD_getErrorName(size));
  if (size != column->size) return Damaged("a column of ", size, " bytes, not ", column->size);
  return absl::OkStatus();
}

// The first `most` of them.
absl::Status Unpacker::ReadColumns(uint32_t most) {
  chunk_size_ = Field(kChunkSizeAt, 4);
  const uint64_t column_count = Field(kColumnCountAt, 4);
  if (Field(0, 4) != kPackMagic || Field(kVersionAt, 2) != kPackVersion ||
      Field(kFlagsAt, 2) != 0 || Field(kReservedAt, 8) != 0) {
    return Damaged("unknown magic, version or flag");
  }
  if (chunk_size_ > kChunkMaxBytes || column_count > kMaxColumns) {
    return Damaged("a chunk of ", chunk_size_, " bytes in ", column_count, " columns");
  }
  uint64_t at = kChunkHeaderBytes + kColumnEntryBytes * column_count;
  if (at > packed_.size()) return Damaged("cut short");
  // A change takes at least an element and a byte of a chunk, and here an element and at most
  // three.
  uint64_t budget = 3 * chunk_size_;
  for (uint32_t i = 0; i < column_count; ++i) {
    columns_[i].size = Field(kChunkHeaderBytes + kColumnEntryBytes * i, 4);
    const uint64_t stored = Field(kChunkHeaderBytes + kColumnEntryBytes * i + 4, 4);
    if (columns_[i].size > budget || stored > packed_.size() - at) {
      return Damaged("a column of ", columns_[i].size, " bytes stored in ", stored);
    }
    budget -= columns_[i].size;
    if (i < most) {
      RETURN_IF_ERROR(Unpack(absl::MakeConstSpan(packed_.data() + at, stored), &columns_[i]));
    }
    at += stored;
  }
  if (at != packed_.size()) return Damaged(packed_.size() - at, " bytes too many");
  return absl::OkStatus();
}

absl::Status Unpacker::ReadTensor(TensorIndex tensor, uint32_t tiles) {
  if (tensor >= manifest_.size() || (!tiles_.empty() && tensor <= tiles_.back().place.tensor)) {
    return Damaged("tensor ", tensor, " out of range or order");
  }
  uint64_t next_tile = 0;
  for (uint32_t i = 0; i < tiles; ++i) {
    uint32_t distance;
    if (!columns_[kDirectory].TakeU32(&distance)) return Damaged("too few tiles");
    if (next_tile + distance >= manifest_.tensor(tensor).tiles) {
      return Damaged("tile ", next_tile + distance, " of tensor ", tensor, " does not exist");
    }
    const TilePlace place{tensor, static_cast<uint32_t>(next_tile + distance)};
    if (manifest_.GlobalTile(place) / kSpanTiles != Field(kSpanAt, 4)) {
      return Damaged("tile ", place.tile, " of tensor ", tensor, " is in another span");
    }
    tiles_.push_back({place, {}});
    next_tile = place.tile + uint64_t{1};
  }
  return absl::OkStatus();
}

absl::Status Unpacker::ReadDirectory() {
  const uint64_t tensor_count = Field(kTensorCountAt, 4);
  const uint64_t tile_count = Field(kTileCountAt, 4);
  ColumnReader& directory = columns_[kDirectory];
  if (tile_count == 0 || tile_count > kSpanTiles || tensor_count > tile_count ||
      directory.size != 8 * (tensor_count + tile_count)) {
    return Damaged(tile_count, " tiles of ", tensor_count, " tensors");
  }
  const uint8_t* const tensors = directory.Take(8 * tensor_count);
  for (uint64_t i = 0; i < tensor_count; ++i) {
    RETURN_IF_ERROR(ReadTensor(LoadLe<uint32_t>(tensors + 4 * i),
                               LoadLe<uint32_t>(tensors + 4 * (tensor_count + i))));
  }
  if (tiles_.size() != tile_count) return Damaged(tiles_.size(), " tiles, not ", tile_count);
  for (Tile& tile : tiles_) {
    uint32_t word;
    if (!directory.TakeU32(&word) || !PackedTile::Decode(word, &tile.packed)) {
      return Damaged("a reserved bit is set");
    }
  }
  return absl::OkStatus();
}

std::vector<TilePlace> Unpacker::places() const {
  std::vector<TilePlace> places;
  for (const Tile& tile : tiles_) places.push_back(tile.place);
  return places;
}

bool Unpacker::ReadPositions(const Tile& tile, uint32_t elements) {
  const uint32_t changed = tile.packed.changed;
  if (HasBitmap(tile.packed.form)) {
    const TileShape shape{elements, 1, changed, 0};
    const uint8_t* const bitmap = columns_[kBitmaps].Take(shape.bitmap_bytes());
    return bitmap != nullptr && DecodeBitmap(bitmap, shape, changes_.offsets.data()) &&
           changes_.offsets.back() < elements;
  }
  const uint8_t* const gaps = columns_[kGaps].Take(changed);
  if (gaps == nullptr) return false;
  ColumnReader& extras = columns_[kGapExtras];
  extras.bytes.resize(extras.size + kGapSlackBytes);
  const std::optional<size_t> used =
      DecodeGaps(absl::MakeConstSpan(gaps, changed),
                 absl::MakeConstSpan(extras.bytes.data() + extras.used, extras.size - extras.used),
                 elements, changes_.offsets.data());
  extras.used += used.value_or(0);
  return used.has_value();
}

bool Unpacker::ReadValues(const Tile& tile, uint32_t element_bytes) {
  const uint32_t changed = tile.packed.changed;
  std::array<const uint8_t*, 8> planes{};
  for (uint32_t plane = 0; plane < element_bytes; ++plane) {
    planes[plane] = columns_[kFirstPlane + plane].Take(changed);
    if (planes[plane] == nullptr) return false;
  }
  uint8_t* const values = changes_.values.data();
  WithElementType(element_bytes, [&](auto zero) {
    using Element = decltype(zero);
    for (uint32_t i = 0; i < changed; ++i) {
      uint64_t bits = 0;
      for (size_t plane = 0; plane < sizeof(Element); ++plane) {
        bits |= uint64_t{planes[plane][i]} << (8 * plane);
      }
      StoreLe(static_cast<Element>(bits), values + i * sizeof(Element));
    }
  });
  return CountNonZero(values, changed, element_bytes) == changed;
}

absl::Status Unpacker::ReadTiles() {
  for (const Tile& tile : tiles_) {
    const uint32_t elements = manifest_.TileElements(tile.place);
    const uint32_t element_bytes = manifest_.tensor(tile.place.tensor).element_bytes;
    changes_.offsets.resize(tile.packed.changed);
    changes_.values.resize(size_t{tile.packed.changed} * element_bytes);
    if (tile.packed.changed > elements || !ReadPositions(tile, elements) ||
        !ReadValues(tile, element_bytes)) {
      return Damaged("tile ", tile.place.tile, " of tensor ", tile.place.tensor,
                     " has other changes than its columns");
    }
    builder_.AddTile(tile.place, changes_.offsets, changes_.values.data());
    if (builder_.size_bytes() > chunk_size_) return Damaged("more than ", chunk_size_, " bytes");
  }
  for (const ColumnReader& column : columns_) {
    if (column.used != column.size) return Damaged(column.size - column.used, " bytes unused");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Unpacker::Finish() {
  ChunkHeader header;
  header.transaction = TransactionNumber(Field(kTransactionAt, 8));
  header.key.span = static_cast<uint32_t>(Field(kSpanAt, 4));
  header.key.contributor = static_cast<uint16_t>(Field(kContributorAt, 2));
  header.key.part = static_cast<uint16_t>(Field(kPartAt, 2));
  std::string chunk = builder_.Finish(header);
  if (chunk.size() != chunk_size_ ||
      LoadLe<uint64_t>(chunk.data() + kChecksumAt) != Field(kChunkChecksumAt, 8)) {
    return Damaged("not the chunk that was packed");
  }
  return chunk;
}

absl::Status CheckWhole(std::string_view packed) {
  if (packed.size() < kChunkHeaderBytes) {
    return Damaged("cut short within its header of ", kChunkHeaderBytes, " bytes");
  }
  if (ChunkChecksum(packed) != LoadLe<uint64_t>(packed.data() + kChecksumAt)) {
    return Damaged("the checksum of its ", packed.size(), " bytes does not match");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<TilePlace>> PackedTilePlaces(std::string_view packed,
                                                        const Manifest& manifest) {
  RETURN_IF_ERROR(CheckWhole(packed));
  Unpacker unpacker(packed, manifest);
  RETURN_IF_ERROR(unpacker.ReadColumns(/*most=*/1));
  RETURN_IF_ERROR(unpacker.ReadDirectory());
  return unpacker.places();
}

absl::StatusOr<std::string> UnpackChunk(std::string_view packed, const Manifest& manifest) {
  RETURN_IF_ERROR(CheckWhole(packed));
  Unpacker unpacker(packed, manifest);
  RETURN_IF_ERROR(unpacker.ReadColumns());
  RETURN_IF_ERROR(unpacker.ReadDirectory());
  RETURN_IF_ERROR(unpacker.ReadTiles());
  return unpacker.Finish();
}

}  // namespace wstore
