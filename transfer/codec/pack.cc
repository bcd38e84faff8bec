#include <zstd.h>

#include <array>
#include <memory>
#include <utility>

#include "common/check.h"
#include "transfer/codec/gap_code.h"
#include "transfer/codec/pack_layout.h"
#include "transfer/codec/tile_codec.h"
#include "wstore/chunk.h"

namespace wstore {
namespace {

using Columns = std::array<std::vector<uint8_t>, kMaxColumns>;

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
};

void AppendU32(uint32_t value, std::vector<uint8_t>* out) {
  out->resize(out->size() + sizeof(value));
  StoreLe(value, out->data() + out->size() - sizeof(value));
}

void AppendDirectory(absl::Span<const EncodedTile> tiles, std::vector<uint8_t>* out) {
  std::vector<uint8_t> counts;
  std::vector<uint8_t> distances;
  std::vector<uint8_t> packed;
  for (size_t begin = 0; begin < tiles.size();) {
    const TensorIndex tensor = tiles[begin].place.tensor;
    size_t end = begin;
    uint32_t next_tile = 0;
    for (; end < tiles.size() && tiles[end].place.tensor == tensor; ++end) {
      const EncodedTile& tile = tiles[end];
      AppendU32(tile.place.tile - next_tile, &distances);
      AppendU32(PackedTile{tile.changed, tile.form, 0}.Encode(), &packed);
      next_tile = tile.place.tile + 1;
    }
    AppendU32(tensor, out);
    AppendU32(static_cast<uint32_t>(end - begin), &counts);
    begin = end;
  }
  for (const auto* part : {&counts, &distances, &packed}) {
    out->insert(out->end(), part->begin(), part->end());
  }
}

void AppendPlanes(const TileChanges& changes, uint32_t element_bytes, Columns* columns) {
  const size_t changed = changes.offsets.size();
  for (uint32_t plane = 0; plane < element_bytes; ++plane) {
    std::vector<uint8_t>& column = (*columns)[kFirstPlane + plane];
    column.resize(column.size() + changed);
    uint8_t* const out = column.data() + column.size() - changed;
    const uint8_t* const in = changes.values.data() + plane;
    WithElementType(element_bytes, [&](auto zero) {
      for (size_t i = 0; i < changed; ++i) out[i] = in[i * sizeof(zero)];
    });
  }
}

void AppendTile(const EncodedTile& tile, TileChanges* scratch, Columns* columns) {
  DecodeTile(tile, scratch);
  AppendPlanes(*scratch, tile.element_bytes, columns);
  if (!HasBitmap(tile.form)) {
    AppendGaps(scratch->offsets, &(*columns)[kGaps], &(*columns)[kGapExtras]);
    return;
  }
  const TileShape shape = ShapeOf(tile);
  std::vector<uint8_t>& bitmaps = (*columns)[kBitmaps];
  bitmaps.resize(bitmaps.size() + shape.bitmap_bytes());
  EncodeBitmap(scratch->offsets, shape.bitmap_bytes(),
               bitmaps.data() + bitmaps.size() - shape.bitmap_bytes());
}

// Columns are noise of skewed statistics. The matches that zstd's fast search finds in noise cost
// more than the Huffman code they displace (0.32 against 0.27 bytes for the low byte of one-unit
// changes of bf16), and searching for them costs time. A table of 64 entries and a minimum of seven
// bytes leave the matches that are worth it: runs, and patterns of short period.
ZSTD_CCtx* Context() {
  // Kept, because creating one costs as much as compressing a small column.
  thread_local const std::unique_ptr<ZSTD_CCtx, FreeContext> context = [] {
    std::unique_ptr<ZSTD_CCtx, FreeContext> made(ZSTD_createCCtx());
    WSTORE_CHECK(made != nullptr);
    for (const auto& [parameter, value] :
         {std::pair(ZSTD_c_compressionLevel, 1), std::pair(ZSTD_c_hashLog, 6),
          std::pair(ZSTD_c_minMatch, 7)}) {
      WSTORE_CHECK(ZSTD_isError(ZSTD_CCtx_setParameter(made.get(), parameter, value)) == 0);
    }
    return made;
  }();
  return context.get();
}

// Appends a column to `out`, compressed if that is smaller. Returns the bytes it takes there.
uint32_t AppendStored(const std::vector<uint8_t>& column, std::string* out) {
  if (column.empty()) return 0;
  const size_t start = out->size();
  out->resize(start + ZSTD_compressBound(column.size()));
  size_t stored = ZSTD_compress2(Context(), out->data() + start, out->size() - start, column.data(),
                                 column.size());
  if (ZSTD_isError(stored) != 0 || stored >= column.size()) {
    stored = column.size();
    std::memcpy(out->data() + start, column.data(), stored);
  }
  out->resize(start + stored);
  return static_cast<uint32_t>(stored);
}

}  // namespace

std::string PackChunk(std::string_view chunk, const Manifest& manifest) {
  const absl::StatusOr<ChunkView> view = ChunkView::Parse(chunk, manifest);
  WSTORE_CHECK(view.ok());
  Columns columns;
  AppendDirectory(view->tiles(), &columns[kDirectory]);
  TileChanges scratch;
  for (const EncodedTile& tile : view->tiles()) AppendTile(tile, &scratch, &columns);
  uint32_t column_count = kMaxColumns;
  while (columns[column_count - 1].empty()) --column_count;

  std::string out(kChunkHeaderBytes + kColumnEntryBytes * column_count, 0);
  for (uint32_t i = 0; i < column_count; ++i) {
    const uint32_t stored = AppendStored(columns[i], &out);
    char* const entry = out.data() + kChunkHeaderBytes + kColumnEntryBytes * i;
    StoreLe<uint32_t>(static_cast<uint32_t>(columns[i].size()), entry);
    StoreLe<uint32_t>(stored, entry + 4);
  }
  std::memcpy(out.data(), chunk.data(), kChunkSizeAt);
  StoreLe<uint32_t>(kPackMagic, out.data());
  StoreLe<uint16_t>(kPackVersion, out.data() + kVersionAt);
  StoreLe<uint32_t>(static_cast<uint32_t>(chunk.size()), out.data() + kChunkSizeAt);
  StoreLe<uint32_t>(column_count, out.data() + kColumnCountAt);
  StoreLe<uint64_t>(LoadLe<uint64_t>(chunk.data() + kChecksumAt), out.data() + kChunkChecksumAt);
  StoreLe<uint64_t>(ChunkChecksum(out), out.data() + kChecksumAt);
  return out;
}

}  // namespace wstore
