#include "wstore/layout.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "tests/unit/transfer/placement_reference.h"
#include "transfer/strided_box.h"

namespace wstore {
namespace {

using testing::Below;
using testing::ElementsOf;
using testing::MakeManifest;
using testing::TestSeed;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Manifest TwoTensors() {
  return MakeManifest({{"a", Dtype::kBF16, {4, 6}}, {"b", Dtype::kF32, {8}}});
}

LayoutSpec WholeTensors() {
  LayoutSpec spec;
  spec.buffers = {{"A", Dtype::kBF16, {4, 6}}, {"B", Dtype::kF32, {8}}};
  spec.placements = {{0, 0, 0, 0, {{24, 1, 1}}}, {1, 0, 1, 0, {{8, 1, 1}}}};
  return spec;
}

TEST_CASE("layout: the normal form does not depend on how it was written") {
  const Manifest manifest = TwoTensors();
  const auto plain = Layout::Create(manifest, WholeTensors(), 1);
  REQUIRE_OK(plain);

  LayoutSpec odd = WholeTensors();
  std::swap(odd.buffers[0], odd.buffers[1]);
  odd.placements = {{1, 0, 0, 0, {{1, 1, 7}, {2, 4, 4}, {4, 1, 1}}},
                    {0, 0, 1, 0, {{4, 6, 6}, {1, 9, 9}, {2, 3, 3}, {3, 1, 1}}}};
  const auto same = Layout::Create(manifest, odd, 2);
  REQUIRE_OK(same);
  REQUIRE(same->placements() == plain->placements());
  REQUIRE(same->buffers() == plain->buffers());
  REQUIRE(same->digest() == plain->digest());
  REQUIRE(same->generation() == 2);
  REQUIRE(plain->placements()[0].dims.size() == 1);
  REQUIRE(plain->buffer_bytes(0) == 48);
  REQUIRE(plain->buffer_bytes(1) == 32);
  REQUIRE(plain->placements(1).size() == 1);
  REQUIRE(plain->placements(1)[0].buffer == 1);
}

TEST_CASE("layout: the digest covers every field") {
  const Manifest manifest = TwoTensors();
  std::set<Digest> digests;
  const auto add = [&](const std::function<void(LayoutSpec&)>& change) {
    LayoutSpec spec = WholeTensors();
    change(spec);
    const auto layout = Layout::Create(manifest, spec, 1);
    REQUIRE_OK(layout);
    digests.insert(layout->digest());
  };
  add([](LayoutSpec&) {});
  add([](LayoutSpec& spec) { spec.buffers[0].name = "AA"; });
  add([](LayoutSpec& spec) { spec.buffers[0].shape = {24}; });
  add([](LayoutSpec& spec) { spec.buffers[0].shape = {5, 6}; });
  add([](LayoutSpec& spec) { spec.placements.pop_back(); });
  add([](LayoutSpec& spec) { spec.placements[1].dims[0].count = 7; });
  add([](LayoutSpec& spec) { spec.placements[1] = {1, 1, 1, 0, {{7, 1, 1}}}; });
  add([](LayoutSpec& spec) { spec.placements[1] = {1, 0, 1, 1, {{7, 1, 1}}}; });
  add([](LayoutSpec& spec) { spec.placements[1] = {1, 0, 1, 0, {{4, 2, 1}}}; });
  add([](LayoutSpec& spec) { spec.placements[1] = {1, 0, 1, 0, {{4, 1, 2}}}; });
  add([](LayoutSpec& spec) {
    spec.placements.pop_back();
    spec.ignored = {1};
  });
  REQUIRE(digests.size() == 11);

  const Manifest tied = MakeManifest({{"a", Dtype::kF32, {8}}, {"b", Dtype::kF32, {8}}});
  LayoutSpec spec;
  spec.buffers = {{"B", Dtype::kF32, {8}}};
  spec.placements = {{0, 0, 0, 0, {{8, 1, 1}}}};
  const auto untied = Layout::Create(tied, spec, 1);
  spec.aliases = {{0, 1}};
  const auto alias = Layout::Create(tied, spec, 1);
  REQUIRE_OK(alias);
  REQUIRE(alias->digest() != untied->digest());
  REQUIRE(alias->CanonicalTensor(1) == 0);
  REQUIRE(alias->CanonicalTensor(0) == 0);
  REQUIRE(untied->CanonicalTensor(1) == 1);
}

void RequireRefused(const std::function<void(LayoutSpec&)>& change, const std::string& text) {
  const Manifest manifest = TwoTensors();
  LayoutSpec spec = WholeTensors();
  change(spec);
  REQUIRE_ERROR(Layout::Create(manifest, spec, 1), kInvalid, text);
}

TEST_CASE("layout: what is out of range is refused") {
  RequireRefused([](LayoutSpec& spec) { spec.placements[0].tensor = 2; },
                 "unknown tensors: index 2 of 2 tensors");
  RequireRefused([](LayoutSpec& spec) { spec.placements[0].buffer = 2; },
                 "unknown buffers: index 2 of 2 buffers");
  RequireRefused([](LayoutSpec& spec) { spec.placements[0].checkpoint_offset = 1; },
                 "out of the tensor's range: 'a' in 'A' from element 1 of 24");
  RequireRefused([](LayoutSpec& spec) { spec.placements[0].local_offset = 1; },
                 "out of the buffer's range: 'a' in 'A' from element 1 of 24");
  RequireRefused([](LayoutSpec& spec) { spec.placements[0].dims[0].count = uint64_t{1} << 63; },
                 "out of the tensor's range");
  RequireRefused(
      [](LayoutSpec& spec) {
        const uint64_t half = uint64_t{1} << 63;
        spec.placements[0].dims = {{3, half, half}};  // 2 x 2^63 wraps to 0
      },
      "out of the tensor's range");
  RequireRefused([](LayoutSpec& spec) { spec.placements[0].checkpoint_offset = ~uint64_t{0}; },
                 "out of the tensor's range");
  RequireRefused([](LayoutSpec& spec) { spec.placements[0].local_offset = ~uint64_t{0}; },
                 "out of the buffer's range");
  RequireRefused([](LayoutSpec& spec) { spec.placements[0].dims[0].count = 0; },
                 "zero count or stride: 'a' in 'A'");
  RequireRefused([](LayoutSpec& spec) { spec.placements[0].dims[0].local_stride = 0; },
                 "zero count or stride");
  RequireRefused(
      [](LayoutSpec& spec) {
        spec.placements[0].dims.assign(kMaxPlacementDims + 1, {1, 1, 1});
      },
      "'a' in 'A': 9 of at most 8");
  RequireRefused(
      [](LayoutSpec& spec) {
        spec.placements[0].dims = {{6, 1, 1}, {4, 6, 6}};
      },
      "do not nest, outermost first: 'a' in 'A'");
  RequireRefused(
      [](LayoutSpec& spec) {
        spec.buffers[0].shape = {uint64_t{1} << 40, 1 << 30};
      },
      "does not fit in 2^60 bytes");
  RequireRefused([](LayoutSpec& spec) { spec.buffers[1].name = "A"; },
                 "repeated buffer names: 'A'");
}

TEST_CASE("layout: nothing is converted") {
  // F16 and BF16 have the same size.
  RequireRefused([](LayoutSpec& spec) { spec.buffers[0].dtype = Dtype::kF16; },
                 "another dtype than their buffer (nothing is converted): 'a' in 'A': BF16 in F16");
}

TEST_CASE("layout: faults of one kind are listed together") {
  const Manifest manifest = TwoTensors();
  LayoutSpec spec = WholeTensors();
  spec.placements[0].checkpoint_offset = 5;
  spec.placements[1].checkpoint_offset = 6;
  spec.buffers[0].dtype = Dtype::kF16;
  REQUIRE_ERROR(Layout::Create(manifest, spec, 1), kInvalid,
                "out of the tensor's range: 'a' in 'A' from element 5 of 24, 'b' in 'B' from "
                "element 6 of 8");
  REQUIRE_ERROR(Layout::Create(manifest, spec, 1), kInvalid, "nothing is converted");
}

TEST_CASE("layout: alias groups and ignored tensors") {
  const Manifest manifest = MakeManifest({{"a", Dtype::kF32, {8}},
                                          {"b", Dtype::kF32, {8}},
                                          {"c", Dtype::kF32, {2, 4}},
                                          {"d", Dtype::kI32, {8}}});
  LayoutSpec good;
  good.buffers = {{"A", Dtype::kF32, {8}}};
  good.placements = {{0, 0, 0, 0, {{8, 1, 1}}}};
  const auto refuse = [&](const std::function<void(LayoutSpec&)>& change, const std::string& text) {
    LayoutSpec spec = good;
    change(spec);
    REQUIRE_ERROR(Layout::Create(manifest, spec, 1), kInvalid, text);
  };
  refuse(
      [](LayoutSpec& spec) {
        spec.aliases = {{0, 2}};
      },
      "aliases of unlike tensors: 'a' F32 [8] and 'c' F32 [2, 4]");
  refuse(
      [](LayoutSpec& spec) {
        spec.aliases = {{0, 3}};
      },
      "aliases of unlike tensors: 'a' F32 [8] and 'd' I32 [8]");
  refuse([](LayoutSpec& spec) { spec.aliases = {{0}}; }, "fewer than two");
  refuse([](LayoutSpec& spec) { spec.aliases = {{0, 9}}; }, "unknown tensors: index 9");
  refuse([](LayoutSpec& spec) { spec.aliases = {{1, 0}}; }, "'a' of 'b'");
  refuse([](LayoutSpec& spec) { spec.aliases = {{0, 1, 1}}; }, "in alias groups twice: 'b'");
  refuse([](LayoutSpec& spec) { spec.ignored = {0}; }, "both placed and ignored: 'a'");
  refuse([](LayoutSpec& spec) { spec.ignored = {4}; }, "unknown tensors: index 4");
  good.aliases = {{0, 1}};
  good.ignored = {3, 2, 3};
  const auto layout = Layout::Create(manifest, good, 1);
  REQUIRE_OK(layout);
  REQUIRE(layout->ignored() == std::vector<TensorIndex>{2, 3});
}

TEST_CASE("layout: overlaps in local memory are refused") {
  // The same element twice at one address.
  RequireRefused([](LayoutSpec& spec) { spec.placements.push_back(spec.placements[1]); },
                 "overlap in local memory: 'b' from element 0 and 'b' from element 0 in 'B'");
  // Two elements at one address.
  RequireRefused(
      [](LayoutSpec& spec) {
        spec.placements[1].dims[0].count = 5;
        spec.placements.push_back({1, 5, 1, 4, {{3, 1, 1}}});
      },
      "'b' from element 0 and 'b' from element 5 in 'B'");
  // A nest that meets itself, with strides that do not nest and that are equal.
  RequireRefused(
      [](LayoutSpec& spec) {
        spec.placements[0].dims = {{4, 6, 2}, {3, 1, 1}};
      },
      "'a' from element 0 with itself in 'A'");
  RequireRefused(
      [](LayoutSpec& spec) {
        spec.placements[0].dims = {{2, 6, 1}, {2, 1, 1}};
      },
      "'a' from element 0 with itself in 'A'");
  // Strides that do not nest, yet reach each element once: 0 2 3 5.
  LayoutSpec spec = WholeTensors();
  spec.placements[0].dims = {{2, 6, 2}, {2, 1, 3}};
  REQUIRE_OK(Layout::Create(TwoTensors(), spec, 1));
}

TEST_CASE("layout: one element may have several places") {
  const Manifest manifest = TwoTensors();
  LayoutSpec spec = WholeTensors();
  spec.buffers.push_back({"copy", Dtype::kBF16, {6, 4}});
  spec.placements.push_back({0, 0, 2, 0, {{4, 6, 1}, {6, 1, 4}}});  // transposed
  const auto layout = Layout::Create(manifest, spec, 1);
  REQUIRE_OK(layout);
  REQUIRE(layout->placements(0).size() == 2);
}

// A box of random strides within [0, limit).
Placement RandomNest(std::mt19937_64& random, uint64_t limit) {
  while (true) {
    Placement placement;
    placement.checkpoint_offset = Below(random, 5);
    placement.local_offset = Below(random, limit / 2);
    const size_t dims = Below(random, 4);
    uint64_t extent = 1;
    for (size_t k = 0; k < dims; ++k) {
      const uint64_t stride = extent + Below(random, 3);
      const uint64_t count = 1 + Below(random, 4);
      placement.dims.insert(placement.dims.begin(), {count, stride, 1 + Below(random, 12)});
      extent += (count - 1) * stride;
    }
    uint64_t last = placement.local_offset;
    for (const PlacementDim& dim : placement.dims) last += (dim.count - 1) * dim.local_stride;
    if (last < limit) return placement;
  }
}

TEST_CASE("layout: overlap checks agree with a map of all elements") {
  std::mt19937_64 random(TestSeed("layout overlaps"));
  const Manifest manifest = MakeManifest({{"t", Dtype::kU8, {4096}}});
  size_t accepted = 0;
  for (int round = 0; round < 4000; ++round) {
    LayoutSpec spec;
    spec.buffers = {{"B", Dtype::kU8, {60}}, {"C", Dtype::kU8, {60}}};
    std::set<std::pair<uint32_t, uint64_t>> taken;
    bool overlaps = false;
    const size_t count = 1 + Below(random, 4);
    for (size_t i = 0; i < count; ++i) {
      Placement placement = RandomNest(random, 60);
      placement.buffer = static_cast<uint32_t>(Below(random, 2));
      for (const auto& [from, to] : ElementsOf(placement)) {
        overlaps = !taken.emplace(placement.buffer, to).second || overlaps;
      }
      spec.placements.push_back(placement);
    }
    const auto layout = Layout::Create(manifest, spec, 1);
    INFO("round " << round << ": " << layout.status().ToString());
    REQUIRE(layout.ok() == !overlaps);
    if (overlaps) REQUIRE(layout.status().code() == kInvalid);
    accepted += layout.ok();
  }
  REQUIRE(accepted > 400);
  REQUIRE(accepted < 3600);
}

TEST_CASE("layout: an overlap check that would take too long is refused") {
  // Two boxes of 8 dimensions of 4, whose strides are 2^36 and a power of 4: sums of strides tell
  // how many were added only in their low digits, so bounds on sums rule out next to nothing.
  const uint64_t step = uint64_t{1} << 36;
  const Manifest manifest = MakeManifest({{"t", Dtype::kU8, {1 << 17}}});
  LayoutSpec spec;
  spec.buffers = {{"B", Dtype::kU8, {48 * step}}};
  for (const uint64_t side : {0, 1}) {
    Placement placement{0, side << 16, 0, side << 31, {}};
    for (uint64_t k = 0; k < 8; ++k) {
      placement.dims.push_back(
          {4, uint64_t{1} << (2 * (7 - k)), step + (uint64_t{1} << (16 * side + 2 * k))});
    }
    spec.placements.push_back(placement);
  }
  REQUIRE_ERROR(Layout::Create(manifest, spec, 1), absl::StatusCode::kResourceExhausted,
                "more than 2^24 steps to tell");
}

TEST_CASE("segments: a cursor agrees with the loop nest") {
  std::mt19937_64 random(TestSeed("segment cursor"));
  for (int round = 0; round < 1500; ++round) {
    Placement placement = RandomNest(random, 1000);
    if (Below(random, 2) == 0) NormalizeDims(placement);
    std::map<uint64_t, uint64_t> local_of;
    for (const auto& [from, to] : ElementsOf(placement)) local_of[from] = to;
    const uint64_t last = local_of.rbegin()->first;

    // Walking visits every element once, in order.
    SegmentCursor cursor(placement);
    std::vector<std::pair<uint64_t, uint64_t>> walked;
    do {
      const Segment& segment = cursor.segment();
      REQUIRE(segment.begin < segment.end);
      for (uint64_t e = segment.begin; e < segment.end; ++e) {
        walked.emplace_back(e, segment.local_begin + (e - segment.begin) * segment.local_stride);
      }
    } while (cursor.Next());
    REQUIRE(walked == ElementsOf(placement));

    // Seeking from anywhere to anywhere.
    for (int i = 0; i < 40; ++i) {
      const uint64_t element = Below(random, last + 4);
      const auto next = local_of.lower_bound(element);
      const Segment before = cursor.segment();
      const bool found = cursor.Seek(element);
      REQUIRE(found == (next != local_of.end()));
      const Segment& segment = cursor.segment();
      if (!found) {
        REQUIRE(segment.begin == before.begin);
        continue;
      }
      REQUIRE(segment.begin <= next->first);
      REQUIRE(next->first < segment.end);
      REQUIRE((segment.begin >= element || next->first == element));
      REQUIRE(segment.local_begin + (next->first - segment.begin) * segment.local_stride ==
              next->second);
    }
  }
}

TEST_CASE("segments: those of a normal form are as long as they can be") {
  // Rows of 6 in rows of 6 merge to one segment; in rows of 8 they do not.
  Placement placement{0, 0, 0, 0, {{4, 6, 6}, {6, 1, 1}}};
  NormalizeDims(placement);
  SegmentCursor whole(placement);
  REQUIRE(whole.segment().end == 24);
  REQUIRE(!whole.Next());
  placement = {0, 0, 0, 0, {{4, 6, 8}, {6, 1, 1}}};
  NormalizeDims(placement);
  SegmentCursor rows(placement);
  REQUIRE(rows.segment().end == 6);
  REQUIRE(rows.Seek(13));
  REQUIRE(rows.segment().begin == 12);
  REQUIRE(rows.segment().local_begin == 16);
  // A scalar.
  const Placement scalar{0, 0, 0, 3, {}};
  SegmentCursor cursor(scalar);
  REQUIRE(cursor.segment().begin == 0);
  REQUIRE(cursor.segment().end == 1);
  REQUIRE(cursor.segment().local_begin == 3);
  REQUIRE(!cursor.Next());
}

}  // namespace
}  // namespace wstore
