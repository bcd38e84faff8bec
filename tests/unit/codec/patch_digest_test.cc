#include "wstore/patch_digest.h"
#include "tests/support/random.h"
#include "tests/unit/codec/chunk_support.h"
#include "wstore/chunk.h"

namespace wstore {
namespace {

using namespace testing;  // NOLINT

std::string Le(uint64_t value, uint32_t bytes) {
  std::string out;
  PutLe(value, bytes, &out);
  return out;
}

Digest DigestOfChunks(const Manifest& manifest, const std::vector<std::string>& chunks) {
  PatchDigester digester(manifest);
  for (const std::string& chunk : chunks) {
    const absl::StatusOr<ChunkView> view = ChunkView::Parse(chunk, manifest);
    REQUIRE_OK(view);
    for (const EncodedTile& tile : view->tiles()) {
      digester.Add(tile.place, tile.form, tile.changed, TileDigest(tile));
    }
  }
  return digester.Finish();
}

// The definition, from the changes and by hand.
Digest ReferenceDigest(const Manifest& manifest, const std::vector<PlacedChanges>& tiles) {
  std::map<TensorIndex, std::string> records;
  std::map<TensorIndex, uint64_t> changed;
  for (const PlacedChanges& tile : tiles) {
    const ReferenceTile encoded =
        ReferenceEncodeTile(manifest.TileElements(tile.place),
                            manifest.tensor(tile.place.tensor).element_bytes, tile.changes);
    std::string leaves;
    for (size_t at = 0; at < encoded.bytes.size(); at += 4096) {
      leaves += ToBytes(Sha256().Update(encoded.bytes.substr(at, 4096) + '\0').Finish());
    }
    const std::string root = leaves + Le(encoded.bytes.size(), 8) + '\1';
    records[tile.place.tensor] += Le(tile.place.tile, 4) + Le(tile.changes.size() - 1, 2) +
                                  Le(static_cast<uint8_t>(encoded.form), 2) +
                                  ToBytes(Sha256().Update(root).Finish());
    changed[tile.place.tensor] += tile.changes.size();
  }
  std::string set = std::string("wstore patch set 1") + '\0';
  for (const auto& [tensor, record] : records) {
    const TensorSpec& spec = manifest.tensor(tensor).spec;
    set += Le(spec.name.size(), 4) + spec.name + Le(static_cast<uint8_t>(spec.dtype), 1) +
           Le(spec.shape.size(), 4);
    for (const uint64_t dimension : spec.shape) set += Le(dimension, 8);
    set += Le(changed[tensor], 8) + ToBytes(Sha256().Update(record).Finish());
  }
  return Sha256().Update(set + Le(records.size(), 8)).Finish();
}

TEST_CASE("the patch digest is that of its definition, however the chunks are cut") {
  std::mt19937_64 random(TestSeed("patch digest"));
  const Manifest manifest = ManifestOf({{"a", Dtype::kBF16, {2, 3 * kTileElements}},
                                        {"b", Dtype::kF32, {}},
                                        {"c", Dtype::kU8, {0, 5}},
                                        {"d", Dtype::kI64, {77, 10}}});
  std::vector<PlacedChanges> tiles;
  for (uint64_t tile = 0; tile < manifest.tiles(); ++tile) {
    const TilePlace place = manifest.PlaceOf(tile);
    const uint32_t elements = manifest.TileElements(place);
    const auto count = static_cast<uint32_t>(random() % std::min(elements, 4000u) + 1);
    tiles.push_back({place, RandomChanges(elements, manifest.tensor(place.tensor).element_bytes,
                                          count, false, random)});
  }
  const Digest expected = ReferenceDigest(manifest, tiles);
  REQUIRE(DigestOfChunks(manifest, {BuildChunk(manifest, tiles)}) == expected);
  for (int round = 0; round < 5; ++round) {
    std::vector<std::string> chunks;
    for (size_t begin = 0; begin < tiles.size();) {
      const size_t end = std::min<size_t>(tiles.size(), begin + 1 + random() % 4);
      const ChunkHeader header{TransactionNumber(random()),
                               {.contributor = static_cast<uint16_t>(random()),
                                .span = 0,
                                .part = static_cast<uint16_t>(round)}};
      chunks.push_back(BuildChunk(manifest, {tiles.begin() + begin, tiles.begin() + end}, header));
      begin = end;
    }
    REQUIRE(DigestOfChunks(manifest, chunks) == expected);
  }
}

TEST_CASE("the patch digest is the same in stretches, wherever they end") {
  std::mt19937_64 random(TestSeed("digest in stretches"));
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 40; ++i) {
    specs.push_back({"small." + std::to_string(100 + i), Dtype::kU8, {1 + random() % 100}});
  }
  specs.push_back({"large", Dtype::kU8, {9000 * uint64_t{kTileElements}}});
  specs.push_back({"next", Dtype::kBF16, {50 * uint64_t{kTileElements}}});
  const Manifest manifest = ManifestOf(specs);
  std::vector<DigestedTile> tiles;
  std::vector<Digest> digests(manifest.tiles());
  PatchDigester whole(manifest);
  for (uint64_t tile = 0; tile < manifest.tiles(); ++tile) {
    for (uint8_t& byte : digests[tile].bytes) byte = static_cast<uint8_t>(random());
    if (random() % 4 == 0) continue;
    tiles.push_back({manifest.PlaceOf(tile), static_cast<TileForm>(random() % 4),
                     static_cast<uint32_t>(1 + random() % 100), &digests[tile]});
    whole.Add(tiles.back().place, tiles.back().form, tiles.back().changed, digests[tile]);
  }
  const Digest expected = whole.Finish();
  const Digest empty = whole.Finish();
  REQUIRE(DigestTiles(
              manifest, tiles.size(), [&](size_t i) { return tiles[i]; }, 4) == expected);
  PatchDigester digester(manifest);
  REQUIRE(digester.Finish() == empty);
  for (const size_t longest : {size_t{3}, size_t{500}, tiles.size()}) {
    for (size_t begin = 0; begin < tiles.size();) {
      const size_t count = std::min(tiles.size() - begin, random() % (longest + 1));
      digester.Add(
          count, [&](size_t i) { return tiles[begin + i]; }, 4);
      begin += count;
    }
    REQUIRE(digester.Finish() == expected);
  }
}

TEST_CASE("an empty patch set has a digest of its own") {
  const Manifest manifest = ManifestOf({{"a", Dtype::kU8, {3}}});
  PatchDigester digester(manifest);
  const Digest empty = digester.Finish();
  REQUIRE(empty == ReferenceDigest(manifest, {}));
  REQUIRE(digester.Finish() == empty);  // as new after Finish
  REQUIRE(empty != DigestOfChunks(manifest, {BuildChunk(manifest, {{{0, 0}, {{1, 1}}}})}));
}

TEST_CASE("whatever differs in the changes differs in the digest") {
  const std::vector<TensorSpec> specs{{"a", Dtype::kBF16, {3000}}, {"b", Dtype::kBF16, {3000}}};
  const Manifest manifest = ManifestOf(specs);
  const auto digest_of = [](const Manifest& of, const std::vector<PlacedChanges>& tiles) {
    return DigestOfChunks(of, {BuildChunk(of, tiles)});
  };
  const std::vector<PlacedChanges> tiles{{{0, 0}, {{1, 1}, {2, 2}}}};
  std::vector<Digest> digests{
      digest_of(manifest, tiles),
      digest_of(manifest, {{{1, 0}, {{1, 1}, {2, 2}}}}),
      digest_of(manifest, {{{0, 0}, {{1, 1}, {2, 3}}}}),
      digest_of(manifest, {{{0, 0}, {{1, 1}, {3, 2}}}}),
      digest_of(manifest, {{{0, 0}, {{1, 1}}}}),
      digest_of(manifest, {{{0, 0}, {{1, 1}}}, {{1, 0}, {{2, 2}}}}),
      digest_of(ManifestOf({{"a", Dtype::kF16, {3000}}}), tiles),
      digest_of(ManifestOf({{"a", Dtype::kBF16, {30, 100}}}), tiles),
      digest_of(ManifestOf({{"a", Dtype::kBF16, {3001}}}), tiles),
      digest_of(ManifestOf({{"aa", Dtype::kBF16, {3000}}}), tiles),
  };
  std::sort(digests.begin(), digests.end());
  REQUIRE(std::adjacent_find(digests.begin(), digests.end()) == digests.end());
  // What the other tensors are called does not matter.
  REQUIRE(digest_of(ManifestOf({{"a", Dtype::kBF16, {3000}}}), tiles) ==
          digest_of(manifest, tiles));
}

TEST_CASE("the digest covers the form, which the bytes alone may not tell") {
  const Manifest manifest = ManifestOf({{"a", Dtype::kU8, {3000}}});
  const auto digest_of = [&](TileForm form, uint32_t changed) {
    PatchDigester digester(manifest);
    digester.Add({0, 0}, form, changed, Digest{});
    return digester.Finish();
  };
  REQUIRE(digest_of(TileForm::kBlocks, 9) != digest_of(TileForm::kOffsets, 9));
  REQUIRE(digest_of(TileForm::kBlocks, 9) != digest_of(TileForm::kBlocks, 8));
}

}  // namespace
}  // namespace wstore
