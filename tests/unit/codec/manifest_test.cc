#include "wstore/manifest.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "tests/unit/codec/weights.h"
#include "wstore/share.h"

namespace wstore {
namespace {

using testing::ManifestOf;
using Names = std::vector<std::string>;

Manifest ManifestOfNames(const Names& names) {
  std::vector<TensorSpec> tensors;
  for (const std::string& name : names) tensors.push_back({name, Dtype::kBF16, {1}});
  return ManifestOf(std::move(tensors));
}

TEST_CASE("a manifest sorts tensors by name and counts elements, tiles and spans") {
  const Manifest manifest = ManifestOf({{"b", Dtype::kF4, {3, 4}},
                                        {"c", Dtype::kBF16, {kTileElements + 1}},
                                        {"B", Dtype::kF64, {2, 0, 3}},
                                        {"a", Dtype::kC64, {}}});
  REQUIRE(manifest.size() == 4);
  REQUIRE(manifest.tensor(0).spec.name == "B");
  REQUIRE(manifest.tensor(1).spec.name == "a");
  REQUIRE(manifest.tensor(2).spec.name == "b");
  REQUIRE(manifest.tensor(3).spec.name == "c");
  REQUIRE(manifest.Find("a") == 1);
  REQUIRE(manifest.Find("A") == std::nullopt);

  REQUIRE(manifest.tensor(0).tiles == 0);
  REQUIRE(manifest.tensor(1).elements == 1);
  REQUIRE(manifest.tensor(1).element_bytes == 8);
  REQUIRE(manifest.tensor(2).elements == 6);  // two F4 in a storage element
  REQUIRE(manifest.tensor(2).first_tile == 1);
  REQUIRE(manifest.tensor(3).tiles == 2);
  REQUIRE(manifest.TileElements({3, 0}) == kTileElements);
  REQUIRE(manifest.TileElements({3, 1}) == 1);
  REQUIRE(manifest.TileBytes({3, 0}) == 2 * kTileElements);

  REQUIRE(manifest.elements() == 1 + 6 + kTileElements + 1);
  REQUIRE(manifest.size_bytes() == 8 + 6 + 2 * (kTileElements + 1));
  REQUIRE(manifest.tiles() == 4);
  REQUIRE(manifest.spans() == 1);
}

TEST_CASE("an empty manifest has no spans") {
  for (const Manifest& manifest : {ManifestOf({}), ManifestOf({{"e", Dtype::kU8, {0}}})}) {
    REQUIRE(manifest.tiles() == 0);
    REQUIRE(manifest.spans() == 0);
  }
}

TEST_CASE("tile numbers and places are inverses, and spans list every tile once") {
  std::mt19937_64 random(testing::TestSeed("tile numbers"));
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 300; ++i) {
    const uint64_t size = random() % 3 == 0 ? 0 : random() % (12 * kTileElements);
    tensors.push_back({absl::StrCat("t", i), Dtype::kI8, {size}});
  }
  const Manifest manifest = ManifestOf(std::move(tensors));
  std::vector<TilePlace> expected;
  for (TensorIndex tensor = 0; tensor < manifest.size(); ++tensor) {
    for (uint32_t tile = 0; tile < manifest.tensor(tensor).tiles; ++tile) {
      expected.push_back({tensor, tile});
    }
  }
  REQUIRE(manifest.tiles() == expected.size());
  REQUIRE(manifest.spans() > 1);
  std::vector<TilePlace> listed;
  for (uint32_t span = 0; span < manifest.spans(); ++span) {
    const std::vector<TilePlace> places = manifest.SpanPlaces(span);
    REQUIRE((places.size() == kSpanTiles || span + 1 == manifest.spans()));
    listed.insert(listed.end(), places.begin(), places.end());
  }
  REQUIRE(listed == expected);
  for (uint64_t tile = 0; tile < manifest.tiles(); ++tile) {
    REQUIRE(manifest.PlaceOf(tile) == expected[tile]);
    REQUIRE(manifest.GlobalTile(expected[tile]) == tile);
  }
}

TEST_CASE("a manifest refuses repeated names, listing them all") {
  const auto manifest = Manifest::Create({{"x", Dtype::kU8, {1}},
                                          {"y", Dtype::kU8, {1}},
                                          {"x", Dtype::kU8, {1}},
                                          {"z", Dtype::kU8, {1}},
                                          {"z", Dtype::kF32, {2}},
                                          {"z", Dtype::kU8, {1}}});
  REQUIRE_ERROR(manifest, absl::StatusCode::kInvalidArgument, "duplicate tensor name 'x', 'z'");
}

TEST_CASE("a manifest's error message is bounded and says how many faults it leaves out") {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 1000; ++i) {
    tensors.push_back({absl::StrCat("t", i), Dtype::kU8, {1}});
    tensors.push_back({absl::StrCat("t", i), Dtype::kU8, {1}});
  }
  const auto manifest = Manifest::Create(tensors);
  REQUIRE_ERROR(manifest, absl::StatusCode::kInvalidArgument, "'t0', 't1', ");
  REQUIRE_ERROR(manifest, absl::StatusCode::kInvalidArgument, ", and 900 more");
}

TEST_CASE("a manifest refuses what its numbers cannot count") {
  const uint64_t most_tiles = (uint64_t{1} << 32) - 1;
  const uint64_t most = most_tiles * kTileElements;
  REQUIRE_OK(Manifest::Create({{"x", Dtype::kC64, {most}}}));
  REQUIRE_ERROR(Manifest::Create({{"x", Dtype::kU8, {most + 1}}, {"y", Dtype::kU8, {most + 9}}}),
                absl::StatusCode::kInvalidArgument, "tensor 'y' has");
  REQUIRE_ERROR(Manifest::Create({{"x", Dtype::kU8, {1ull << 62}}}),
                absl::StatusCode::kInvalidArgument, "tensor 'x'");

  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 512; ++i) tensors.push_back({absl::StrCat("t", i), Dtype::kU8, {most}});
  REQUIRE_OK(Manifest::Create(tensors));  // 2^32 - 1 spans
  tensors.push_back({"z", Dtype::kU8, {kTileElements}});
  REQUIRE_ERROR(Manifest::Create(tensors), absl::StatusCode::kInvalidArgument,
                "the tensors take 4294967296 spans; the limit is 2^32 - 1");

  for (int i = 512; i < 9000; ++i) tensors.push_back({absl::StrCat("t", i), Dtype::kC64, {most}});
  REQUIRE_ERROR(Manifest::Create(tensors), absl::StatusCode::kInvalidArgument,
                "add up to more than 2^64 - 1 bytes");
}

TEST_CASE("near matches are the names that differ least, best first") {
  const Manifest manifest = ManifestOfNames(
      {"lm_head.weight", "model.embed.weight", "model.layers.0.mlp.up.weight",
       "model.layers.1.mlp.up.weight", "model.layers.10.mlp.up.weight", "model.norm.weight"});
  REQUIRE(manifest.NearMatches("module.model.norm.weight", 3) == Names{"model.norm.weight"});
  REQUIRE(manifest.NearMatches("model.norm.weight ", 3) == Names{"model.norm.weight"});
  REQUIRE(manifest.NearMatches("norm.weight", 3) == Names{"model.norm.weight"});
  REQUIRE(manifest.NearMatches("lm_head", 3) == Names{"lm_head.weight"});
  REQUIRE(manifest.NearMatches("model.layers.2.mlp.up.weight", 3) ==
          Names{"model.layers.0.mlp.up.weight", "model.layers.1.mlp.up.weight",
                "model.layers.10.mlp.up.weight"});
  REQUIRE(manifest.NearMatches("model.layers.2.mlp.up.weight", 1) ==
          Names{"model.layers.0.mlp.up.weight"});
  REQUIRE(manifest.NearMatches("model.embde.weight", 9) == Names{"model.embed.weight"});
  REQUIRE(manifest.NearMatches("optimizer.state.exp_avg_sq", 3).empty());
  REQUIRE(manifest.NearMatches("", 3).empty());
  REQUIRE(manifest.NearMatches("lm_head", 0).empty());
}

// The whole matrix, with no band and nothing cut off.
size_t PlainEditDistance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1,
                             cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
    }
  }
  return cost[a.size()][b.size()];
}

TEST_CASE("near matches agree with plain edit distances") {
  std::mt19937_64 random(testing::TestSeed("edit distances"));
  const auto random_name = [&random] {
    std::string name(4 + random() % 12, 'a');
    for (char& c : name) c = static_cast<char>('a' + random() % 3);
    return name;
  };
  for (int round = 0; round < 3000; ++round) {
    const std::string asked = random_name();
    const std::string other = random_name();
    const size_t most = std::max<size_t>(2, asked.size() / 4);
    const bool one_ends_other = asked.ends_with(other) || other.ends_with(asked) ||
                                asked.starts_with(other) || other.starts_with(asked);
    const bool expected = one_ends_other || PlainEditDistance(asked, other) <= most;
    INFO(asked << " " << other);
    REQUIRE(ManifestOfNames({other}).NearMatches(asked, 1).empty() == !expected);
  }
}

TEST_CASE("A29 a manifest of 100,000 tensors is made and searched in seconds") {
  Names names;
  for (int i = 0; i < 100000; ++i) {
    const char* const kind = i % 3 == 0 ? "gate" : i % 3 == 1 ? "up" : "down";
    names.push_back(absl::StrCat("model.layers.", i / 999, ".mlp.experts.", i % 999 / 3, ".", kind,
                                 "_proj.weight"));
  }
  const double start = testing::CpuSeconds();
  const Manifest manifest = ManifestOfNames(names);
  REQUIRE(manifest.size() == names.size());
  for (const std::string& name : names) {
    if (manifest.tensor(manifest.Find(name).value()).spec.name != name) FAIL(name);
  }
  REQUIRE(manifest.NearMatches("model.layers.55.mlp.expert.77.down_projection.weight", 1) ==
          Names{"model.layers.55.mlp.experts.77.down_proj.weight"});
  REQUIRE(testing::CpuSeconds() - start < 20);
}

TEST_CASE("a share has of each tensor one range between blocks, and all faults are listed") {
  const Manifest manifest = ManifestOf(
      {{"a", Dtype::kBF16, {1000}}, {"b", Dtype::kBF16, {512}}, {"c", Dtype::kBF16, {0}}});
  using Ranges = std::vector<ElementRange>;
  const auto all = HeldRanges(manifest, {});
  REQUIRE_OK(all);
  REQUIRE(*all == Ranges{{0, 1000}, {0, 512}, {0, 0}});
  const auto some = HeldRanges(manifest, Share{{1, {256, 512}}, {0, {768, 1000}}});
  REQUIRE_OK(some);
  REQUIRE(*some == Ranges{{768, 1000}, {256, 512}, {0, 0}});
  REQUIRE_OK(HeldRanges(manifest, Share{{0, {1000, 1000}}, {1, {0, 0}}, {2, {0, 0}}}));
  const absl::Status refused =
      HeldRanges(manifest, Share{{0, {0, 999}}, {1, {256, 768}}, {1, {0, 256}}, {3, {0, 0}}})
          .status();
  constexpr auto kCode = absl::StatusCode::kInvalidArgument;
  REQUIRE_ERROR(refused, kCode, "elements 0 to 999 of 'a', which has 1000; ");
  REQUIRE_ERROR(refused, kCode, "elements 256 to 768 of 'b', which has 512; 'b' twice; ");
  REQUIRE_ERROR(refused, kCode, "tensor 3, of 3");
  REQUIRE_ERROR(HeldRanges(manifest, Share{{0, {512, 256}}}), kCode, "elements 512 to 256");
}

}  // namespace
}  // namespace wstore
