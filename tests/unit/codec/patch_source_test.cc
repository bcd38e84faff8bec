#include "wstore/patch_source.h"

#include <algorithm>
#include <numeric>

#include "common/parallel.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "tests/unit/codec/weights.h"
#include "transfer/codec/composed.h"

namespace wstore {
namespace {

using testing::DigestOf;
using testing::ManifestOf;
using testing::OwnedPatch;
using testing::TilesOf;
using testing::Weights;

// Tensors of all widths: some of several tiles, some empty, many tiny ones, over two spans.
Manifest RandomManifest(std::mt19937_64& random) {
  constexpr Dtype kDtypes[] = {Dtype::kBool, Dtype::kF8E4M3, Dtype::kF4,  Dtype::kBF16,
                               Dtype::kF16,  Dtype::kF32,    Dtype::kC64, Dtype::kI64};
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 520; ++i) {
    const Dtype dtype = kDtypes[random() % std::size(kDtypes)];
    uint64_t elements = random() % 20;
    if (i % 170 == 0) elements = kTileElements * (random() % 3) + random() % 3;
    tensors.push_back({absl::StrCat("t", i), dtype, {elements, 2}});
  }
  return ManifestOf(std::move(tensors));
}

// How many of `elements` change: none, one, few, many or all.
uint64_t RandomCount(std::mt19937_64& random, uint64_t elements) {
  switch (random() % 6) {
    case 0:
      return std::min<uint64_t>(1, elements);
    case 1:
      return elements / 1000;
    case 2:
      return elements / 50;
    case 3:
      return random() % 4 == 0 ? elements : elements / 3;
    default:
      return 0;
  }
}

// Patches of form kNew in random order, some of which change nothing; applied to `weights` as well.
std::vector<OwnedPatch> RandomPatches(const Manifest& manifest, std::mt19937_64& random,
                                      Weights* weights) {
  std::vector<OwnedPatch> patches;
  for (TensorIndex tensor = 0; tensor < manifest.size(); ++tensor) {
    const Manifest::Tensor& info = manifest.tensor(tensor);
    const uint64_t count = RandomCount(random, info.elements);
    if (count == 0 && random() % 2 == 0) continue;
    OwnedPatch patch{.spec = info.spec};
    patch.indices.resize(info.elements);
    std::iota(patch.indices.begin(), patch.indices.end(), 0);
    std::shuffle(patch.indices.begin(), patch.indices.end(), random);
    patch.indices.resize(count);
    for (const int64_t index : patch.indices) {
      uint8_t* const element = weights->tensors[tensor].data() + index * info.element_bytes;
      if (random() % 10 != 0)
        element[random() % info.element_bytes] = static_cast<uint8_t>(random());
      patch.values.insert(patch.values.end(), element, element + info.element_bytes);
    }
    patches.push_back(std::move(patch));
  }
  std::shuffle(patches.begin(), patches.end(), random);
  return patches;
}

// A base and some versions on it: dense, and as a patch set each.
struct Chain {
  explicit Chain(const Manifest& m) : manifest(m) {}

  void Grow(int versions, std::mt19937_64& random) {
    if (dense.empty()) dense.emplace_back(manifest).Randomize(random);
    for (int i = 0; i < versions; ++i) {
      Weights next = dense.back();
      const std::vector<OwnedPatch> patches = RandomPatches(manifest, random, &next);
      auto& set = sets.emplace_back(std::make_unique<PatchSetBuilder>(manifest));
      REQUIRE_OK(set->Add(Views(patches)));
      REQUIRE_OK(set->Resolve(*MakeDense(manifest, dense.back())));
      dense.push_back(std::move(next));
    }
  }
  std::vector<const PatchSource*> Sets(size_t from, size_t to) const {
    std::vector<const PatchSource*> range;
    for (size_t i = from; i < to; ++i) range.push_back(sets[i].get());
    return range;
  }

  const Manifest& manifest;
  std::vector<Weights> dense;  // by version
  std::vector<std::unique_ptr<PatchSetBuilder>> sets;
};

// All tiles of a dense version, read span by span from several threads, each span backwards.
Weights ReadAll(const Manifest& manifest, const DenseSource& source) {
  Weights weights(manifest);
  REQUIRE_OK(ParallelFor(manifest.spans(), 2, [&](uint64_t span) {
    auto tiles = source.OpenSpan(static_cast<uint32_t>(span));
    if (!tiles.ok()) return tiles.status();
    std::vector<TilePlace> places = manifest.SpanPlaces(static_cast<uint32_t>(span));
    std::reverse(places.begin(), places.end());
    for (const TilePlace place : places) {
      const uint64_t first = place.tile * kTileElements;
      uint8_t* const out = weights.tensors[place.tensor].data() +
                           first * manifest.tensor(place.tensor).element_bytes;
      if (absl::Status status = (*tiles)->ReadTile(place, out); !status.ok()) return status;
    }
    return absl::OkStatus();
  }));
  return weights;
}

TEST_CASE("chains of random versions: composed, patched and diffed sets equal the dense versions") {
  std::mt19937_64 random(testing::TestSeed("random chains"));
  for (int round = 0; round < 2; ++round) {
    const Manifest manifest = RandomManifest(random);
    Chain chain(manifest);
    constexpr size_t kVersions = 4;
    chain.Grow(kVersions, random);
    for (size_t from = 0; from <= kVersions; ++from) {
      const size_t to = from + random() % (kVersions + 1 - from);
      const auto dense_from = MakeDense(manifest, chain.dense[from]);
      const auto dense_to = MakeDense(manifest, chain.dense[to]);
      const auto diff = MakeDiff(manifest, *dense_from, *dense_to);
      const auto diff_tiles = TilesOf(manifest, *diff);
      const Digest digest = DigestOf(manifest, *diff);
      for (const uint64_t budget : {uint64_t{0}, uint64_t{3000}, kMergeBudgetBytes}) {
        INFO("from " << from << " to " << to << " budget " << budget);
        const auto composed = MakeComposed(manifest, chain.Sets(from, to), budget);
        REQUIRE(TilesOf(manifest, *composed) == diff_tiles);
        REQUIRE(DigestOf(manifest, *composed) == digest);
        Weights applied = chain.dense[from];
        applied.Apply(*composed);
        REQUIRE(applied == chain.dense[to]);
        applied.Apply(*composed);  // a difference is an exchange: the same bytes go back
        REQUIRE(applied == chain.dense[from]);

        const auto patched = MakePatched(manifest, *dense_from, chain.Sets(from, to), budget);
        REQUIRE(ReadAll(manifest, *patched) == chain.dense[to]);
        const auto undone = MakePatched(manifest, *dense_to, {composed.get()}, budget);
        REQUIRE(ReadAll(manifest, *undone) == chain.dense[from]);
        const auto nothing = MakeDiff(manifest, *patched, *dense_to);
        REQUIRE(TilesOf(manifest, *nothing).empty());
      }
    }
  }
}

TEST_CASE("a set built from elements and a diff of dense versions have the same digest") {
  std::mt19937_64 random(testing::TestSeed("digests"));
  const Manifest manifest = RandomManifest(random);
  Chain chain(manifest);
  chain.Grow(3, random);
  std::vector<Digest> digests;
  for (size_t i = 0; i < 3; ++i) {
    const auto from = MakeDense(manifest, chain.dense[i]);
    const auto to = MakeDense(manifest, chain.dense[i + 1]);
    const auto diff = MakeDiff(manifest, *from, *to);
    digests.push_back(DigestOf(manifest, *diff));
    REQUIRE(DigestOf(manifest, *chain.sets[i]) == digests.back());
    REQUIRE(TilesOf(manifest, *chain.sets[i]) == TilesOf(manifest, *diff));
    const auto back = MakeDiff(manifest, *to, *from);
    REQUIRE(DigestOf(manifest, *back) == digests.back());
  }
  REQUIRE(digests[0] != digests[1]);
  REQUIRE(digests[1] != digests[2]);
}

TEST_CASE("changes that cancel leave nothing behind") {
  std::mt19937_64 random(testing::TestSeed("cancelling"));
  const Manifest manifest = RandomManifest(random);
  Chain chain(manifest);
  chain.Grow(2, random);
  REQUIRE(!TilesOf(manifest, *chain.sets[0]).empty());
  for (const uint64_t budget : {uint64_t{0}, kMergeBudgetBytes}) {
    const PatchSource* const set = chain.sets[0].get();
    const PatchSource* const other = chain.sets[1].get();
    REQUIRE(TilesOf(manifest, *MakeComposed(manifest, {set, set}, budget)).empty());
    REQUIRE(TilesOf(manifest, *MakeComposed(manifest, {set, other, set}, budget)) ==
            TilesOf(manifest, *other));
    REQUIRE(TilesOf(manifest, *MakeComposed(manifest, {}, budget)).empty());
  }
}

// A set of XOR bits: `count` elements of tensor 0, `stride` apart.
std::unique_ptr<PatchSetBuilder> StridedSet(const Manifest& manifest, int64_t first, int64_t count,
                                            int64_t stride) {
  OwnedPatch patch{.spec = manifest.tensor(0).spec, .form = TensorPatch::Form::kXor};
  for (int64_t i = 0; i < count; ++i) patch.indices.push_back(first + i * stride);
  patch.values.assign(count * manifest.tensor(0).element_bytes, 0x5a);
  auto set = std::make_unique<PatchSetBuilder>(manifest);
  REQUIRE_OK(set->Add({patch.View()}));
  return set;
}

TEST_CASE("the number of changes at which the way of summing changes does not show") {
  const Manifest manifest = ManifestOf({{"x", Dtype::kBF16, {kTileElements}}});
  for (const int64_t count : {500, 510, 511, 512, 513, 530}) {
    const auto a = StridedSet(manifest, 0, count, 2);
    const auto b = StridedSet(manifest, 0, count, 3);
    Weights expected(manifest);
    expected.Apply(*a);
    expected.Apply(*b);
    Weights composed(manifest);
    composed.Apply(*MakeComposed(manifest, {a.get(), b.get()}));
    REQUIRE(composed == expected);
  }
}

TEST_CASE("large differences come in chunks of bounded size, tiles in order") {
  const Manifest manifest = ManifestOf({{"x", Dtype::kF32, {38 * kTileElements + 7}}});
  std::mt19937_64 random(testing::TestSeed("large differences"));
  Weights from(manifest);
  Weights to(manifest);
  to.Randomize(random);
  const auto dense_from = MakeDense(manifest, from);
  const auto dense_to = MakeDense(manifest, to);
  const auto diff = MakeDiff(manifest, *dense_from, *dense_to);
  const auto half = StridedSet(manifest, 0, 19 * kTileElements, 2);
  Weights to_and_half = to;
  to_and_half.Apply(*half);
  const auto composed = MakeComposed(manifest, {diff.get(), half.get()});
  for (const PatchSource* const source : {diff.get(), composed.get()}) {
    std::vector<TilePlace> places;
    uint16_t parts = 0;
    REQUIRE_OK(source->ReadSpan(0, [&](const ChunkView& chunk) {
      uint64_t size = 0;
      for (const EncodedTile& tile : chunk.tiles()) {
        places.push_back(tile.place);
        size += tile.bytes.size();
      }
      CHECK(size < kChunkTargetBytes + 4 * kTileElements);
      ++parts;
      return absl::OkStatus();
    }));
    REQUIRE(parts == 3);
    REQUIRE(places == manifest.SpanPlaces(0));
  }
  Weights applied = from;
  applied.Apply(*composed);
  REQUIRE(applied == to_and_half);
}

// Gives tiles of span 0 whatever it is asked for, or an error.
class FaultySource final : public PatchSource, public TensorSource {
 public:
  explicit FaultySource(const PatchSource* source) : source_(source) {}

  absl::Status ReadSpan(uint32_t,
                        const std::function<absl::Status(const ChunkView&)>& visit) const override {
    if (source_ == nullptr) return absl::DataLossError("chunk gone");
    return source_->ReadSpan(0, visit);
  }
  absl::Status Read(TensorIndex tensor, uint64_t, absl::Span<uint8_t>) const override {
    return absl::DataLossError(absl::StrCat("tensor ", tensor, " gone"));
  }

 private:
  const PatchSource* const source_;
};

TEST_CASE("errors of sources and visitors come through") {
  const Manifest manifest =
      ManifestOf({{"x", Dtype::kU8, {kSpanTiles * kTileElements}}, {"y", Dtype::kU8, {5}}});
  const auto set = StridedSet(manifest, 0, 9, 1000);
  const auto nothing = [](const ChunkView&) { return absl::OkStatus(); };
  const auto refuse = [](const ChunkView&) { return absl::AbortedError("enough"); };
  const FaultySource gone(nullptr);
  const FaultySource misplaced(set.get());
  const auto dense_gone = MakeDense(manifest, gone);

  REQUIRE_ERROR(set->ReadSpan(0, refuse), absl::StatusCode::kAborted, "enough");
  for (const uint64_t budget : {uint64_t{0}, kMergeBudgetBytes}) {
    const auto twice = MakeComposed(manifest, {set.get(), set.get(), set.get()}, budget);
    REQUIRE_ERROR(twice->ReadSpan(0, refuse), absl::StatusCode::kAborted, "enough");
    const auto broken = MakeComposed(manifest, {set.get(), &gone}, budget);
    REQUIRE_ERROR(broken->ReadSpan(0, nothing), absl::StatusCode::kDataLoss, "chunk gone");
    const auto lost = MakeComposed(manifest, {set.get(), &misplaced}, budget);
    REQUIRE_ERROR(lost->ReadSpan(1, nothing), absl::StatusCode::kInternal, "span 1");
    const auto patched = MakePatched(manifest, *dense_gone, {&gone}, budget);
    REQUIRE_ERROR(patched->OpenSpan(0), absl::StatusCode::kDataLoss, "chunk gone");
  }
  const auto diff = MakeDiff(manifest, *dense_gone, *dense_gone);
  REQUIRE_ERROR(diff->ReadSpan(1, nothing), absl::StatusCode::kDataLoss, "tensor 1 gone");
  const auto patched = MakePatched(manifest, *dense_gone, {set.get()});
  auto tiles = patched->OpenSpan(0);
  REQUIRE_OK(tiles);
  std::vector<uint8_t> tile(kTileElements);
  REQUIRE_ERROR((*tiles)->ReadTile({0, 0}, tile.data()), absl::StatusCode::kDataLoss,
                "tensor 0 gone");
}

}  // namespace
}  // namespace wstore
