// The worked example of docs/formats/patch.md, read from there.
#include <cctype>
#include <fstream>

#include "tests/unit/codec/chunk_support.h"
#include "wstore/chunk.h"

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

}  // namespace
}  // namespace wstore
