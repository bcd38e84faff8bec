#include "wstore/chunk.h"

#include <set>

#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "tests/unit/codec/chunk_reference.h"

namespace wstore {
namespace {

using testing::Changes;
using testing::DtypeOfWidth;
using testing::PlacedChanges;
using testing::RandomChanges;
using testing::ReferenceChunk;
using testing::ToColumns;

Manifest MakeManifest(std::vector<TensorSpec> specs) {
  absl::StatusOr<Manifest> manifest = Manifest::Create(std::move(specs));
  REQUIRE_OK(manifest);
  return *std::move(manifest);
}

const ChunkHeader kHeader{TransactionNumber(0x1122334455667788), {7, 0, 9}};

std::string Build(const Manifest& manifest, const std::vector<PlacedChanges>& tiles,
                  const ChunkHeader& header = kHeader) {
  ChunkBuilder builder(manifest);
  for (const PlacedChanges& tile : tiles) {
    const TileChanges columns =
        ToColumns(tile.changes, manifest.tensor(tile.place.tensor).element_bytes);
    builder.AddTile(tile.place, columns.offsets, columns.values.data());
  }
  const uint64_t size_bytes = builder.size_bytes();
  std::string chunk = builder.Finish(header);
  REQUIRE(chunk.size() == size_bytes);
  REQUIRE(builder.empty());
  return chunk;
}

// Whatever can be done with one tile gives the right bytes. Returns its form.
TileForm CheckOneTile(const Manifest& manifest, const Changes& changes) {
  const std::string chunk = Build(manifest, {{{0, 0}, changes}});
  REQUIRE(chunk == ReferenceChunk(manifest, kHeader, {{{0, 0}, changes}}));
  const absl::StatusOr<ChunkView> view = ChunkView::Parse(chunk, manifest);
  REQUIRE_OK(view);
  REQUIRE(view->header() == kHeader);
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
  REQUIRE(copier.Finish(kHeader) == chunk);

  const absl::StatusOr<std::string> unpacked = UnpackChunk(PackChunk(chunk, manifest), manifest);
  REQUIRE_OK(unpacked);
  REQUIRE(*unpacked == chunk);
  return tile.form;
}

TEST_CASE("chunks of every width, length and density equal the reference") {
  std::mt19937_64 random(testing::TestSeed("chunk widths"));
  std::set<TileForm> forms;
  for (const uint32_t width : {1, 2, 4, 8}) {
    for (const uint32_t elements : {1, 31, 32, 33, 255, 256, 257, 4095, 65535, 65536}) {
      const Manifest manifest = MakeManifest({{"t", DtypeOfWidth(width), {elements}}});
      for (const double density : {0.0, 0.003, 0.01, 0.13, 0.5, 0.9, 1.0}) {
        const auto count =
            std::clamp<uint32_t>(static_cast<uint32_t>(elements * density), 1, elements);
        for (const bool clustered : {false, true}) {
          CAPTURE(width, elements, density, clustered);
          forms.insert(
              CheckOneTile(manifest, RandomChanges(elements, width, count, clustered, random)));
        }
      }
    }
  }
  REQUIRE(forms.size() == 4);
}

}  // namespace
}  // namespace wstore
