#include <memory>
#include <utility>

#include "common/check.h"
#include "transfer/codec/chunk_layout.h"
#include "transfer/codec/tile_codec.h"
#include "wstore/chunk.h"
#include "wstore/chunk_header.h"
#include "xxhash.h"

namespace wstore {
namespace {

struct FreeState {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

void CheckExists(const Manifest& manifest, TilePlace place) {
  WSTORE_CHECK(place.tensor < manifest.size());
  WSTORE_CHECK(place.tile < manifest.tensor(place.tensor).tiles);
}

// Puts each value where its element is.
void Spread(absl::Span<const uint16_t> offsets, const uint8_t* values, uint32_t element_bytes,
            uint8_t* dense) {
  WithElementType(element_bytes, [&](auto zero) {
    constexpr size_t kWidth = sizeof(zero);
    for (size_t i = 0; i < offsets.size(); ++i) {
      std::memcpy(dense + offsets[i] * kWidth, values + i * kWidth, kWidth);
    }
  });
}

}  // namespace

uint64_t ChunkChecksum(std::string_view bytes) {
  thread_local const std::unique_ptr<XXH3_state_t, FreeState> state(XXH3_createState());
  WSTORE_CHECK(state != nullptr && bytes.size() >= kChunkHeaderBytes);
  WSTORE_CHECK(XXH3_64bits_reset(state.get()) == XXH_OK);
  WSTORE_CHECK(XXH3_64bits_update(state.get(), bytes.data(), kChecksumAt) == XXH_OK);
  WSTORE_CHECK(XXH3_64bits_update(state.get(), bytes.data() + kChunkHeaderBytes,
                                  bytes.size() - kChunkHeaderBytes) == XXH_OK);
  return XXH3_64bits_digest(state.get());
}

void ReplaceHeader(TransactionNumber transaction, uint16_t contributor, std::string* chunk) {
  WSTORE_CHECK(chunk->size() >= kChunkHeaderBytes);
  StoreLe<uint64_t>(transaction.value(), chunk->data() + kTransactionAt);
  StoreLe<uint16_t>(contributor, chunk->data() + kContributorAt);
  StoreLe<uint64_t>(ChunkChecksum(*chunk), chunk->data() + kChecksumAt);
}

ChunkBuilder::ChunkBuilder(const Manifest& manifest) : manifest_(manifest) {}

uint64_t ChunkBuilder::size_bytes() const {
  return kChunkHeaderBytes + kTensorEntryBytes * tensors_ + kTileEntryBytes * tiles_.size() +
         payload_.size();
}

uint8_t* ChunkBuilder::Append(TilePlace place, uint32_t packed, uint32_t changed,
                              uint64_t size_bytes) {
  if (!tiles_.empty()) {
    const TilePlace last = tiles_.back().place;
    WSTORE_CHECK(last < place);
    WSTORE_CHECK(manifest_.GlobalTile(last) / kSpanTiles ==
                 manifest_.GlobalTile(place) / kSpanTiles);
  }
  tensors_ += tiles_.empty() || tiles_.back().place.tensor != place.tensor;
  tiles_.push_back({place, packed});
  changed_ += changed;
  const size_t start = payload_.size();
  payload_.resize(start + AlignUp(size_bytes, kTileAlignment));
  return reinterpret_cast<uint8_t*>(payload_.data()) + start;
}

void ChunkBuilder::AddTile(TilePlace place, absl::Span<const uint16_t> offsets,
                           const uint8_t* values) {
  CheckExists(manifest_, place);
  const uint32_t elements = manifest_.TileElements(place);
  const uint32_t element_bytes = manifest_.tensor(place.tensor).element_bytes;
  const auto changed = static_cast<uint32_t>(offsets.size());
  WSTORE_CHECK(!offsets.empty() && offsets.back() < elements && IsAscending(offsets));
  WSTORE_CHECK(CountNonZero(values, changed, element_bytes) == changed);

  // No escape is what favours kBlocks most: where it is not chosen so, blocks need no counting.
  TileShape shape{elements, element_bytes, changed, 0};
  TileForm form = ChooseForm(shape);
  BlockCounts counts;
  if (form == TileForm::kBlocks) {
    CountBlocks(offsets, &counts);
    shape.escapes = CountEscapes(counts, shape.blocks());
    form = ChooseForm(shape);
    if (form != TileForm::kBlocks) shape.escapes = 0;
  }
  const PackedTile packed{changed, form, shape.escapes};
  uint8_t* const out = Append(place, packed.Encode(), changed, CanonicalBytes(form, shape));
  if (form != TileForm::kDense) std::memcpy(out, values, size_t{changed} * element_bytes);
  uint8_t* const positions = out + PositionsStart(shape);
  switch (form) {
    case TileForm::kBlocks:
      return EncodeBlocks(offsets, counts, shape, positions);
    case TileForm::kOffsets:
      std::memcpy(positions, offsets.data(), offsets.size() * sizeof(uint16_t));
      return;
    case TileForm::kBitmap:
      return EncodeBitmap(offsets, shape.bitmap_bytes(), positions);
    case TileForm::kDense:
      return Spread(offsets, values, element_bytes, out);
  }
}

void ChunkBuilder::AddTile(const EncodedTile& tile) {
  CheckExists(manifest_, tile.place);
  const TileShape shape = ShapeOf(tile);
  WSTORE_CHECK(tile.bytes.size() == CanonicalBytes(tile.form, shape));
  const PackedTile packed{tile.changed, tile.form, shape.escapes};
  uint8_t* const out = Append(tile.place, packed.Encode(), tile.changed, tile.bytes.size());
  std::memcpy(out, tile.bytes.data(), tile.bytes.size());
}

ChunkView ChunkBuilder::View() const {
  ChunkView view;
  view.changed_ = changed_;
  view.tiles_.reserve(tiles_.size());
  const auto* at = reinterpret_cast<const uint8_t*>(payload_.data());
  for (const Tile& tile : tiles_) {
    PackedTile packed;
    WSTORE_CHECK(PackedTile::Decode(tile.packed, &packed));
    const TileShape shape{manifest_.TileElements(tile.place),
                          manifest_.tensor(tile.place.tensor).element_bytes, packed.changed,
                          packed.escapes};
    const uint64_t size_bytes = CanonicalBytes(packed.form, shape);
    view.tiles_.push_back({tile.place, packed.form, packed.changed, shape.elements,
                           shape.element_bytes, absl::MakeConstSpan(at, size_bytes)});
    at += AlignUp(size_bytes, kTileAlignment);
  }
  return view;
}

std::string ChunkBuilder::Finish(const ChunkHeader& header) {
  WSTORE_CHECK(!tiles_.empty());
  WSTORE_CHECK(manifest_.GlobalTile(tiles_.front().place) / kSpanTiles == header.key.span);
  WSTORE_CHECK(size_bytes() <= kChunkMaxBytes);

  const size_t payload_start =
      kChunkHeaderBytes + kTensorEntryBytes * tensors_ + kTileEntryBytes * tiles_.size();
  std::string chunk;
  chunk.reserve(payload_start + payload_.size());
  chunk.resize(payload_start);
  char* const out = chunk.data();
  StoreLe<uint32_t>(kChunkMagic, out);
  StoreLe<uint16_t>(kChunkVersion, out + kVersionAt);
  StoreLe<uint64_t>(header.transaction.value(), out + kTransactionAt);
  StoreLe<uint32_t>(header.key.span, out + kSpanAt);
  StoreLe<uint16_t>(header.key.contributor, out + kContributorAt);
  StoreLe<uint16_t>(header.key.part, out + kPartAt);
  StoreLe<uint32_t>(tensors_, out + kTensorCountAt);
  StoreLe<uint32_t>(static_cast<uint32_t>(tiles_.size()), out + kTileCountAt);
  StoreLe<uint64_t>(changed_, out + kChangedAt);
  StoreLe<uint64_t>(payload_.size(), out + kPayloadBytesAt);

  char* tensor_entry = out + kChunkHeaderBytes;
  char* tile_entry = tensor_entry + kTensorEntryBytes * tensors_;
  for (size_t begin = 0; begin < tiles_.size(); tensor_entry += kTensorEntryBytes) {
    const TensorIndex index = tiles_[begin].place.tensor;
    size_t end = begin;
    for (; end < tiles_.size() && tiles_[end].place.tensor == index; ++end) {
      StoreLe<uint32_t>(tiles_[end].place.tile, tile_entry);
      StoreLe<uint32_t>(tiles_[end].packed, tile_entry + 4);
      tile_entry += kTileEntryBytes;
    }
    StoreLe<uint32_t>(index, tensor_entry);
    StoreLe<uint32_t>(static_cast<uint32_t>(end - begin), tensor_entry + 4);
    StoreLe<uint64_t>(manifest_.tensor(index).elements, tensor_entry + 8);
    StoreLe<uint8_t>(static_cast<uint8_t>(manifest_.tensor(index).element_bytes),
                     tensor_entry + 16);
    begin = end;
  }
  chunk.append(payload_);
  StoreLe<uint64_t>(ChunkChecksum(chunk), chunk.data() + kChecksumAt);

  Clear();
  return chunk;
}

void ChunkBuilder::Clear() {
  tiles_.clear();
  payload_.clear();
  tensors_ = 0;
  changed_ = 0;
}

}  // namespace wstore
