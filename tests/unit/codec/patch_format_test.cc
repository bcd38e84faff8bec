// The worked example of docs/formats/patch.md, read from there.
#include <cctype>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "tests/support/random.h"
#include "tests/unit/codec/chunk_support.h"
#include "wstore/chunk.h"
#include "wstore/patch_digest.h"

namespace wstore {
namespace {

using namespace testing;  // NOLINT

struct Example {
  std::string chunk;
  std::string packed;
  std::map<std::string, std::string> digests;
};

// A line of a dump: four spaces, the address, then two spaces and up to eight bytes.
bool IsDump(const std::string& line) {
  if (line.size() < 12 || line.compare(0, 4, "    ") != 0 || line.compare(8, 2, "  ") != 0) {
    return false;
  }
  return std::all_of(line.begin() + 4, line.begin() + 8, [](char c) { return std::isxdigit(c); });
}

Example ReadExample() {
  std::ifstream file(std::string(WSTORE_TEST_DATA_DIR) + "/../../docs/formats/patch.md");
  REQUIRE(file.good());
  Example example;
  std::string* dump = nullptr;
  for (std::string line; std::getline(file, line);) {
    if (!IsDump(line)) {
      const size_t gap = line.rfind("  ");
      if (line.size() > 68 && line.size() - gap - 2 == 64) {
        example.digests[line.substr(4, line.find("  ", 4) - 4)] = line.substr(gap + 2);
      }
      continue;
    }
    const size_t address = std::stoul(line.substr(4, 4), nullptr, 16);
    if (address == 0) dump = example.chunk.empty() ? &example.chunk : &example.packed;
    REQUIRE(dump != nullptr);
    REQUIRE(dump->size() == address);
    for (size_t at = 10; at < 10 + 8 * 3 && at + 1 < line.size() && line[at] != ' '; at += 3) {
      dump->push_back(static_cast<char>(std::stoul(line.substr(at, 2), nullptr, 16)));
    }
  }
  return example;
}

TEST_CASE("the worked example of the format document is right") {
  const Example example = ReadExample();
  const Manifest manifest =
      ManifestOf({{"bias", Dtype::kF32, {2}}, {"weight", Dtype::kBF16, {3, 100}}});
  const ChunkHeader header{TransactionNumber(42), {}};
  const std::vector<PlacedChanges> tiles{{{0, 0}, {{0, 1}, {1, 0x80000000}}},
                                         {{1, 0}, {{3, 1}, {7, 3}, {258, 0x8000}}}};
  const std::string chunk = BuildChunk(manifest, tiles, header);
  REQUIRE(chunk == example.chunk);
  REQUIRE(chunk == ReferenceChunk(manifest, header, tiles));

  // Another zstd may pack it otherwise, but what one has packed, every one unpacks.
  REQUIRE(example.packed.size() > 64);
  const absl::StatusOr<std::string> unpacked = UnpackChunk(example.packed, manifest);
  REQUIRE_OK(unpacked);
  REQUIRE(*unpacked == chunk);

  const absl::StatusOr<ChunkView> view = ChunkView::Parse(example.chunk, manifest);
  REQUIRE_OK(view);
  REQUIRE(view->tiles().size() == 2);
  REQUIRE(ToHex(TileDigest(view->tiles()[0])) == example.digests.at("bias, tile 0"));
  REQUIRE(ToHex(TileDigest(view->tiles()[1])) == example.digests.at("weight, tile 0"));
  PatchDigester digester(manifest);
  for (const EncodedTile& tile : view->tiles()) {
    digester.Add(tile.place, tile.form, tile.changed, TileDigest(tile));
  }
  REQUIRE(ToHex(digester.Finish()) == example.digests.at("patch set"));
}

// One thread and several: with so many tiles that several are used, and none.
TEST_CASE("the digest of tiles on several threads is that of one after the other") {
  std::mt19937_64 random(TestSeed("tile digests"));
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 40; ++i) {
    specs.push_back({"tensor " + std::to_string(i), Dtype::kBF16, {random() % 500 * 65536 + 1}});
  }
  const Manifest manifest = ManifestOf(specs);
  for (const double density : {0.0, 0.001, 1.0}) {
    std::vector<Digest> digests;
    std::vector<DigestedTile> tiles;
    for (TensorIndex tensor = 0; tensor < manifest.size(); ++tensor) {
      for (uint32_t tile = 0; tile < manifest.tensor(tensor).tiles; ++tile) {
        if (std::uniform_real_distribution<double>()(random) >= density) continue;
        Digest& digest = digests.emplace_back();
        for (uint8_t& byte : digest.bytes) byte = static_cast<uint8_t>(random());
        const auto form = random() % 2 == 0 ? TileForm::kBlocks : TileForm::kDense;
        tiles.push_back(
            {{tensor, tile}, form, static_cast<uint32_t>(1 + random() % 65536), nullptr});
      }
    }
    PatchDigester digester(manifest);
    for (size_t i = 0; i < tiles.size(); ++i) {
      tiles[i].digest = &digests[i];
      digester.Add(tiles[i].place, tiles[i].form, tiles[i].changed, digests[i]);
    }
    const Digest expected = digester.Finish();
    for (const int threads : {1, 4}) {
      INFO(tiles.size() << " tiles, " << threads << " threads");
      REQUIRE(DigestTiles(
                  manifest, tiles.size(), [&](size_t i) { return tiles[i]; }, threads) == expected);
    }
  }
}

}  // namespace
}  // namespace wstore
