#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "transfer/codec/chunk_directory.h"
#include "transfer/codec/chunk_layout.h"
#include "transfer/codec/tile_codec.h"
#include "wstore/chunk.h"

namespace wstore {
namespace {

bool IsZero(const uint8_t* bytes, size_t size) {
  return std::all_of(bytes, bytes + size, [](uint8_t byte) { return byte == 0; });
}

// Reads one chunk from front to back. Each step has checked what the next one relies on.
class Reader {
 public:
  // `bytes`: of a chunk of `size_bytes`, all for ReadPayload.
  Reader(std::string_view bytes, uint64_t size_bytes, const Manifest& manifest)
      : data_(reinterpret_cast<const uint8_t*>(bytes.data())),
        manifest_(manifest),
        end_(size_bytes) {}

  absl::Status ReadHeader();
  absl::Status ReadDirectory();
  absl::Status ReadPayload();
  // What ReadPayload does without the payload.
  absl::StatusOr<std::vector<DirectoryTile>> LocateTiles() const;

  ChunkHeader header;
  std::vector<EncodedTile> tiles;
  uint64_t changed = 0;

 private:
  template <typename... Parts>
  absl::Status Refuse(const Parts&... parts) const {
    return absl::InvalidArgumentError(absl::StrCat(
        "chunk of transaction ", header.transaction.value(), ", span ", header.key.span,
        ", contributor ", header.key.contributor, ", part ", header.key.part, ": ", parts...));
  }
  template <typename... Parts>
  absl::Status RefuseTile(const EncodedTile& tile, const Parts&... parts) const {
    return Refuse("tile ", tile.place.tile, " of tensor '",
                  manifest_.tensor(tile.place.tensor).spec.name, "' ", parts...);
  }
  absl::Status ReadTensorEntry(const uint8_t* entry, uint32_t* tile_count) const;
  absl::Status ReadTileEntry(const uint8_t* entry, TensorIndex tensor);
  uint64_t PayloadStart() const {
    return kChunkHeaderBytes + kTensorEntryBytes * tensor_count_ + kTileEntryBytes * tile_count_;
  }
  // The length of tile `i`, which is at `at` and fits there with its padding.
  absl::StatusOr<uint64_t> SizeOf(size_t i, uint64_t at) const;
  absl::Status CheckEnd(uint64_t at) const;
  absl::Status CheckDense(const EncodedTile& tile) const;
  absl::Status CheckSparse(const EncodedTile& tile, uint32_t escapes);
  absl::Status CheckForm(const EncodedTile& tile, const TileShape& shape) const;

  const uint8_t* const data_;
  const Manifest& manifest_;
  const uint64_t end_;
  uint32_t tensor_count_ = 0;
  uint32_t tile_count_ = 0;
  std::vector<uint32_t> escapes_;  // of each tile
  std::vector<uint16_t> offsets_;  // scratch
};

absl::Status Reader::ReadHeader() {
  header.transaction = TransactionNumber(LoadLe<uint64_t>(data_ + kTransactionAt));
  header.key.span = LoadLe<uint32_t>(data_ + kSpanAt);
  header.key.contributor = LoadLe<uint16_t>(data_ + kContributorAt);
  header.key.part = LoadLe<uint16_t>(data_ + kPartAt);
  tensor_count_ = LoadLe<uint32_t>(data_ + kTensorCountAt);
  tile_count_ = LoadLe<uint32_t>(data_ + kTileCountAt);
  if (LoadLe<uint32_t>(data_) != kChunkMagic) {
    return absl::InvalidArgumentError("not a chunk: it does not begin with 'WSCK'");
  }
  if (const auto version = LoadLe<uint16_t>(data_ + kVersionAt); version != kChunkVersion) {
    return Refuse("codec version ", version, ", but this program reads version ", kChunkVersion,
                  "; use one as new as the writer");
  }
  if (LoadLe<uint16_t>(data_ + kFlagsAt) != 0 || LoadLe<uint64_t>(data_ + kReservedAt) != 0) {
    return Refuse("a reserved field of the header is not zero");
  }
  if (header.key.span >= manifest_.spans()) {
    return Refuse("the span does not exist; the base has ", manifest_.spans());
  }
  if (tile_count_ == 0 || tile_count_ > kSpanTiles) {
    return Refuse(tile_count_, " tiles; a chunk has 1 to ", kSpanTiles);
  }
  if (tensor_count_ == 0 || tensor_count_ > tile_count_) {
    return Refuse(tensor_count_, " tensors for ", tile_count_, " tiles");
  }
  const uint64_t payload_bytes = LoadLe<uint64_t>(data_ + kPayloadBytesAt);
  const uint64_t directory_bytes = PayloadStart();
  if (directory_bytes > end_ || payload_bytes != end_ - directory_bytes) {
    return Refuse("the header asks for ", directory_bytes, " + ", payload_bytes,
                  " bytes, but there are ", end_);
  }
  return absl::OkStatus();
}

absl::Status Reader::ReadTensorEntry(const uint8_t* entry, uint32_t* tile_count) const {
  const auto index = LoadLe<uint32_t>(entry);
  *tile_count = LoadLe<uint32_t>(entry + 4);
  if (index >= manifest_.size()) {
    return Refuse("tensor ", index, " does not exist; the base has ", manifest_.size());
  }
  if (!tiles.empty() && index <= tiles.back().place.tensor) {
    return Refuse("tensor ", index, " comes after tensor ", tiles.back().place.tensor);
  }
  const Manifest::Tensor& tensor = manifest_.tensor(index);
  const auto elements = LoadLe<uint64_t>(entry + 8);
  const uint32_t element_bytes = entry[16];
  if (elements != tensor.elements || element_bytes != tensor.element_bytes) {
    return Refuse("tensor '", tensor.spec.name, "' is said to have ", elements, " elements of ",
                  element_bytes, " bytes, but the base has ", tensor.elements, " of ",
                  tensor.element_bytes);
  }
  if (*tile_count == 0 || *tile_count > tile_count_ - tiles.size()) {
    return Refuse("tensor '", tensor.spec.name, "' claims ", *tile_count, " tiles of ",
                  tile_count_ - tiles.size());
  }
  if (!IsZero(entry + 17, 7)) {
    return Refuse("a reserved byte of tensor '", tensor.spec.name, "' is not zero");
  }
  return absl::OkStatus();
}

absl::Status Reader::ReadTileEntry(const uint8_t* entry, TensorIndex tensor) {
  EncodedTile tile;
  tile.place = {tensor, LoadLe<uint32_t>(entry)};
  if (tile.place.tile >= manifest_.tensor(tensor).tiles) {
    return RefuseTile(tile, "does not exist; the tensor has ", manifest_.tensor(tensor).tiles);
  }
  if (!tiles.empty() && tile.place <= tiles.back().place) {
    return RefuseTile(tile, "comes after tile ", tiles.back().place.tile);
  }
  if (manifest_.GlobalTile(tile.place) / kSpanTiles != header.key.span) {
    return RefuseTile(tile, "belongs to span ", manifest_.GlobalTile(tile.place) / kSpanTiles);
  }
  tile.elements = manifest_.TileElements(tile.place);
  tile.element_bytes = manifest_.tensor(tensor).element_bytes;
  PackedTile packed;
  if (!PackedTile::Decode(LoadLe<uint32_t>(entry + 4), &packed)) {
    return RefuseTile(tile, "has a reserved bit set");
  }
  tile.form = packed.form;
  tile.changed = packed.changed;
  if (tile.changed > tile.elements) {
    return RefuseTile(tile, "has ", tile.changed, " changes of ", tile.elements, " elements");
  }
  if (packed.form != TileForm::kBlocks && packed.escapes != 0) {
    return RefuseTile(tile, "has escaped blocks in a form without blocks");
  }
  changed += tile.changed;
  tiles.push_back(tile);
  escapes_.push_back(packed.escapes);
  return absl::OkStatus();
}

absl::Status Reader::ReadDirectory() {
  tiles.reserve(tile_count_);
  escapes_.reserve(tile_count_);
  const uint8_t* tensor_entry = data_ + kChunkHeaderBytes;
  const uint8_t* tile_entry = tensor_entry + kTensorEntryBytes * tensor_count_;
  for (uint32_t i = 0; i < tensor_count_; ++i, tensor_entry += kTensorEntryBytes) {
    uint32_t tile_count;
    RETURN_IF_ERROR(ReadTensorEntry(tensor_entry, &tile_count));
    for (uint32_t j = 0; j < tile_count; ++j, tile_entry += kTileEntryBytes) {
      RETURN_IF_ERROR(ReadTileEntry(tile_entry, LoadLe<uint32_t>(tensor_entry)));
    }
  }
  if (tiles.size() != tile_count_) {
    return Refuse("the tensors have ", tiles.size(), " tiles together, not ", tile_count_);
  }
  if (const auto stated = LoadLe<uint64_t>(data_ + kChangedAt); stated != changed) {
    return Refuse("the tiles have ", changed, " changes together, not ", stated);
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Reader::SizeOf(size_t i, uint64_t at) const {
  const EncodedTile& tile = tiles[i];
  const TileShape shape{tile.elements, tile.element_bytes, tile.changed, escapes_[i]};
  const uint64_t size = CanonicalBytes(tile.form, shape);
  const uint64_t padded = AlignUp(size, kTileAlignment);
  if (padded > end_ - at) {
    return RefuseTile(tile, "needs ", padded, " bytes, but ", end_ - at, " are left");
  }
  return size;
}

absl::Status Reader::CheckEnd(uint64_t at) const {
  if (at != end_) return Refuse(end_ - at, " bytes after the last tile");
  return absl::OkStatus();
}

absl::Status Reader::ReadPayload() {
  uint64_t at = PayloadStart();
  for (size_t i = 0; i < tiles.size(); ++i) {
    EncodedTile& tile = tiles[i];
    ASSIGN_OR_RETURN(const uint64_t size, SizeOf(i, at));
    const uint64_t padded = AlignUp(size, kTileAlignment);
    if (!IsZero(data_ + at + size, padded - size)) {
      return RefuseTile(tile, "is followed by padding that is not zero");
    }
    tile.bytes = absl::MakeConstSpan(data_ + at, size);
    RETURN_IF_ERROR(tile.form == TileForm::kDense ? CheckDense(tile)
                                                  : CheckSparse(tile, escapes_[i]));
    at += padded;
  }
  return CheckEnd(at);
}

absl::StatusOr<std::vector<DirectoryTile>> Reader::LocateTiles() const {
  std::vector<DirectoryTile> located;
  located.reserve(tiles.size());
  uint64_t at = PayloadStart();
  for (size_t i = 0; i < tiles.size(); ++i) {
    const EncodedTile& tile = tiles[i];
    ASSIGN_OR_RETURN(const uint64_t size, SizeOf(i, at));
    located.push_back({tile.place,
                       {tile.changed, tile.form, escapes_[i]},
                       tile.elements,
                       tile.element_bytes,
                       static_cast<uint32_t>(at),
                       static_cast<uint32_t>(size)});
    at += AlignUp(size, kTileAlignment);
  }
  RETURN_IF_ERROR(CheckEnd(at));
  return located;
}

absl::Status Reader::CheckForm(const EncodedTile& tile, const TileShape& shape) const {
  const TileForm smallest = ChooseForm(shape);
  if (tile.form == smallest) return absl::OkStatus();
  return RefuseTile(tile, "is in form ", static_cast<int>(tile.form), ", but form ",
                    static_cast<int>(smallest), " is smaller");
}

absl::Status Reader::CheckDense(const EncodedTile& tile) const {
  const uint32_t found = CountNonZero(tile.bytes.data(), tile.elements, tile.element_bytes);
  if (found != tile.changed) {
    return RefuseTile(tile, "has ", found, " changes, not ", tile.changed);
  }
  // A bitmap is the smallest of the other forms wherever a dense tile can be, so no block needs
  // counting.
  return CheckForm(tile, {tile.elements, tile.element_bytes, tile.changed, 0});
}

absl::Status Reader::CheckSparse(const EncodedTile& tile, uint32_t escapes) {
  TileShape shape{tile.elements, tile.element_bytes, tile.changed, escapes};
  const uint8_t* const values = tile.bytes.data();
  const uint32_t values_end = tile.changed * tile.element_bytes;
  if (CountNonZero(values, tile.changed, tile.element_bytes) != tile.changed) {
    return RefuseTile(tile, "has a change without a changed bit");
  }
  if (!IsZero(values + values_end, PositionsStart(shape) - values_end)) {
    return RefuseTile(tile, "has padding that is not zero");
  }
  const uint8_t* const positions = values + PositionsStart(shape);
  offsets_.resize(std::max<size_t>(offsets_.size(), tile.changed));
  const auto offsets = absl::MakeSpan(offsets_.data(), tile.changed);
  BlockCounts counts;
  if (tile.form == TileForm::kBlocks) {
    if (!DecodeCounts(positions, shape, &counts)) {
      return RefuseTile(tile, "has blocks whose counts do not add up");
    }
    DecodeBlocks(positions + shape.count_bytes() + escapes, counts, shape.blocks(), offsets);
  } else if (tile.form == TileForm::kOffsets) {
    std::memcpy(offsets.data(), positions, offsets.size() * sizeof(uint16_t));
  } else if (!DecodeBitmap(positions, shape, offsets.data())) {
    return RefuseTile(tile, "has a bitmap without exactly ", tile.changed, " bits");
  }
  if (offsets.back() >= tile.elements || !IsAscending(offsets)) {
    return RefuseTile(tile, "has offsets that do not ascend, or that reach past its ",
                      tile.elements, " elements");
  }
  // As in the builder: blocks are counted only where their escapes decide.
  if (tile.form != TileForm::kBlocks && ChooseForm(shape) == TileForm::kBlocks) {
    CountBlocks(offsets, &counts);
    shape.escapes = CountEscapes(counts, shape.blocks());
  }
  return CheckForm(tile, shape);
}

}  // namespace

absl::StatusOr<ChunkView> ChunkView::Parse(std::string_view bytes, const Manifest& manifest) {
  if (bytes.size() < kChunkHeaderBytes) {
    return absl::DataLossError(absl::StrCat(
        "chunk of ", bytes.size(), " bytes: cut short within its header of ", kChunkHeaderBytes));
  }
  if (bytes.size() > kChunkMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk of ", bytes.size(), " bytes; the limit is ", kChunkMaxBytes));
  }
  if (ChunkChecksum(bytes) != LoadLe<uint64_t>(bytes.data() + kChecksumAt)) {
    return absl::DataLossError(
        absl::StrCat("chunk of ", bytes.size(), " bytes: its checksum does not match"));
  }
  Reader reader(bytes, bytes.size(), manifest);
  RETURN_IF_ERROR(reader.ReadHeader());
  RETURN_IF_ERROR(reader.ReadDirectory());
  RETURN_IF_ERROR(reader.ReadPayload());
  ChunkView view;
  view.header_ = reader.header;
  view.tiles_ = std::move(reader.tiles);
  view.changed_ = reader.changed;
  return view;
}

absl::StatusOr<ChunkDirectory> ReadChunkDirectory(std::string_view head, uint64_t size_bytes,
                                                  const Manifest& manifest) {
  Reader reader(head, size_bytes, manifest);
  RETURN_IF_ERROR(reader.ReadHeader());
  RETURN_IF_ERROR(reader.ReadDirectory());
  ChunkDirectory directory;
  ASSIGN_OR_RETURN(directory.tiles, reader.LocateTiles());
  directory.header = reader.header;
  return directory;
}

}  // namespace wstore
