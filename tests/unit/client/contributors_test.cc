#include "store/client/contributors.h"

#include <algorithm>
#include <random>

#include "store/client/difference.h"
#include "tests/support/random.h"

#include "tests/unit/client/served_fixture.h"
#include "wstore/share.h"

namespace wstore::testing {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// The changed elements of a tensor, [first, end) of it, as XOR bits.
struct XorPatch {
  XorPatch(const std::string& name, const NaiveTensor& from, const NaiveTensor& to, uint64_t first,
           uint64_t end) {
    const uint64_t width = WidthOf(from);
    for (uint64_t i = first; i < end; ++i) {
      if (from.bytes.compare(i * width, width, to.bytes, i * width, width) == 0) continue;
      indices.push_back(static_cast<int64_t>(i));
      for (uint64_t at = i * width; at < (i + 1) * width; ++at) {
        values.push_back(static_cast<uint8_t>(from.bytes[at] ^ to.bytes[at]));
      }
    }
    patch.name = name;
    patch.dtype = *ParseDtype(from.dtype);
    patch.shape = from.shape;
    patch.indices = indices;
    patch.values = values;
    patch.form = TensorPatch::Form::kXor;
  }
  std::vector<int64_t> indices;
  std::vector<uint8_t> values;
  TensorPatch patch;
};

}  // namespace

TEST_CASE("a publish is of the contributor that its publisher is") {
  PublishOptions options;
  REQUIRE_OK(client::Contribute({}, &options));
  REQUIRE(options.contributors == 1);
  REQUIRE_ERROR(client::Contribute({1, 2}, &options), kInvalid, "need a transaction id");
  options = PublishOptions();
  options.begin.transaction_id = "step 1";
  REQUIRE_OK(client::Contribute({1, 2}, &options));
  REQUIRE(options.contributor == 1);
  REQUIRE(options.contributors == 2);
  REQUIRE_OK(client::Contribute({1, 2}, &options));
  REQUIRE_ERROR(client::Contribute({0, 2}, &options), kInvalid,
                "as contributor 1 of 2, by a publisher that was started as 0 of 2");
  REQUIRE_ERROR(client::Contribute({1, 3}, &options), kInvalid, "1 of 3");
  options = PublishOptions();
  options.begin.transaction_id = "step 1";
  REQUIRE_ERROR(client::Contribute({2, 2}, &options), kInvalid, "contributor 2 of 2");
  options = PublishOptions();
  options.begin.transaction_id = "step 1";
  REQUIRE_ERROR(client::Contribute({0, 70'000}, &options), kInvalid, "1 to 65535");
}

TEST_CASE("a contributor sees that another one has begun on another version") {
  client::Begun begun;
  begun.parent.version = VersionId(4);
  begun.parent.move = MoveNumber(9);
  HeadInfo parent = begun.parent;
  REQUIRE_OK(client::CheckSameParent(begun, parent));
  parent.move = MoveNumber(8);
  REQUIRE_ERROR(client::CheckSameParent(begun, parent), absl::StatusCode::kFailedPrecondition,
                "begun this publish on v4, move 9; this one's shadow is v4, move 8");
  parent = begun.parent;
  parent.version = VersionId(3);
  REQUIRE_ERROR(client::CheckSameParent(begun, parent), absl::StatusCode::kFailedPrecondition,
                "shadow is v3");
}

TEST_CASE("an id that was committed is answered to a contributor that has nothing else to say") {
  client::Begun begun;
  begun.repeated.emplace();
  begun.repeated->version = VersionId(4);
  HeadInfo parent;
  parent.version = VersionId(4);
  REQUIRE_OK(client::RepeatedPart(begun, "step", parent, 0));
  REQUIRE_ERROR(client::RepeatedPart(begun, "step", parent, 7), absl::StatusCode::kAlreadyExists,
                "'step' was committed as v4, from which these weights differ in 7 elements");
  parent.version = VersionId(3);
  REQUIRE_OK(client::RepeatedPart(begun, "step", parent, 7));
}

TEST_CASE("a contributor reads from the server the tiles of its share, whichever they are") {
  ServedFixture served(7);
  const NaiveTensors base = served.store.version(0);
  const auto manifest = served.client->ReadManifest(Soon());
  REQUIRE_OK(manifest);
  const auto version = served.client->Version("v0", Soon());
  REQUIRE_OK(version);
  std::mt19937_64 random(TestSeed("tiles of a share"));
  for (int round = 0; round < 4; ++round) {
    Share share;
    for (TensorIndex i = 0; i < (*manifest)->size(); ++i) {
      const uint64_t blocks = (*manifest)->tensor(i).elements / kShareElements;
      const uint64_t first = random() % (blocks + 1);
      const uint64_t end = first + random() % (blocks - first + 1);
      share.push_back({i, {first * kShareElements, end * kShareElements}});
    }
    const std::vector<ElementRange> held = *HeldRanges(**manifest, share);
    const auto dense =
        client::MakeServedDense(*served.client->connection(), *manifest, *version, Soon(), held);
    uint64_t elements = 0;
    for (uint32_t span = 0; span < (*manifest)->spans(); ++span) {
      const auto tiles = dense->OpenSpan(span);
      REQUIRE_OK(tiles);
      for (const TilePlace place : (*manifest)->SpanPlaces(span)) {
        if (!held[place.tensor].has_tile(place.tile)) continue;
        const Manifest::Tensor& tensor = (*manifest)->tensor(place.tensor);
        const uint64_t first = place.tile * kTileElements;
        elements += std::min(first + kTileElements, held[place.tensor].end) -
                    std::max(first, held[place.tensor].first);
        std::string bytes((*manifest)->TileBytes(place), '\0');
        REQUIRE_OK((*tiles)->ReadTile(place, reinterpret_cast<uint8_t*>(bytes.data())));
        REQUIRE(base.at(tensor.spec.name)
                    .bytes.compare(first * tensor.element_bytes, bytes.size(), bytes) == 0);
      }
    }
    uint64_t all = 0;
    for (const ElementRange& range : held) all += range.size();
    REQUIRE(elements == all);
  }
}

TEST_CASE("contributors that share tiles, and one without changes, make the version of one") {
  ServedFixture alone;
  const NaiveTensors base = alone.store.version(0);
  const NaiveTensors next = alone.store.Changed(base, 0.05);
  const auto publisher = alone.StartPublisher();
  REQUIRE_OK(ServedFixture::Publish(*publisher, next, "together"));
  const auto expected = alone.client->Version("v1", Soon());
  REQUIRE_OK(expected);

  ServedFixture served;
  REQUIRE((served.store.version(0) == base));
  std::vector<absl::StatusOr<Decision>> decisions(3, absl::UnknownError("not run"));
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      const auto publish = [&]() -> absl::StatusOr<Decision> {
        PublishOptions options;
        options.begin.transaction_id = "together";
        options.contributor = i;
        options.contributors = 3;
        auto upload = served.client->Begin(options, Soon());
        if (!upload.ok()) return upload.status();
        for (const auto& [name, from] : base) {
          const uint64_t elements = from.bytes.size() / WidthOf(from);
          const uint64_t cut = elements / 2 / kShareElements * kShareElements;
          const uint64_t bounds[] = {0, cut, elements, elements};
          const XorPatch part(name, from, next.at(name), bounds[i], bounds[i + 1]);
          if (part.indices.empty()) continue;
          const absl::Status added = (*upload)->Add({part.patch});
          if (!added.ok()) return added;
        }
        return (*upload)->Commit(Soon());
      };
      decisions[i] = publish();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& decision : decisions) {
    REQUIRE_OK(decision);
    REQUIRE(decision->version == VersionId(1));
  }
  const auto version = served.client->Version("v1", Soon());
  REQUIRE_OK(version);
  REQUIRE(ToHex(version->patch_digest) == ToHex(expected->patch_digest));
  REQUIRE(version->fingerprint == expected->fingerprint);
  served.RequireVersions({{0, base}, {1, next}});
}

}  // namespace wstore::testing
