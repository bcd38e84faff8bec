#include "wstore/patch_set.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "tests/unit/codec/weights.h"

namespace wstore {
namespace {

using testing::ManifestOf;
using testing::OwnedPatch;
using testing::TilesOf;
using testing::Weights;
using Form = TensorPatch::Form;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kOutOfRange = absl::StatusCode::kOutOfRange;

// The little-endian bytes of numbers.
template <typename Element>
std::vector<uint8_t> BytesOf(const std::vector<Element>& elements) {
  std::vector<uint8_t> bytes(elements.size() * sizeof(Element));
  if (!bytes.empty()) std::memcpy(bytes.data(), elements.data(), bytes.size());
  return bytes;
}

// What the weights are after the patches went through a builder, a resolve and its chunks.
Weights Published(const Manifest& manifest, const Weights& old,
                  const std::vector<OwnedPatch>& patches) {
  PatchSetBuilder builder(manifest);
  REQUIRE_OK(builder.Add(Views(patches)));
  REQUIRE_OK(builder.Resolve(*MakeDense(manifest, old)));
  Weights result = old;
  result.Apply(builder);
  return result;
}

template <typename Element>
void CheckBitsExact(Dtype dtype, const std::vector<Element>& old_bits,
                    const std::vector<Element>& new_bits) {
  const Manifest manifest = ManifestOf({{"x", dtype, {old_bits.size()}}});
  Weights old(manifest);
  old.tensors[0] = BytesOf(old_bits);
  OwnedPatch patch{.spec = manifest.tensor(0).spec, .values = BytesOf(new_bits)};
  for (size_t i = 0; i < new_bits.size(); ++i) patch.indices.push_back(static_cast<int64_t>(i));
  INFO(DtypeName(dtype));
  REQUIRE(Published(manifest, old, {patch}).tensors[0] == BytesOf(new_bits));

  // The same with XOR given, which needs no old bits.
  OwnedPatch exchange = patch;
  exchange.form = Form::kXor;
  for (size_t i = 0; i < exchange.values.size(); ++i) exchange.values[i] ^= old.tensors[0][i];
  PatchSetBuilder builder(manifest);
  REQUIRE_OK(builder.Add({exchange.View()}));
  REQUIRE(!builder.needs_resolve());
  old.Apply(builder);
  REQUIRE(old.tensors[0] == BytesOf(new_bits));
}

TEST_CASE("A05 NaN payloads, signed zeros and infinities keep every bit") {
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    CheckBitsExact<uint16_t>(dtype, {0x3f80, 0x7fc0, 0x0000, 0x8000, 0x7fc1, 0x3f80, 0x0001},
                             {0x7fc1, 0xffab, 0x8000, 0x0000, 0x7fc1, 0x7f80, 0x8001});
  }
  CheckBitsExact<uint32_t>(Dtype::kF32, {0x3f800000, 0x7fc00000, 0, 0x7f800001},
                           {0x7f800001, 0xffc12345, 0x80000000, 0xff800000});
  CheckBitsExact<uint64_t>(Dtype::kF64, {0x7ff8000000000000, 0, 1},
                           {0x7ff0000000000001, 0x8000000000000000, 0x8000000000000001});
  std::vector<uint8_t> all(256);
  std::vector<uint8_t> reversed(256);
  for (int i = 0; i < 256; ++i) all[i] = reversed[255 - i] = static_cast<uint8_t>(i);
  for (const Dtype dtype :
       {Dtype::kI8, Dtype::kU8, Dtype::kBool, Dtype::kF8E4M3, Dtype::kF8E5M2, Dtype::kF8E8M0}) {
    CheckBitsExact<uint8_t>(dtype, all, reversed);
  }
}

// The base of the cases about refusals: "x" of 10 BF16 elements.
struct Small {
  Manifest manifest = ManifestOf({{"x", Dtype::kBF16, {5, 2}}, {"y", Dtype::kU8, {3}}});
  PatchSetBuilder builder{manifest};

  OwnedPatch Patch(std::vector<int64_t> indices) const {
    OwnedPatch patch{.spec = manifest.tensor(0).spec, .indices = std::move(indices)};
    for (const int64_t index : patch.indices) {
      patch.values.push_back(static_cast<uint8_t>(index));
      patch.values.push_back(0x11);
    }
    return patch;
  }
  absl::Status Add(const OwnedPatch& patch) { return builder.Add({patch.View()}); }
};

TEST_CASE("A06 an index outside its tensor is refused with tensor, position and limit") {
  Small small;
  const char* const limit = "it has 10 elements, so an index must be from 0 to 9";
  REQUIRE_ERROR(small.Add(small.Patch({3, 10})), kOutOfRange, "'x': index 10 at position 1; ");
  REQUIRE_ERROR(small.Add(small.Patch({3, 10})), kOutOfRange, limit);
  REQUIRE_ERROR(small.Add(small.Patch({-1, 0})), kOutOfRange, "index -1 at position 0; ");
  REQUIRE_ERROR(small.Add(small.Patch({0, std::numeric_limits<int64_t>::min()})), kOutOfRange,
                "index -9223372036854775808 at position 1");
  REQUIRE_ERROR(small.Add(small.Patch({std::numeric_limits<int64_t>::max()})), kOutOfRange, limit);
  REQUIRE_ERROR(small.Add(small.Patch({1, 99, 4, -5, 10})), kOutOfRange,
                "index 99 at position 1, and 2 more; ");
  REQUIRE(small.builder.size_bytes() == 0);
  REQUIRE_OK(small.Add(small.Patch({9})));
}

TEST_CASE("A06 indices of an empty tensor are refused, no indices are accepted") {
  const Manifest manifest = ManifestOf({{"e", Dtype::kF32, {4, 0}}, {"s", Dtype::kU8, {}}});
  const std::vector<uint8_t> value(4);
  const std::vector<int64_t> zero = {0};
  PatchSetBuilder builder(manifest);
  REQUIRE_ERROR(builder.Add({{"e", Dtype::kF32, {4, 0}, zero, value, Form::kNew}}), kOutOfRange,
                "tensor 'e': index 0 at position 0; it has no elements");
  REQUIRE_OK(builder.Add({{"e", Dtype::kF32, {4, 0}, {}, {}, Form::kNew},
                          {"s", Dtype::kU8, {}, zero, absl::MakeConstSpan(value).first(1)}}));
}

TEST_CASE("A06 as many values as indices are needed") {
  Small small;
  OwnedPatch patch = small.Patch({1, 2, 3});
  patch.values.pop_back();
  REQUIRE_ERROR(small.Add(patch), kInvalid,
                "tensor 'x': 3 indices need 6 bytes of values (2 each), not 5");
  patch.values.clear();
  REQUIRE_ERROR(small.Add(patch), kInvalid, "not 0");
  patch.indices.clear();
  patch.values.resize(2);
  REQUIRE_ERROR(small.Add(patch), kInvalid, "0 indices need 0 bytes");
  REQUIRE(small.builder.size_bytes() == 0);
}

TEST_CASE("A06 a repeated index is refused, also with equal values and across sorted input") {
  Small small;
  REQUIRE_ERROR(small.Add(small.Patch({7, 2, 5, 2})), kInvalid,
                "tensor 'x': index 2 at position 1 comes again at position 3. ");
  REQUIRE_ERROR(small.Add(small.Patch({1, 4, 4})), kInvalid,
                "index 4 at position 1 comes again at position 2");
  REQUIRE_ERROR(small.Add(small.Patch({9, 3, 3, 9, 0, 0, 0})), kInvalid,
                "index 3 at position 1 comes again at position 2, and 3 more");
  REQUIRE(small.builder.size_bytes() == 0);
}

TEST_CASE("A06 unsorted indices and a patch without elements are accepted, exact") {
  Small small;
  Weights old(small.manifest);
  old.tensors[0].assign(20, 0xff);
  Weights expected = old;
  const OwnedPatch patch = small.Patch({9, 0, 4});
  for (const int64_t index : patch.indices) {
    expected.tensors[0][2 * index] = static_cast<uint8_t>(index);
    expected.tensors[0][2 * index + 1] = 0x11;
  }
  const OwnedPatch nothing{.spec = small.manifest.tensor(1).spec};
  REQUIRE(Published(small.manifest, old, {patch, nothing}) == expected);
  REQUIRE(Published(small.manifest, old, {nothing}) == old);
  REQUIRE_OK(small.Add(nothing));
  REQUIRE(!small.builder.needs_resolve());
  REQUIRE(TilesOf(small.manifest, small.builder).empty());
}

TEST_CASE("A08 a set with unknown names is refused whole, and all are listed, with near matches") {
  const Manifest manifest = ManifestOf({{"model.norm.weight", Dtype::kU8, {4}},
                                        {"model.embed.weight", Dtype::kU8, {4}},
                                        {"lm_head.weight", Dtype::kU8, {4}}});
  const std::vector<int64_t> indices = {1};
  const std::vector<uint8_t> values = {9};
  const auto patch = [&](std::string name) {
    return TensorPatch{std::move(name), Dtype::kU8, {4}, indices, values, Form::kXor};
  };
  PatchSetBuilder builder(manifest);
  const absl::Status status =
      builder.Add({patch("lm_head.weight"), patch("module.model.norm.weight"),
                   patch("model.embed.weight "), patch("optimizer")});
  REQUIRE_ERROR(status, kInvalid, "'module.model.norm.weight' (near: 'model.norm.weight')");
  REQUIRE_ERROR(status, kInvalid, "'model.embed.weight ' (near: 'model.embed.weight')");
  REQUIRE_ERROR(status, kInvalid, "'optimizer'");
  REQUIRE(builder.size_bytes() == 0);
  REQUIRE(TilesOf(manifest, builder).empty());
  REQUIRE_OK(builder.Add({patch("lm_head.weight")}));
  REQUIRE(TilesOf(manifest, builder).size() == 1);
}

TEST_CASE("A08 very many unknown names take seconds and give a message of bounded length") {
  std::vector<TensorSpec> tensors;
  std::vector<TensorPatch> patches;
  for (int i = 0; i < 20000; ++i) {
    tensors.push_back({absl::StrCat("model.layers.", i, ".weight"), Dtype::kU8, {1}});
    patches.push_back({absl::StrCat("layers.model.", i, ".weight"), Dtype::kU8, {1}, {}, {}});
  }
  const Manifest manifest = ManifestOf(std::move(tensors));
  PatchSetBuilder builder(manifest);
  const double start = testing::CpuSeconds();
  const absl::Status status = builder.Add(patches);
  REQUIRE(testing::CpuSeconds() - start < 20);
  REQUIRE_ERROR(status, kInvalid, "'layers.model.99.weight', and 19900 more");
  REQUIRE(status.message().size() < 10000);
}

TEST_CASE("A10 another type than the base's is refused per tensor, with both") {
  const Manifest manifest = ManifestOf({{"bias", Dtype::kF32, {4}}, {"weight", Dtype::kBF16, {4}}});
  const std::vector<int64_t> indices = {0};
  const std::vector<uint8_t> values(4);
  const auto patch = [&](const char* name, Dtype dtype, size_t bytes) {
    return TensorPatch{name, dtype, {4}, indices, absl::MakeConstSpan(values).first(bytes)};
  };
  PatchSetBuilder builder(manifest);
  const absl::Status both =
      builder.Add({patch("weight", Dtype::kF32, 4), patch("bias", Dtype::kBF16, 2)});
  REQUIRE_ERROR(both, kInvalid, "tensor 'weight' is F32 [4] in the patch but BF16 [4] in the base");
  REQUIRE_ERROR(both, kInvalid, "tensor 'bias' is BF16 [4] in the patch but F32 [4] in the base");
  REQUIRE_ERROR(builder.Add({patch("weight", Dtype::kF16, 2)}), kInvalid,
                "F16 [4] in the patch but BF16 [4] in the base");
  REQUIRE(builder.size_bytes() == 0);
}

TEST_CASE("A30 another shape than the base's is refused though indices and size agree") {
  const Manifest manifest = ManifestOf({{"x", Dtype::kU8, {1024, 8}}, {"s", Dtype::kU8, {}}});
  const std::vector<int64_t> indices = {5};
  const std::vector<uint8_t> values = {1};
  for (const Shape& shape : {Shape{1088, 8}, Shape{8, 1024}, Shape{8192}, Shape{1, 1024, 8}}) {
    PatchSetBuilder builder(manifest);
    REQUIRE_ERROR(
        builder.Add({{"x", Dtype::kU8, shape, indices, values}}), kInvalid,
        absl::StrCat("is U8 ", ShapeString(shape), " in the patch but U8 [1024, 8] in the base"));
  }
  PatchSetBuilder builder(manifest);
  REQUIRE_ERROR(builder.Add({{"s", Dtype::kU8, {1}, {}, {}}}), kInvalid, "U8 [1] in the patch");
}

TEST_CASE("A30 one tensor twice in a set is refused, in one call or in two") {
  Small small;
  const OwnedPatch one = small.Patch({1});
  const OwnedPatch two = small.Patch({2});
  const OwnedPatch y{.spec = small.manifest.tensor(1).spec};
  const char* const message = "more than one patch in the set for tensor 'x'";
  REQUIRE_ERROR(small.builder.Add({one.View(), y.View(), two.View()}), kInvalid, message);
  REQUIRE(small.builder.size_bytes() == 0);
  REQUIRE_OK(small.Add(one));
  REQUIRE_ERROR(small.builder.Add({y.View(), two.View()}), kInvalid, message);
  REQUIRE_OK(small.Add(y));
  REQUIRE_OK(small.builder.Resolve(*MakeDense(small.manifest, Weights(small.manifest))));
  REQUIRE_ERROR(small.Add(two), kInvalid, message);
}

TEST_CASE("a fault in one patch keeps the others of the call out") {
  Small small;
  const OwnedPatch y{.spec = small.manifest.tensor(1).spec, .indices = {2}, .values = {1}};
  REQUIRE_ERROR(small.builder.Add({y.View(), small.Patch({10}).View()}), kOutOfRange, "'x'");
  REQUIRE_ERROR(small.builder.Add({y.View(), small.Patch({1, 1}).View()}), kInvalid, "'x'");
  REQUIRE(!small.builder.needs_resolve());
  REQUIRE_OK(small.builder.Add({y.View(), small.Patch({1}).View()}));
}

TEST_CASE("new bits must be resolved, and those equal to the old ones drop out") {
  Small small;
  Weights old(small.manifest);
  old.tensors[0][2 * 4] = 4;
  old.tensors[0][2 * 4 + 1] = 0x11;
  REQUIRE_OK(small.Add(small.Patch({4, 6})));  // element 4 is so already
  REQUIRE(small.builder.needs_resolve());
  const auto nothing = [](const ChunkView&) { return absl::OkStatus(); };
  REQUIRE_ERROR(small.builder.ReadSpan(0, nothing), absl::StatusCode::kFailedPrecondition,
                "1 tensors of the patch set hold new bits");
  const auto dense = MakeDense(small.manifest, old);
  REQUIRE_OK(small.builder.Resolve(*dense));
  REQUIRE(!small.builder.needs_resolve());
  uint64_t changed = 0;
  REQUIRE_OK(small.builder.ReadSpan(0, [&](const ChunkView& chunk) {
    changed += chunk.changed();
    return absl::OkStatus();
  }));
  REQUIRE(changed == 1);
  const auto tiles = TilesOf(small.manifest, small.builder);
  REQUIRE_OK(small.builder.Resolve(*dense));  // nothing is left to do
  REQUIRE(TilesOf(small.manifest, small.builder) == tiles);

  PatchSetBuilder same(small.manifest);
  REQUIRE_OK(same.Add({small.Patch({4}).View()}));
  REQUIRE_OK(same.Resolve(*dense));
  REQUIRE(TilesOf(small.manifest, same).empty());
}

TEST_CASE("XOR bits of zero change nothing") {
  const Manifest manifest = ManifestOf({{"x", Dtype::kF32, {3 * kTileElements}}});
  OwnedPatch patch{.spec = manifest.tensor(0).spec, .form = Form::kXor};
  patch.indices = {0, 5, kTileElements + 1, 2 * kTileElements, 2 * kTileElements + 1};
  patch.values = BytesOf<uint32_t>({0, 1, 0, 0, 0x80000000});
  PatchSetBuilder builder(manifest);
  REQUIRE_OK(builder.Add({patch.View()}));
  std::vector<std::pair<TilePlace, uint32_t>> tiles;
  REQUIRE_OK(builder.ReadSpan(0, [&](const ChunkView& chunk) {
    for (const EncodedTile& tile : chunk.tiles()) tiles.emplace_back(tile.place, tile.changed);
    return absl::OkStatus();
  }));
  REQUIRE(tiles == std::vector<std::pair<TilePlace, uint32_t>>{{{0, 0}, 1}, {{0, 2}, 1}});
}

// Zeros that are nowhere in memory. Fails from the read number `fail_at` on.
class Zeros final : public TensorSource {
 public:
  explicit Zeros(int fail_at = std::numeric_limits<int>::max()) : fail_at_(fail_at) {}
  absl::Status Read(TensorIndex, uint64_t, absl::Span<uint8_t> out) const override {
    if (++reads_ >= fail_at_) return absl::DataLossError("the old bits are gone");
    std::fill(out.begin(), out.end(), uint8_t{0});
    return absl::OkStatus();
  }
  int reads() const { return reads_; }

 private:
  const int fail_at_;
  mutable std::atomic<int> reads_ = 0;
};

TEST_CASE("a failed resolve leaves the set as it was") {
  const Manifest manifest = ManifestOf({{"x", Dtype::kU8, {1000 * kTileElements}}});
  OwnedPatch patch{.spec = manifest.tensor(0).spec};
  for (int64_t tile = 0; tile < 1000; tile += 10) patch.indices.push_back(tile * kTileElements);
  for (size_t i = 0; i < patch.indices.size(); ++i) {
    patch.values.push_back(static_cast<uint8_t>(i % 3));
  }
  PatchSetBuilder builder(manifest);
  REQUIRE_OK(builder.Add({patch.View()}));
  const uint64_t size_bytes = builder.size_bytes();
  const Zeros failing(60);
  REQUIRE_ERROR(builder.Resolve(*MakeDense(manifest, failing)), absl::StatusCode::kDataLoss,
                "the old bits are gone");
  REQUIRE(builder.needs_resolve());
  REQUIRE(builder.size_bytes() == size_bytes);
  const Zeros zeros;
  REQUIRE_OK(builder.Resolve(*MakeDense(manifest, zeros)));
  REQUIRE(zeros.reads() == 100);  // the tiles that change, once each

  const auto tiles = TilesOf(manifest, builder);
  std::vector<TilePlace> expected;
  for (uint32_t i = 0; i < 100; ++i) {
    if (i % 3 != 0) expected.push_back({0, i * 10});
  }
  REQUIRE(tiles.size() == expected.size());
  for (size_t i = 0; i < tiles.size(); ++i) REQUIRE(tiles[i].first == expected[i]);
}

TEST_CASE("a tensor of more than 2^32 elements is patched in its own coordinates") {
  const uint64_t elements = (uint64_t{1} << 34) + 3;
  const Manifest manifest =
      ManifestOf({{"a", Dtype::kU8, {1}}, {"huge", Dtype::kBF16, {elements}}});
  OwnedPatch patch{.spec = manifest.tensor(1).spec};
  const std::vector<uint64_t> indices = {elements - 1, 0, uint64_t{1} << 32,
                                         (uint64_t{1} << 33) + 70000};
  for (const uint64_t index : indices) patch.indices.push_back(static_cast<int64_t>(index));
  patch.values = BytesOf<uint16_t>({1, 2, 3, 4});
  PatchSetBuilder builder(manifest);
  REQUIRE_OK(builder.Add({patch.View()}));
  const Zeros zeros;
  REQUIRE_OK(builder.Resolve(*MakeDense(manifest, zeros)));
  REQUIRE(builder.size_bytes() < 1000);
  for (size_t i = 0; i < indices.size(); ++i) {
    const TilePlace place{1, static_cast<uint32_t>(indices[i] / kTileElements)};
    const auto span = static_cast<uint32_t>(manifest.GlobalTile(place) / kSpanTiles);
    int seen = 0;
    REQUIRE_OK(builder.ReadSpan(span, [&](const ChunkView& chunk) {
      for (const EncodedTile& tile : chunk.tiles()) {
        if (tile.place != place) continue;
        TileChanges changes;
        DecodeTile(tile, &changes);
        CHECK(changes.offsets ==
              std::vector<uint16_t>{static_cast<uint16_t>(indices[i] % kTileElements)});
        CHECK(changes.values == BytesOf<uint16_t>({static_cast<uint16_t>(i + 1)}));
        ++seen;
      }
      return absl::OkStatus();
    }));
    REQUIRE(seen == 1);
  }
  patch.indices[0] = static_cast<int64_t>(elements);
  PatchSetBuilder refusing(manifest);
  REQUIRE_ERROR(refusing.Add({patch.View()}), kOutOfRange,
                "tensor 'huge': index 17179869187 at position 0");
}

TEST_CASE("A29 a set of 50,000 tiny tensors takes seconds, in one call or in as many") {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 50000; ++i) {
    tensors.push_back({absl::StrCat("t", i), Dtype::kBF16, {8}});
  }
  const Manifest manifest = ManifestOf(tensors);
  std::vector<OwnedPatch> patches;
  for (const TensorSpec& spec : tensors) {
    patches.push_back({.spec = spec, .indices = {7, 1}, .values = {1, 2, 3, 4}});
  }
  const double start = testing::CpuSeconds();
  PatchSetBuilder at_once(manifest);
  REQUIRE_OK(at_once.Add(Views(patches)));
  PatchSetBuilder one_by_one(manifest);
  for (const OwnedPatch& patch : patches) {
    if (!one_by_one.Add({patch.View()}).ok()) FAIL(patch.spec.name);
  }
  const Zeros zeros;
  for (PatchSetBuilder* const builder : {&at_once, &one_by_one}) {
    REQUIRE_OK(builder->Resolve(*MakeDense(manifest, zeros)));
  }
  const auto tiles = TilesOf(manifest, at_once);
  REQUIRE(tiles.size() == 50000);
  REQUIRE(tiles == TilesOf(manifest, one_by_one));
  REQUIRE(testing::CpuSeconds() - start < 20);
}

}  // namespace
}  // namespace wstore
