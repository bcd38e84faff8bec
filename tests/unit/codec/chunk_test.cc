#include "wstore/chunk.h"

#include <set>

#include "tests/support/random.h"
#include "tests/unit/codec/chunk_support.h"

namespace wstore {
namespace {

using namespace testing;  // NOLINT

// Whatever can be done with one tile gives the right bytes. Returns its form.
TileForm CheckOneTile(const Manifest& manifest, const Changes& changes) {
  const std::string chunk = BuildChunk(manifest, {{{0, 0}, changes}});
  REQUIRE(chunk == ReferenceChunk(manifest, kTestHeader, {{{0, 0}, changes}}));
  const absl::StatusOr<ChunkView> view = ChunkView::Parse(chunk, manifest);
  REQUIRE_OK(view);
  REQUIRE(view->header() == kTestHeader);
  REQUIRE(view->changed() == changes.size());
  REQUIRE(view->tiles().size() == 1);
  const EncodedTile& tile = view->tiles()[0];

  const uint32_t width = manifest.tensor(0).element_bytes;
  TileChanges decoded;
  DecodeTile(tile, &decoded);
  const TileChanges columns = ToColumns(changes, width);
  REQUIRE(decoded.offsets == columns.offsets);
  REQUIRE(decoded.values == columns.values);

  std::vector<uint8_t> dense(manifest.tensor(0).size_bytes(), 0xa5);
  std::vector<uint8_t> expected = dense;
  for (const auto& [offset, bits] : changes) {
    for (uint32_t i = 0; i < width; ++i) {
      expected[offset * width + i] ^= static_cast<uint8_t>(bits >> (8 * i));
    }
  }
  XorTile(tile, dense.data());
  REQUIRE(dense == expected);

  ChunkBuilder copier(manifest);
  copier.AddTile(tile);
  REQUIRE(copier.Finish(kTestHeader) == chunk);
  const absl::StatusOr<std::string> unpacked = UnpackChunk(PackChunk(chunk, manifest), manifest);
  REQUIRE_OK(unpacked);
  REQUIRE(*unpacked == chunk);
  return tile.form;
}

TEST_CASE("chunks of every width and density equal the reference, in tiles of any length") {
  std::mt19937_64 random(TestSeed("chunk lengths"));
  for (const uint32_t width : {1, 2, 4, 8}) {
    for (const uint32_t elements : {1, 2, 7, 8, 9, 31, 32, 33, 255, 256, 257, 511, 513, 2100}) {
      const Manifest manifest = ManifestOf({{"t", DtypeOfWidth(width), {elements}}});
      for (const double density : {0.0, 0.003, 0.05, 0.13, 0.5, 0.85, 0.9, 0.96, 1.0}) {
        const auto count = static_cast<uint32_t>(elements * density);
        for (const bool clustered : {false, true}) {
          CAPTURE(width, elements, density, clustered);
          CheckOneTile(manifest, RandomChanges(elements, width, std::max<uint32_t>(1, count),
                                               clustered, random));
        }
      }
    }
  }
}

TEST_CASE("chunks of every width and density equal the reference, in whole tiles") {
  std::mt19937_64 random(TestSeed("chunk tiles"));
  for (const uint32_t width : {1, 2, 4, 8}) {
    const uint32_t elements = width == 2 ? 65535 : 65536;
    const Manifest manifest = ManifestOf({{"t", DtypeOfWidth(width), {elements}}});
    std::set<TileForm> forms;
    for (const uint32_t count : {1u, 127u, 128u, 140u, 650u, 7900u, 30000u, 64000u, elements}) {
      CAPTURE(width, count);
      const bool is_clustered = count == 140 || count == 7900;
      forms.insert(
          CheckOneTile(manifest, RandomChanges(elements, width, count, is_clustered, random)));
    }
    REQUIRE(forms.size() == 4);
  }
}

// `count` changes at the start of every block of a tensor of bytes.
Changes InEachBlock(uint32_t elements, uint32_t count) {
  Changes changes;
  for (uint32_t block = 0; block < elements; block += 256) {
    for (uint32_t i = 0; i < std::min(count, elements - block); ++i) changes[block + i] = 1;
  }
  return changes;
}

TEST_CASE("counts of a block are escaped from 15 up to 256") {
  for (const uint32_t count : {14, 15, 16, 31}) {
    const Manifest manifest = ManifestOf({{"t", Dtype::kU8, {1024}}});
    CAPTURE(count);
    const Changes changes = InEachBlock(1024, count);
    REQUIRE(CheckOneTile(manifest, changes) ==
            (count == 31 ? TileForm::kBitmap : TileForm::kBlocks));
    REQUIRE(ReferenceEncodeTile(1024, 1, changes).escapes == (count == 15 || count == 16 ? 4 : 0));
  }
  // One full block of many: 15 + 241.
  Changes full;
  for (uint32_t i = 512; i < 768; ++i) full[i] = i;
  const Manifest manifest = ManifestOf({{"t", Dtype::kI64, {20000}}});
  REQUIRE(CheckOneTile(manifest, full) == TileForm::kBlocks);
  const std::string chunk = BuildChunk(manifest, {{{0, 0}, full}});
  REQUIRE(static_cast<uint8_t>(chunk[64 + 24 + 8 + 256 * 8 + 40]) == 241);
}

TEST_CASE("of forms of equal size the lower number is chosen") {
  const auto form_of = [](uint32_t elements, const Changes& changes) {
    return CheckOneTile(ManifestOf({{"t", Dtype::kU8, {elements}}}), changes);
  };
  // Blocks: 1 + 1. Offsets: 2.
  REQUIRE(form_of(300, {{299, 1}}) == TileForm::kBlocks);
  // Blocks: 2 + 1. Offsets: 2.
  REQUIRE(form_of(600, {{599, 1}}) == TileForm::kOffsets);
  // Blocks: 1 + 2. Bitmap: 3.
  REQUIRE(form_of(24, {{0, 1}, {23, 1}}) == TileForm::kBlocks);
  REQUIRE(form_of(16, {{0, 1}, {15, 1}}) == TileForm::kBitmap);
  // Offsets: 2 x 5. Bitmap: 10.
  // Blocks would need 11 blocks or more for that; so this tie cannot be, and blocks win it.
  REQUIRE(form_of(80, InEachBlock(80, 5)) == TileForm::kBlocks);
  // Values and padding 4, bitmap 1. Dense: 5.
  REQUIRE(form_of(5, {{0, 1}, {4, 1}}) == TileForm::kBitmap);
  REQUIRE(form_of(4, {{0, 1}, {3, 1}}) == TileForm::kDense);
}

TEST_CASE("a chunk of many tensors equals the reference") {
  std::mt19937_64 random(TestSeed("chunk of many tensors"));
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 60; ++i) {
    const uint64_t elements = i % 20 == 5 ? kTileElements * 3 + 17 : random() % 700;
    specs.push_back({absl::StrCat("t", i), DtypeOfWidth(1u << (random() % 4)), {elements}});
  }
  const Manifest manifest = ManifestOf(std::move(specs));
  std::vector<PlacedChanges> tiles;
  for (uint64_t tile = 0; tile < manifest.tiles(); ++tile) {
    if (random() % 4 == 0) continue;
    const TilePlace place = manifest.PlaceOf(tile);
    const uint32_t elements = manifest.TileElements(place);
    const auto count = static_cast<uint32_t>(1 + random() % std::min(elements, 2000u));
    tiles.push_back({place, RandomChanges(elements, manifest.tensor(place.tensor).element_bytes,
                                          count, random() % 2 == 0, random)});
  }
  ChunkBuilder builder(manifest);
  REQUIRE(builder.empty());
  // Twice: Finish leaves the builder as new.
  for (const uint16_t part : {0, 1}) {
    const ChunkHeader header{TransactionNumber(5), {.contributor = 1, .span = 0, .part = part}};
    for (const PlacedChanges& tile : tiles) AddChanges(manifest, tile, &builder);
    REQUIRE_FALSE(builder.empty());
    const uint64_t size_bytes = builder.size_bytes();
    const std::string chunk = builder.Finish(header);
    REQUIRE(builder.empty());
    REQUIRE(chunk.size() == size_bytes);
    REQUIRE(chunk == ReferenceChunk(manifest, header, tiles));
    const absl::StatusOr<ChunkView> view = ChunkView::Parse(chunk, manifest);
    REQUIRE_OK(view);
    REQUIRE(view->header() == header);
    REQUIRE(view->tiles().size() == tiles.size());
    REQUIRE(Rebuild(manifest, *view) == chunk);
    const absl::StatusOr<std::string> unpacked = UnpackChunk(PackChunk(chunk, manifest), manifest);
    REQUIRE_OK(unpacked);
    REQUIRE(*unpacked == chunk);
  }
}

TEST_CASE("spans after the first have chunks too") {
  const Manifest manifest = ManifestOf({{"a", Dtype::kU8, {kTileElements * (kSpanTiles - 1)}},
                                        {"b", Dtype::kU8, {kTileElements * 3}}});
  const ChunkHeader header{TransactionNumber(1), {.contributor = 0, .span = 1, .part = 0}};
  const std::vector<PlacedChanges> tiles{{{1, 1}, {{5, 1}}}, {{1, 2}, {{6, 1}}}};
  const std::string chunk = BuildChunk(manifest, tiles, header);
  REQUIRE(chunk == ReferenceChunk(manifest, header, tiles));
  REQUIRE_OK(ChunkView::Parse(chunk, manifest));
}

// Bytes of a chunk of random changes of bf16, per change.
double BytesPerChange(double density, uint32_t tile_count, std::mt19937_64& random) {
  const Manifest manifest = ManifestOf({{"t", Dtype::kBF16, {kTileElements * tile_count}}});
  std::geometric_distribution<uint32_t> distance(density);
  ChunkBuilder builder(manifest);
  uint64_t changed = 0;
  for (uint32_t tile = 0; tile < tile_count; ++tile) {
    TileChanges columns;
    for (uint32_t at = distance(random); at < kTileElements; at += 1 + distance(random)) {
      columns.offsets.push_back(static_cast<uint16_t>(at));
    }
    columns.values.assign(columns.offsets.size() * 2, 1);
    if (!columns.offsets.empty()) {
      builder.AddTile({0, tile}, columns.offsets, columns.values.data());
    }
    changed += columns.offsets.size();
  }
  return static_cast<double>(builder.size_bytes()) / static_cast<double>(changed);
}

TEST_CASE("raw bytes per change stay within their bounds") {
  std::mt19937_64 random(TestSeed("raw bytes per change"));
  REQUIRE(BytesPerChange(0.01, 20, random) <= 3.3);
  REQUIRE(BytesPerChange(0.001, 100, random) <= 4.2);
  REQUIRE(BytesPerChange(0.0002, 400, random) <= 6);
  for (const double density : {0.4, 0.9, 0.99, 0.9999}) {
    REQUIRE(BytesPerChange(density, 2, random) * density <= 2 * 1.01);
  }
}

}  // namespace
}  // namespace wstore
