// Chunks that are damaged, or made by somebody who wants to do damage.
#include "tests/support/random.h"
#include "tests/unit/codec/chunk_support.h"
#include "wstore/chunk.h"

namespace wstore {
namespace {

using namespace testing;  // NOLINT

constexpr size_t kTensorEntries = 64;
constexpr size_t kTileEntries = kTensorEntries + 4 * 24;
constexpr size_t kPayload = kTileEntries + 5 * 8;

TEST_CASE("the sample has what its name says") {
  const Sample sample;
  REQUIRE(sample.chunk == ReferenceChunk(sample.manifest, kTestHeader, sample.tiles));
  const absl::StatusOr<ChunkView> view = ChunkView::Parse(sample.chunk, sample.manifest);
  REQUIRE_OK(view);
  REQUIRE(view->tiles().size() == 5);
  REQUIRE(view->tiles()[0].form == TileForm::kBlocks);
  REQUIRE(view->tiles()[1].form == TileForm::kDense);
  REQUIRE(view->tiles()[2].form == TileForm::kBitmap);
  REQUIRE(view->tiles()[3].form == TileForm::kOffsets);
  REQUIRE(view->tiles()[0].bytes.data() ==
          reinterpret_cast<const uint8_t*>(sample.chunk.data()) + kPayload);
}

TEST_CASE("a flipped bit, a cut or extra bytes are data loss") {
  const Sample sample;
  for (size_t at = 0; at < sample.chunk.size(); ++at) {
    CAPTURE(at);
    for (const int bit : {0, 3, 7}) {
      std::string flipped = sample.chunk;
      flipped[at] = static_cast<char>(flipped[at] ^ 1 << bit);
      REQUIRE_ERROR(ChunkView::Parse(flipped, sample.manifest), absl::StatusCode::kDataLoss,
                    "checksum");
    }
    REQUIRE_ERROR(ChunkView::Parse(sample.chunk.substr(0, at), sample.manifest),
                  absl::StatusCode::kDataLoss, at < 64 ? "cut short" : "checksum");
  }
  REQUIRE_ERROR(ChunkView::Parse(sample.chunk + '\0', sample.manifest), absl::StatusCode::kDataLoss,
                "checksum");
  REQUIRE_ERROR(ChunkView::Parse(sample.chunk + sample.chunk, sample.manifest),
                absl::StatusCode::kDataLoss, "checksum");
}

// A chunk with a valid checksum is refused, or means exactly what its bytes say: then its changes,
// encoded once more, are these bytes. The copy on the heap lets AddressSanitizer see its ends.
bool IsRefusedOrExact(const Manifest& manifest, std::string chunk) {
  if (chunk.size() >= 64) Seal(&chunk);
  const std::vector<char> bytes(chunk.begin(), chunk.end());
  const absl::StatusOr<ChunkView> view =
      ChunkView::Parse(std::string_view(bytes.data(), bytes.size()), manifest);
  return !view.ok() || Rebuild(manifest, *view) == chunk;
}

TEST_CASE("no byte under a valid checksum is misread") {
  const Sample sample;
  for (size_t at = 0; at < sample.chunk.size(); ++at) {
    CAPTURE(at);
    for (const int byte : {0x00, 0x01, 0x0f, 0x10, 0x7f, 0x80, 0xf1, 0xff}) {
      std::string changed = sample.chunk;
      changed[at] = static_cast<char>(byte);
      REQUIRE(IsRefusedOrExact(sample.manifest, changed));
    }
    REQUIRE(IsRefusedOrExact(sample.manifest, sample.chunk.substr(0, at)));
    std::string longer = sample.chunk;
    longer.insert(at, 8, '\0');
    REQUIRE(IsRefusedOrExact(sample.manifest, longer));
  }
}

TEST_CASE("no handful of bytes under a valid checksum is misread") {
  std::mt19937_64 random(TestSeed("damaged chunks"));
  const Sample sample;
  for (int round = 0; round < 3000; ++round) {
    std::string changed = sample.chunk;
    for (uint64_t i = random() % 4 + 1; i > 0; --i) {
      changed[24 + random() % (changed.size() - 24)] =
          static_cast<char>(random() % 2 == 0 ? random() : random() % 4);
    }
    REQUIRE(IsRefusedOrExact(sample.manifest, changed));
  }
}

// Replaces bytes, seals, and expects a refusal that says this.
void RequireRefused(const Sample& sample, size_t at, const std::string& bytes,
                    const std::string& text) {
  std::string changed = sample.chunk;
  REQUIRE(changed.substr(at, bytes.size()) != bytes);
  changed.replace(at, bytes.size(), bytes);
  Seal(&changed);
  REQUIRE_ERROR(ChunkView::Parse(changed, sample.manifest), absl::StatusCode::kInvalidArgument,
                text);
}

std::string Le(uint64_t value, uint32_t bytes) {
  std::string out;
  PutLe(value, bytes, &out);
  return out;
}

TEST_CASE("a header that is wrong under a valid checksum is refused with the reason") {
  const Sample sample;
  RequireRefused(sample, 0, "WSPK", "does not begin with 'WSCK'");
  RequireRefused(sample, 4, Le(2, 2), "codec version 2, but this program reads version 1");
  RequireRefused(sample, 6, Le(1, 2), "reserved field");
  RequireRefused(sample, 48, Le(1, 8), "reserved field");
  RequireRefused(sample, 16, Le(1, 4), "the base has 1");
  RequireRefused(sample, 24, Le(0, 4), "0 tensors for 5 tiles");
  RequireRefused(sample, 24, Le(6, 4), "6 tensors for 5 tiles");
  RequireRefused(sample, 28, Le(0, 4), "0 tiles; a chunk has 1 to 512");
  RequireRefused(sample, 28, Le(0xffffffff, 4), "4294967295 tiles; a chunk has 1 to 512");
  RequireRefused(sample, 32, Le(1, 8), "changes together, not 1");
  RequireRefused(sample, 40, Le(~uint64_t{0}, 8), "the header asks for");
  REQUIRE_ERROR(ChunkView::Parse(std::string(kChunkMaxBytes + 1, 0), sample.manifest),
                absl::StatusCode::kInvalidArgument, "the limit is 16777216");
}

TEST_CASE("a directory that is wrong under a valid checksum is refused with the reason") {
  const Sample sample;
  RequireRefused(sample, kTensorEntries, Le(5, 4), "tensor 5 does not exist; the base has 5");
  RequireRefused(sample, kTensorEntries + 24, Le(0, 4), "tensor 0 comes after tensor 0");
  RequireRefused(sample, kTensorEntries + 4, Le(0, 4), "claims 0 tiles");
  RequireRefused(sample, kTensorEntries + 4, Le(6, 4), "claims 6 tiles of 5");
  RequireRefused(sample, kTensorEntries + 4, Le(2, 4), "tile 0 of tensor 'blocks' comes after");
  RequireRefused(sample, kTensorEntries + 3 * 24 + 4, Le(1, 4), "4 tiles together, not 5");
  RequireRefused(sample, kTensorEntries + 8, Le(601, 8),
                 "said to have 601 elements of 2 bytes, but the base has 600 of 2");
  RequireRefused(sample, kTensorEntries + 16, Le(4, 1), "600 elements of 4 bytes");
  RequireRefused(sample, kTensorEntries + 23, Le(1, 1), "reserved byte of tensor 'blocks'");
  RequireRefused(sample, kTileEntries, Le(1, 4), "does not exist; the tensor has 1");
  RequireRefused(sample, kTileEntries + 3 * 8, Le(1, 4), "comes after tile 1");
  RequireRefused(sample, kTileEntries + 7, Le(0x80, 1), "reserved bit");
  RequireRefused(sample, kTileEntries + 4, Le(600, 2), "601 changes of 600 elements");
  RequireRefused(sample, kTileEntries + 8 + 6, Le(7, 1), "escaped blocks in a form without");
}

TEST_CASE("a tile that is wrong under a valid checksum is refused with the reason") {
  const Sample sample;
  // 'blocks' has 21 values of 2 bytes, 2 bytes of padding, 2 bytes of counts, an escape, 21
  // offsets.
  const size_t counts = kPayload + 44;
  RequireRefused(sample, kPayload, Le(0, 2), "without a changed bit");
  RequireRefused(sample, kPayload + 42, Le(1, 1), "padding that is not zero");
  RequireRefused(sample, counts, Le(0x1f, 1), "counts do not add up");
  RequireRefused(sample, counts, Le(0xff, 1), "counts do not add up");
  RequireRefused(sample, counts + 1, Le(0x11, 1), "counts do not add up");
  RequireRefused(sample, counts + 2, Le(6, 1), "counts do not add up");
  RequireRefused(sample, counts + 3, Le(3, 1), "do not ascend");
  RequireRefused(sample, counts + 23, Le(100, 1), "reach past its 600 elements");
  // After its 68 bytes come 4 of padding; then 'dense'.
  RequireRefused(sample, kPayload + 71, Le(1, 1), "followed by padding that is not zero");
  const size_t dense = kPayload + 72;
  RequireRefused(sample, dense + 4, Le(0, 4), "has 2 changes, not 3");
  // 'map': 40 values, 13 bytes of bits, the last of which has 4 unused.
  const size_t map = dense + 16;
  RequireRefused(sample, map + 40, Le(0xab, 1), "without exactly 40 bits");
  RequireRefused(sample, map + 40, Le(0x2a, 1), "without exactly 40 bits");
  const std::string past_end = '\x2a' + std::string(9, '\xaa') + std::string("\0\0\x10", 3);
  RequireRefused(sample, map + 40, past_end, "reach past its 100 elements");
  const size_t offsets = map + 56;
  RequireRefused(sample, offsets + 8, Le(32768, 2), "do not ascend");
}

TEST_CASE("a tile in a form that is not the smallest is refused") {
  const Manifest manifest = ManifestOf({{"t", Dtype::kU8, {300}}});
  std::string chunk = BuildChunk(manifest, {{{0, 0}, {{299, 1}}}});
  // Blocks and offsets are of equal size here; the lower number is the right one.
  chunk.replace(64 + 24 + 4, 4, Le(1 << 16, 4));
  chunk.replace(64 + 24 + 8 + 4, 2, Le(299, 2));
  Seal(&chunk);
  REQUIRE_ERROR(ChunkView::Parse(chunk, manifest), absl::StatusCode::kInvalidArgument,
                "is in form 1, but form 0 is smaller");
}

TEST_CASE("a chunk means nothing under another manifest") {
  const Sample sample;
  REQUIRE_ERROR(ChunkView::Parse(sample.chunk, ManifestOf({})), absl::StatusCode::kInvalidArgument,
                "the base has 0");
  REQUIRE_ERROR(ChunkView::Parse(sample.chunk, ManifestOf({{"blocks", Dtype::kF32, {600}}})),
                absl::StatusCode::kInvalidArgument, "the base has 600 of 4");
}

}  // namespace
}  // namespace wstore
