#include "transfer/replica/content_digester.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "wstore/patch_digest.h"

namespace wstore::testing {
namespace {

constexpr uint64_t kSpans = 150;
constexpr uint32_t kQuiet = 40;  // a span of which nothing comes
constexpr uint64_t kMostWaiting = 20'000;

// The tiles of one large tensor and a few small ones, in chunks of one span each, some spans in
// several, by key.
struct Content {
  explicit Content(std::mt19937_64& random)
      : manifest(*Manifest::Create({{"large", Dtype::kU8, {(kSpans - 1) * 512 * kTileElements}},
                                    {"small", Dtype::kU8, {100 * kTileElements}}})) {
    PatchDigester whole(manifest);
    for (uint64_t number = 0; number < manifest.tiles(); ++number) {
      const auto span = static_cast<uint32_t>(number / 512);
      if (span == kQuiet || random() % 8 == 0) continue;
      TileRecord tile{manifest.PlaceOf(number),
                      static_cast<TileForm>(random() % 4),
                      static_cast<uint32_t>(1 + random() % 100),
                      {}};
      for (uint8_t& byte : tile.digest.bytes) byte = static_cast<uint8_t>(random());
      whole.Add(tile.place, tile.form, tile.changed, tile.digest);
      const auto part = static_cast<uint16_t>(number % 512 / (span % 3 == 0 ? 200 : 512));
      chunks[{0, span, part}].tiles.push_back(tile);
    }
    digest = whole.Finish();
    for (const auto& [key, chunk] : chunks) keys.push_back(key);
  }

  Manifest manifest;
  std::map<ChunkKey, StagedChunk> chunks;
  std::vector<ChunkKey> keys;
  Digest digest;
};

// Adds chunks in this order, and hashes what can be after each few of them. The tiles that were
// hashed before the end.
uint64_t TakeIn(Content& content, const std::vector<ChunkKey>& order, size_t stride,
                ContentDigester* digester) {
  uint64_t ahead = 0;
  const auto hash = [&](uint64_t least) {
    const std::vector<const StagedChunk*> taken = digester->Take(least);
    for (const StagedChunk* const chunk : taken) ahead += chunk->tiles.size();
    REQUIRE(digester->Hash(taken, 2));
  };
  for (size_t i = 0; i < order.size(); ++i) {
    digester->Reserve();
    digester->Add(order[i], &content.chunks.at(order[i]));
    if ((i + 1) % stride == 0) hash(1000);
  }
  const uint64_t found = ahead;
  hash(ContentDigester::kAll);
  return found;
}

}  // namespace

TEST_CASE("a contributor's digest is taken as chunks come, in orders that are nearly right") {
  std::mt19937_64 random(TestSeed("content digester"));
  Content content(random);
  for (const size_t window : {size_t{1}, size_t{12}, content.keys.size()}) {
    INFO("windows of " << window);
    std::vector<ChunkKey> order = content.keys;
    for (size_t begin = 0; begin < order.size(); begin += window) {
      const size_t end = std::min(order.size(), begin + window);
      std::shuffle(order.begin() + static_cast<ptrdiff_t>(begin),
                   order.begin() + static_cast<ptrdiff_t>(end), random);
    }
    ContentDigester digester(content.manifest, kMostWaiting);
    const uint64_t ahead = TakeIn(content, order, window < order.size() ? window : 5, &digester);
    // The quiet span holds it up until much waits; then it goes on, and leaves as much.
    if (window < order.size()) REQUIRE(ahead > 35'000);
    if (window < order.size()) REQUIRE(digester.is_sound());
    if (digester.is_sound()) REQUIRE(digester.Finish() == content.digest);
  }
}

TEST_CASE("a contributor's digest is taken as frames are staged that overtake each other") {
  std::mt19937_64 random(TestSeed("content digester, frames"));
  Content content(random);
  constexpr size_t kFrame = 24;
  std::vector<ChunkKey> order;
  for (size_t begin = 0; begin < content.keys.size(); begin += 2 * kFrame) {
    const auto at = [&](size_t i) {
      return content.keys.begin() +
             static_cast<ptrdiff_t>(std::min(content.keys.size(), begin + i));
    };
    order.insert(order.end(), at(kFrame), at(2 * kFrame));
    order.insert(order.end(), at(0), at(kFrame));
  }
  ContentDigester digester(content.manifest, kMostWaiting);
  REQUIRE(TakeIn(content, order, kFrame, &digester) > 30'000);
  REQUIRE(digester.is_sound());
  REQUIRE(digester.Finish() == content.digest);
}

TEST_CASE("a contributor's digest that was begun too soon is given up") {
  std::mt19937_64 random(TestSeed("late chunk"));
  Content content(random);
  std::vector<ChunkKey> order = content.keys;
  // Part 1 of a span, whose part 0 and part 2, and spans behind it, are hashed by then.
  const auto late = std::find(order.begin(), order.end(), ChunkKey{0, 6, 1});
  REQUIRE(late != order.end());
  std::rotate(late, late + 1, order.end());
  ContentDigester digester(content.manifest);
  TakeIn(content, order, 1, &digester);
  REQUIRE_FALSE(digester.is_sound());
  REQUIRE(digester.Take(ContentDigester::kAll).empty());

  // A tile in two chunks is never hashed: whoever wants the digest has to look at all tiles.
  Content twice(random);
  twice.chunks.at({0, 9, 1}).tiles.front() = twice.chunks.at({0, 9, 0}).tiles.back();
  ContentDigester other(twice.manifest);
  TakeIn(twice, twice.keys, 3, &other);
  REQUIRE_FALSE(other.is_sound());
}

}  // namespace wstore::testing
