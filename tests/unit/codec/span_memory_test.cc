// The parts under composition and patching: what they share and what they keep.
#include <algorithm>
#include <thread>

#include "tests/support/catch.h"
#include "tests/unit/codec/weights.h"
#include "transfer/codec/lazy_memory.h"
#include "transfer/codec/pool.h"
#include "transfer/codec/span_overlay.h"

namespace wstore {
namespace {

using testing::ManifestOf;

TEST_CASE("a builder's view shows what its finished chunk would") {
  const Manifest manifest = ManifestOf({{"a", Dtype::kBF16, {2 * kTileElements}},
                                        {"b", Dtype::kI64, {300}},
                                        {"c", Dtype::kU8, {kTileElements}}});
  std::vector<uint16_t> every(kTileElements);
  for (size_t i = 0; i < every.size(); ++i) every[i] = static_cast<uint16_t>(i);
  const std::vector<uint8_t> values(2 * kTileElements, 0x77);
  ChunkBuilder builder(manifest);
  for (int round = 0; round < 2; ++round) {
    REQUIRE(builder.empty());
    REQUIRE(builder.View().tiles().empty());
    builder.AddTile({0, 0}, absl::MakeConstSpan(every).first(3), values.data());
    builder.AddTile({0, 1}, every, values.data());                                 // dense
    builder.AddTile({1, 0}, absl::MakeConstSpan(every).first(40), values.data());  // escaped
    builder.AddTile({2, 0}, absl::MakeConstSpan(every).subspan(9, 20000), values.data());
    if (round == 0) builder.Clear();
  }
  const ChunkView view = builder.View();
  ChunkBuilder other(manifest);
  for (const EncodedTile& tile : view.tiles()) other.AddTile(tile);
  const std::string chunk = other.Finish({});
  const absl::StatusOr<ChunkView> parsed = ChunkView::Parse(chunk, manifest);
  REQUIRE_OK(parsed);
  REQUIRE(view.header() == parsed->header());
  REQUIRE(view.changed() == parsed->changed());
  REQUIRE(view.tiles().size() == parsed->tiles().size());
  for (size_t i = 0; i < view.tiles().size(); ++i) {
    const EncodedTile& a = view.tiles()[i];
    const EncodedTile& b = parsed->tiles()[i];
    REQUIRE(a.place == b.place);
    REQUIRE(a.form == b.form);
    REQUIRE(a.changed == b.changed);
    REQUIRE(a.elements == b.elements);
    REQUIRE(a.element_bytes == b.element_bytes);
    REQUIRE(a.bytes == b.bytes);
  }
  REQUIRE(builder.Finish({}) == chunk);
}

TEST_CASE("lazy memory is zero, moves, and may be empty") {
  LazyMemory memory((5 << 20) + 1);
  REQUIRE(memory.size_bytes() == (5 << 20) + 1);
  REQUIRE(std::all_of(memory.data(), memory.data() + memory.size_bytes(),
                      [](uint8_t byte) { return byte == 0; }));
  memory.data()[5 << 20] = 7;
  LazyMemory moved(std::move(memory));
  REQUIRE(moved.data()[5 << 20] == 7);
  LazyMemory empty(0);
  REQUIRE(empty.data() == nullptr);
  moved = std::move(empty);
  REQUIRE(moved.size_bytes() == 0);
}

TEST_CASE("a pool lends what was given back, and no object twice at a time") {
  int made = 0;
  Pool<std::vector<int>> pool([&made] {
    ++made;
    return std::make_unique<std::vector<int>>();
  });
  {
    const auto a = pool.Take();
    const auto b = pool.Take();
    REQUIRE(a.get() != b.get());
    a->push_back(1);
    b->push_back(2);
  }
  REQUIRE(made == 2);
  const auto c = pool.Take();
  const auto d = pool.Take();
  REQUIRE(made == 2);
  REQUIRE(c->front() + d->front() == 3);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&pool] {
      for (int j = 0; j < 100; ++j) pool.Take()->clear();
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(c->front() + d->front() == 3);
}

TEST_CASE("an overlay that is opened again has forgotten the span before") {
  const Manifest manifest = ManifestOf({{"a", Dtype::kF32, {(kSpanTiles - 1) * kTileElements}},
                                        {"b", Dtype::kU8, {9}},
                                        {"c", Dtype::kBF16, {3 * kTileElements}}});
  const std::vector<uint8_t> values(40, 0x11);
  const std::vector<int64_t> indices = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  PatchSetBuilder first(manifest);
  REQUIRE_OK(first.Add({{"a",
                         Dtype::kF32,
                         {(kSpanTiles - 1) * kTileElements},
                         indices,
                         absl::MakeConstSpan(values).first(36),
                         TensorPatch::Form::kXor},
                        {"c",
                         Dtype::kBF16,
                         {3 * kTileElements},
                         indices,
                         absl::MakeConstSpan(values).first(18),
                         TensorPatch::Form::kXor}}));
  PatchSetBuilder second(manifest);
  REQUIRE_OK(second.Add({{"b",
                          Dtype::kU8,
                          {9},
                          indices,
                          absl::MakeConstSpan(values).first(9),
                          TensorPatch::Form::kXor}}));
  for (const uint64_t budget_bytes : {0, 1 << 20}) {
    SpanOverlay overlay(manifest, budget_bytes);
    for (int round = 0; round < 2; ++round) {
      REQUIRE_OK(overlay.Open(0, {&first, &second, &first}));
      REQUIRE(overlay.places().size() == kSpanTiles);
      std::vector<uint8_t> b(9);
      overlay.XorInto({1, 0}, b.data());
      REQUIRE(b == std::vector<uint8_t>(9, 0x11));
      std::vector<uint8_t> a(4 * kTileElements);
      overlay.XorInto({0, 0}, a.data());
      REQUIRE(a == std::vector<uint8_t>(4 * kTileElements));  // cancelled
      REQUIRE(!overlay.empty());

      REQUIRE_OK(overlay.Open(1, {&first, &second}));
      REQUIRE(overlay.places().size() == 3);
      std::vector<uint8_t> c(2 * kTileElements);
      overlay.XorInto({2, 0}, c.data());
      REQUIRE(std::count(c.begin(), c.end(), 0x11) == 18);
      REQUIRE(overlay.tile(1).empty());
      REQUIRE(overlay.tile(2).empty());
      REQUIRE_OK(overlay.Open(1, {&second}));
      REQUIRE(overlay.empty());
    }
  }
}

}  // namespace
}  // namespace wstore
