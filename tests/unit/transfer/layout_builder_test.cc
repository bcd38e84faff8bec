#include "wstore/layout_builder.h"

#include <functional>
#include <numeric>

#include "tests/support/catch.h"
#include "tests/unit/transfer/placement_reference.h"

namespace wstore {
namespace {

using testing::ElementsOf;
using testing::MakeManifest;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr int64_t kPadding = -1;
using Content = std::vector<int64_t>;  // the checkpoint element at each local one, or kPadding

// What a buffer holds.
Content Fill(const Layout& layout, uint32_t buffer) {
  const LayoutBuffer& spec = layout.buffers()[buffer];
  Content content(layout.buffer_bytes(buffer) / StorageElementBytes(spec.dtype), kPadding);
  for (const Placement& placement : layout.placements()) {
    if (placement.buffer != buffer) continue;
    for (const auto& [from, to] : ElementsOf(placement)) content[to] = static_cast<int64_t>(from);
  }
  return content;
}

// The elements of a row-major matrix, row by row in an order of rows.
Content Rows(const std::vector<uint64_t>& rows, uint64_t columns) {
  Content content;
  for (const uint64_t row : rows) {
    for (uint64_t column = 0; column < columns; ++column) {
      content.push_back(static_cast<int64_t>(row * columns + column));
    }
  }
  return content;
}

TEST_CASE("builder: gate and up swapped, interleaved, and interleaved in groups") {
  // One fused tensor of 8 gate and 8 up rows.
  const Manifest manifest = MakeManifest({{"w13", Dtype::kBF16, {16, 3}}});
  const auto build = [&](const std::function<void(LayoutBuilder&, const StridedView&)>& place) {
    LayoutBuilder builder(manifest);
    place(builder, builder.Buffer({"w", Dtype::kBF16, {16, 3}}));
    const auto layout = builder.Build(1);
    REQUIRE_OK(layout);
    const Layout* rank = &*layout;
    REQUIRE_OK(CheckCoverage(manifest, {&rank, 1}));
    return Fill(*layout, 0);
  };
  const Content swapped = build([](LayoutBuilder& builder, const StridedView& w) {
    const StridedView w13 = builder.Tensor("w13");
    builder.Place(w13.Slice(0, 0, 8), w.Slice(0, 8, 16));
    builder.Place(w13.Slice(0, 8, 16), w.Slice(0, 0, 8));
  });
  REQUIRE(swapped == Rows({8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7}, 3));
  const Content interleaved = build([](LayoutBuilder& builder, const StridedView& w) {
    const StridedView w13 = builder.Tensor("w13");
    builder.Place(w13.Slice(0, 0, 8), w.Slice(0, 0, 16, 2));
    builder.Place(w13.Slice(0, 8, 16), w.Slice(0, 1, 16, 2));
  });
  REQUIRE(interleaved == Rows({0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15}, 3));
  const Content grouped = build([](LayoutBuilder& builder, const StridedView& w) {
    // Two halves in groups of four rows: one placement.
    builder.Place(builder.Tensor("w13").Split(0, 8).Split(1, 4),
                  w.Split(0, 8).Split(1, 4).Permute({1, 0, 2, 3}));
  });
  REQUIRE(grouped == Rows({0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15}, 3));
}

TEST_CASE("builder: transposed and padded") {
  const Manifest manifest = MakeManifest({{"t", Dtype::kF32, {3, 4}}});
  LayoutBuilder builder(manifest);
  const StridedView transposed = builder.Buffer({"a", Dtype::kF32, {4, 3}});
  const StridedView padded = builder.Buffer({"b", Dtype::kF32, {3, 6}});
  builder.Place(builder.Tensor("t"), transposed.Permute({1, 0}));
  builder.Place(builder.Tensor("t"), padded.Slice(1, 0, 4));
  const auto layout = builder.Build(1);
  REQUIRE_OK(layout);
  REQUIRE(Fill(*layout, 0) == Content{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11});
  REQUIRE(Fill(*layout, 1) ==
          Content{0, 1, 2, 3, -1, -1, 4, 5, 6, 7, -1, -1, 8, 9, 10, 11, -1, -1});
}

// The layout that FlashInfer's TensorRT-LLM kernels take bf16 experts in: up and gate rows
// alternate, rows are permuted within blocks of 32, and blocks of 64 columns lie together.
TEST_CASE("builder: rows permuted in blocks and columns in blocks are boxes") {
  constexpr uint64_t kHalf = 64;  // rows of gate, and of up
  constexpr uint64_t kRows = 2 * kHalf;
  constexpr uint64_t kColumns = 192;
  constexpr uint64_t kBlockK = 64;
  const Manifest manifest = MakeManifest(
      {{"gate", Dtype::kBF16, {kHalf, kColumns}}, {"up", Dtype::kBF16, {kHalf, kColumns}}});

  // The reference, as a row map: interleave, then move row 4 a + b of each 32 to 8 b + a.
  Content expected[2] = {Content(kRows * kColumns, kPadding), Content(kRows * kColumns, kPadding)};
  for (uint64_t old_row = 0; old_row < kRows; ++old_row) {
    const bool is_gate = old_row % 2 == 1;
    const uint64_t in_block = old_row % 32;
    const uint64_t new_row = old_row - in_block + (in_block % 4) * 8 + in_block / 4;
    for (uint64_t column = 0; column < kColumns; ++column) {
      const uint64_t place = (column / kBlockK * kRows + new_row) * kBlockK + column % kBlockK;
      expected[is_gate ? 0 : 1][place] = static_cast<int64_t>(old_row / 2 * kColumns + column);
    }
  }

  LayoutBuilder builder(manifest);
  // Dimensions of the buffer: column block, row block, b / 2, half, a, column.
  const StridedView w13 = builder.Buffer({"w13", Dtype::kBF16, {3, kRows, kBlockK}})
                              .Split(1, 32)
                              .Split(2, 8)
                              .Split(2, 2);
  for (const uint64_t half : {0, 1}) {
    // Row 16 block + 2 a + b / 2 of each half.
    builder.Place(builder.Tensor(half == 0 ? "up" : "gate").Split(0, 16).Split(1, 2).Split(3, 64),
                  w13.Select(3, half).Permute({1, 3, 2, 0, 4}));
  }
  const auto layout = builder.Build(1);
  REQUIRE_OK(layout);
  REQUIRE(layout->placements().size() == 2);
  for (const TensorIndex tensor : {0, 1}) {
    Content content(kRows * kColumns, kPadding);
    for (const auto& [from, to] : ElementsOf(layout->placements(tensor)[0])) {
      content[to] = static_cast<int64_t>(from);
    }
    REQUIRE(content == expected[tensor]);
  }
  const Layout* rank = &*layout;
  REQUIRE_OK(CheckCoverage(manifest, {&rank, 1}));
}

TEST_CASE("builder: packed types count bytes") {
  const Manifest manifest =
      MakeManifest({{"even", Dtype::kF4, {3, 8}}, {"odd", Dtype::kF4, {2, 3}}});
  REQUIRE(StorageShape(manifest.tensor(0).spec) == Shape{3, 4});
  REQUIRE(StorageShape(manifest.tensor(1).spec) == Shape{3});
  REQUIRE(StorageShape({"six", Dtype::kF6E2M3, {2, 8}}) == Shape{2, 6});
  REQUIRE(StorageShape({"none", Dtype::kF4, {0, 3}}) == Shape{0});
  LayoutBuilder builder(manifest);
  const StridedView buffer = builder.Buffer({"b", Dtype::kF4, {3, 4}});
  builder.Place(builder.Tensor("even").Slice(1, 2, 4), buffer);
  const auto layout = builder.Build(1);
  REQUIRE_OK(layout);
  REQUIRE(Fill(*layout, 0) == Content{2, 3, 6, 7, 10, 11});
}

TEST_CASE("builder: scalars, empty slices and strides") {
  const Manifest manifest = MakeManifest({{"scalar", Dtype::kF32, {}}, {"t", Dtype::kF32, {4, 2}}});
  LayoutBuilder builder(manifest);
  const StridedView one = builder.Buffer({"one", Dtype::kF32, {1}});
  const StridedView many = builder.Buffer({"many", Dtype::kF32, {32}});
  builder.Place(builder.Tensor("scalar"), one);
  const StridedView two = builder.Buffer({"two", Dtype::kF32, {3, 2}});
  builder.Place(builder.Tensor("t").Slice(0, 4, 4), two.Slice(0, 3, 3));
  builder.PlaceStrided(builder.Tensor("t").Slice(0, 1, 4, 2), many, 3,
                       std::vector<uint64_t>{10, 4});
  const auto layout = builder.Build(1);
  REQUIRE_OK(layout);
  REQUIRE(layout->placements().size() == 2);
  // Buffers are sorted by name.
  const Content content = Fill(*layout, 0);
  REQUIRE(content[3] == 2);
  REQUIRE(content[7] == 3);
  REQUIRE(content[13] == 6);
  REQUIRE(content[17] == 7);
  REQUIRE(std::count(content.begin(), content.end(), kPadding) == 28);
}

TEST_CASE("builder: mistakes come back together") {
  const Manifest manifest =
      MakeManifest({{"model.embed.weight", Dtype::kF32, {4, 2}}, {"b", Dtype::kF32, {4}}});
  LayoutBuilder builder(manifest);
  const StridedView buffer = builder.Buffer({"B", Dtype::kF32, {4, 2}});
  const StridedView t = builder.Tensor("b");
  builder.Place(builder.Tensor("embed.weight"), buffer);
  builder.Ignore("module.b ");
  builder.Place(t.Slice(0, 1, 5), buffer);
  builder.Place(t.Slice(0, 0, 4, 0), buffer);
  builder.Place(t.Select(0, 4), buffer);
  builder.Place(t.Split(0, 3), buffer);
  builder.Place(t.Permute({1}), buffer);
  builder.Place(t, buffer);
  builder.Place(buffer, t);
  builder.PlaceStrided(t, buffer, 0, std::vector<uint64_t>{1, 2});
  const std::string message(builder.Build(1).status().message());
  for (const std::string& text : std::vector<std::string>{
           "'embed.weight' (near: 'model.embed.weight')", "'module.b '",
           "slice [1, 5) by 1 of dimension 0 of a view of shape [4]", "slice [0, 4) by 0",
           "index 4 of dimension 0 of a view of shape [4]",
           "dimension 0 of a view of shape [4] split into blocks of 3", "permutation (1)",
           "view of shape [4] of tensor 'b' placed at a view of shape [4, 2] of buffer 'B'",
           "a placement is from a view of a tensor to a view of a buffer",
           "2 strides for a view of shape [4]"}) {
    INFO(text);
    REQUIRE_THAT(message, Catch::Matchers::Contains(text));
  }
  // A builder is empty after Build.
  const auto empty = builder.Build(1);
  REQUIRE_OK(empty);
  REQUIRE(empty->buffers().empty());
}

}  // namespace
}  // namespace wstore
