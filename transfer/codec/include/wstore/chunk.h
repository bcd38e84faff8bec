// The chunk codec: changed elements as bytes, on the wire and as what the patch digest covers.
// docs/formats/patch.md describes every byte.
//
// A chunk holds changes of tiles (see Manifest) of one span, as XOR of old and new bits. Each tile
// is written in whichever of four forms is smallest, so the encoding of given changes is unique:
// two encoders, on any machine or GPU, produce the same bytes, and the digest is over those bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/digest.h"
#include "wstore/manifest.h"
#include "wstore/types.h"

namespace wstore {

// A chunk is closed when its bytes reach this; one tile, of up to 512 KiB, always fits.
inline constexpr uint64_t kChunkTargetBytes = 4 << 20;
// Neither written nor accepted above this.
inline constexpr uint64_t kChunkMaxBytes = 16 << 20;

// How a tile's changed positions are written. Ties in size go to the lower number.
enum class TileForm : uint8_t {
  kBlocks = 0,   // per block of 256 elements a 4-bit count (with an escape), then a byte per offset
  kOffsets = 1,  // a 16-bit offset per change
  kBitmap = 2,   // a bit per element of the tile
  kDense = 3,    // no positions: bits of every element of the tile
};

struct ChunkHeader {
  TransactionNumber transaction;
  ChunkKey key;

  friend bool operator==(const ChunkHeader&, const ChunkHeader&) = default;
};

// The changes of one tile, in a chunk that has been checked. Points into the chunk's bytes.
struct EncodedTile {
  TilePlace place;
  TileForm form = TileForm::kBlocks;
  uint32_t changed = 0;             // changed elements, at least 1
  uint32_t elements = 0;            // of the tile
  uint32_t element_bytes = 1;       // 1, 2, 4 or 8
  absl::Span<const uint8_t> bytes;  // canonical: what the digest covers
};

class ChunkView;

// Writes chunks. Tiles come in ascending order, and those of one chunk belong to one span. A call
// that breaks a rule stated here stops the process: what comes from outside is checked before it
// comes here. Not thread-safe.
class ChunkBuilder {
 public:
  // `manifest` must outlive the builder.
  explicit ChunkBuilder(const Manifest& manifest);

  // Adds the changes of one tile of the manifest: `offsets` ascend within the tile, and there is at
  // least one; `values` holds offsets.size() elements of XOR bits, none of them zero. Both are
  // copied.
  void AddTile(TilePlace place, absl::Span<const uint16_t> offsets, const uint8_t* values);

  // Adds a tile as another chunk of the same manifest encodes it, without decoding it. The bytes
  // are copied.
  void AddTile(const EncodedTile& tile);

  bool empty() const { return tiles_.empty(); }
  // Bytes of the chunk as it stands; close it when this reaches kChunkTargetBytes.
  uint64_t size_bytes() const;

  // The tiles so far, as a chunk with a zero header would show them, for use within the process: no
  // chunk is written, summed or read back for it. Valid until the builder changes.
  ChunkView View() const;

  // The finished chunk of at least one tile and at most kChunkMaxBytes; header.key.span is that of
  // its tiles. Afterwards the builder is as new and keeps its memory.
  std::string Finish(const ChunkHeader& header);
  // The same without the chunk.
  void Clear();

 private:
  struct Tile {
    TilePlace place;
    uint32_t packed = 0;  // as its entry in the chunk has it
  };

  // Registers a tile and returns room for its bytes, all zero.
  uint8_t* Append(TilePlace place, uint32_t packed, uint32_t changed, uint64_t size_bytes);

  const Manifest& manifest_;
  std::vector<Tile> tiles_;
  std::string payload_;
  uint32_t tensors_ = 0;  // distinct tensors in tiles_
  uint64_t changed_ = 0;
};

// A chunk whose every length, order, form and checksum has been checked against the manifest: its
// bytes are exactly what a ChunkBuilder would write for the changes it means. Refers to the bytes
// it was made from, which must outlive it. Immutable, so safe to share between threads.
class ChunkView {
 public:
  // Takes about as long as reading the bytes; neither blocks nor reads past them, whatever they
  // are.
  //   kDataLoss: shorter than a header, or the checksum does not match (damaged, cut short or
  //     lengthened)
  //   kInvalidArgument: over kChunkMaxBytes; or the checksum is right but the content is not: an
  //     unknown version or reserved bit, lengths that do not add up, a tensor or tile that the
  //     manifest lacks or that is out of order or span, offsets that do not ascend or reach past
  //     the tile, a zero XOR value, a form that is not the smallest. The message names chunk and
  //     tile.
  static absl::StatusOr<ChunkView> Parse(std::string_view bytes, const Manifest& manifest);

  const ChunkHeader& header() const { return header_; }
  absl::Span<const EncodedTile> tiles() const { return tiles_; }
  uint64_t changed() const { return changed_; }  // elements

 private:
  friend class ChunkBuilder;

  ChunkHeader header_;
  std::vector<EncodedTile> tiles_;
  uint64_t changed_ = 0;
};

// The functions below are pure and may be called from any thread. An EncodedTile must come from a
// ChunkView, which has checked it.

// A tile's changes, decoded. Buffers are kept between uses.
struct TileChanges {
  std::vector<uint16_t> offsets;  // ascending
  std::vector<uint8_t> values;    // XOR bits, offsets.size() x element_bytes
};

// Replaces what `changes` holds.
void DecodeTile(const EncodedTile& tile, TileChanges* changes);

// XORs a tile's changes into the dense bytes of the tile (elements x element_bytes, any alignment).
// Once goes from the old bits to the new, twice is no change: the caller knows which it is at.
void XorTile(const EncodedTile& tile, uint8_t* dense);

// Compares two dense tiles bit by bit: a NaN equals itself, and -0.0 differs from 0.0. Writes the
// offsets of elements that differ and the XOR of their bits; both buffers have room for `elements`
// (at most kTileElements), and what lies behind the result is overwritten too. The tiles need no
// alignment. Returns the number of differences.
uint32_t DiffTile(const uint8_t* old_tile, const uint8_t* new_tile, uint32_t elements,
                  uint32_t element_bytes, uint16_t* offsets, uint8_t* values);

// The digest of a tile's canonical bytes: a tree of 4 KiB leaves (see TreeDigest). Tiles can be
// hashed in any order, on all cores or on a GPU.
Digest TileDigest(const EncodedTile& tile);

// The form at rest: positions as distances, values split by byte, each column compressed by zstd.
// Less than half of a chunk of scattered changes; a chunk of a few may grow. `chunk` is one that
// ChunkView::Parse accepts. The bytes depend on the version of zstd and are under no digest. Keeps
// a compression context for each thread.
std::string PackChunk(std::string_view chunk, const Manifest& manifest);

// Gives back exactly the bytes that were packed, which ChunkView::Parse accepts. Allocates a few
// times kChunkMaxBytes at most, whatever the input says.
//   kDataLoss: anything else than what PackChunk wrote for a chunk of this manifest
absl::StatusOr<std::string> UnpackChunk(std::string_view packed, const Manifest& manifest);

}  // namespace wstore
