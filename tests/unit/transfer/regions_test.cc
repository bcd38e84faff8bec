#include "wstore/regions.h"

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "tests/unit/transfer/placement_reference.h"
#include "wstore/layout_builder.h"

namespace wstore {
namespace {

using testing::Below;
using testing::ElementsOf;
using testing::MakeManifest;
using testing::TestSeed;
using Kind = SumFault::Kind;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::vector<const Layout*> Pointers(const std::vector<Layout>& layouts) {
  std::vector<const Layout*> pointers;
  for (const Layout& layout : layouts) pointers.push_back(&layout);
  return pointers;
}

// A random part of a tensor: slices, steps and blocks of its dimensions.
StridedView RandomPart(std::mt19937_64& random, StridedView view) {
  if (Below(random, 3) == 0) {
    const size_t dim = Below(random, view.dims());
    const uint64_t inner = 2 + Below(random, 3);
    if (view.count(dim) % inner == 0) view = view.Split(dim, inner);
  }
  for (size_t dim = 0; dim < view.dims(); ++dim) {
    if (Below(random, 2) == 0) continue;
    const uint64_t begin = Below(random, view.count(dim));
    const uint64_t end = begin + 1 + Below(random, view.count(dim) - begin);
    view = view.Slice(dim, begin, end, Below(random, 4) == 0 ? 2 : 1);
  }
  return view;
}

// Places `from` at the next free place of `buffer`, in a random order of dimensions.
void PlaceAnyhow(std::mt19937_64& random, LayoutBuilder& builder, const StridedView& from,
                 const StridedView& buffer, uint64_t& next) {
  std::vector<size_t> order(from.dims());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  if (Below(random, 2) == 0) std::shuffle(order.begin(), order.end(), random);
  std::vector<uint64_t> strides(from.dims());
  uint64_t size = 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = size;
    size *= from.count(order[i]);
  }
  builder.PlaceStrided(from, buffer, next, strides);
  next += size;
}

// The layouts of some ranks that together hold all of one tensor, and parts of it again.
std::vector<Layout> RandomRanks(std::mt19937_64& random, const Manifest& manifest) {
  std::vector<Layout> layouts;
  const size_t ranks = 1 + Below(random, 4);
  for (size_t rank = 0; rank < ranks; ++rank) {
    LayoutBuilder builder(manifest);
    const StridedView buffer = builder.Buffer({"B", Dtype::kBF16, {4096}});
    uint64_t next = 0;
    if (rank == 0) PlaceAnyhow(random, builder, builder.Tensor("t"), buffer, next);
    for (size_t i = Below(random, 3); i > 0; --i) {
      PlaceAnyhow(random, builder, RandomPart(random, builder.Tensor("t")), buffer, next);
    }
    auto layout = builder.Build(1);
    REQUIRE_OK(layout);
    layouts.push_back(*std::move(layout));
  }
  return layouts;
}

TEST_CASE("regions: they partition the tensor, and cells are the places of placements") {
  std::mt19937_64 random(TestSeed("regions"));
  size_t refused = 0;
  size_t cut = 0;
  for (int round = 0; round < 600; ++round) {
    Shape shape = {1 + Below(random, 6), 1 + Below(random, 8)};
    if (Below(random, 2) == 0) shape.push_back(1 + Below(random, 6));
    const Manifest manifest = MakeManifest({{"t", Dtype::kBF16, shape}});
    const std::vector<Layout> layouts = RandomRanks(random, manifest);
    const auto map = RegionMap::Create(manifest, Pointers(layouts));
    if (!map.ok()) {
      REQUIRE_ERROR(map, kInvalid, "have no common grid");
      ++refused;
      continue;
    }
    // Each placement's elements, at its places, are those of its cells, each once.
    std::map<uint64_t, uint32_t> region_of;  // by element
    for (uint32_t rank = 0; rank < layouts.size(); ++rank) {
      std::vector<std::set<std::pair<uint64_t, uint64_t>>> found(layouts[rank].placements().size());
      uint32_t previous = 0;
      for (const Cell& cell : map->cells(rank)) {
        REQUIRE(cell.placement >= previous);
        previous = cell.placement;
        const Placement& placement = layouts[rank].placements()[cell.placement];
        REQUIRE(cell.box.tensor == placement.tensor);
        REQUIRE(cell.box.buffer == placement.buffer);
        const auto elements = ElementsOf(cell.box);
        REQUIRE(elements.size() == map->regions()[cell.region].elements);
        for (const auto& element : elements) {
          REQUIRE(found[cell.placement].insert(element).second);
          REQUIRE(region_of.emplace(element.first, cell.region).first->second == cell.region);
        }
      }
      for (size_t i = 0; i < found.size(); ++i) {
        const auto elements = ElementsOf(layouts[rank].placements()[i]);
        REQUIRE(found[i] ==
                std::set<std::pair<uint64_t, uint64_t>>(elements.begin(), elements.end()));
      }
      cut += map->cells(rank).size() > layouts[rank].placements().size();
    }
    REQUIRE(region_of.size() == manifest.tensor(0).elements);
    // Holders are the cells, first cells are one each, regions ascend.
    size_t holders = 0;
    uint64_t first_element = 0;
    for (const Region& region : map->regions()) {
      const auto of_region = map->holders(region);
      holders += of_region.size();
      REQUIRE(std::is_sorted(of_region.begin(), of_region.end()));
      for (size_t i = 0; i < of_region.size(); ++i) {
        const Cell& cell = map->cells(of_region[i].rank)[of_region[i].cell];
        REQUIRE(&map->regions()[cell.region] == &region);
        REQUIRE(cell.is_first == (i == 0));
        REQUIRE((&region == map->regions().begin() || i > 0 ||
                 cell.box.checkpoint_offset > first_element));
        first_element = cell.box.checkpoint_offset;
      }
    }
    size_t cells = 0;
    for (uint32_t rank = 0; rank < layouts.size(); ++rank) cells += map->cells(rank).size();
    REQUIRE(holders == cells);
  }
  REQUIRE(refused < 300);
  REQUIRE(cut > 100);
}

TEST_CASE("coverage: agrees with a map of all elements") {
  std::mt19937_64 random(TestSeed("coverage"));
  size_t covered = 0;
  for (int round = 0; round < 400; ++round) {
    const Manifest manifest = MakeManifest({{"t", Dtype::kBF16, {4, 6}}});
    std::vector<Layout> layouts;
    std::set<uint64_t> held;
    for (size_t rank = 0; rank < 3; ++rank) {
      LayoutBuilder builder(manifest);
      const StridedView buffer = builder.Buffer({"B", Dtype::kBF16, {4096}});
      uint64_t next = 0;
      for (int i = 0; i < 4; ++i) {
        StridedView part = builder.Tensor("t");
        const uint64_t row = Below(random, 4);
        part = part.Slice(0, row, row + 1 + Below(random, 4 - row));
        if (Below(random, 2) == 0) part = part.Slice(1, Below(random, 4), 6);
        PlaceAnyhow(random, builder, part, buffer, next);
      }
      layouts.push_back(*builder.Build(1));
      for (const Placement& placement : layouts.back().placements()) {
        for (const auto& element : ElementsOf(placement)) held.insert(element.first);
      }
    }
    const absl::Status status = CheckCoverage(manifest, Pointers(layouts));
    if (held.size() == 24) {
      REQUIRE_OK(status);
      ++covered;
    } else {
      REQUIRE_ERROR(status, kInvalid,
                    absl::StrCat("elements that no rank has: 't' (", 24 - held.size(), " of 24)"));
    }
  }
  REQUIRE(covered > 20);
  REQUIRE(covered < 380);
}

// `rows` of a matrix 't' on each rank.
Layout RowsLayout(const Manifest& manifest, uint64_t begin, uint64_t end) {
  LayoutBuilder builder(manifest);
  const StridedView t = builder.Tensor("t");
  const StridedView buffer = builder.Buffer({"B", Dtype::kBF16, {t.count(0), t.count(1)}});
  builder.Place(t.Slice(0, begin, end), buffer.Slice(0, begin, end));
  return *builder.Build(1);
}

TEST_CASE("coverage: ignored tensors, aliases and empty tensors") {
  const Manifest manifest = MakeManifest({{"a", Dtype::kF32, {2}},
                                          {"b", Dtype::kF32, {2}},
                                          {"none", Dtype::kF32, {0, 4}},
                                          {"table", Dtype::kF32, {4}}});
  const auto build = [&](bool place, bool tie, bool ignore, bool table) {
    LayoutBuilder builder(manifest);
    const StridedView buffer = builder.Buffer({"B", Dtype::kF32, {6}});
    if (place) builder.Place(builder.Tensor("a"), buffer.Slice(0, 0, 2));
    if (tie) builder.Alias(std::vector<std::string_view>{"a", "b"});
    if (ignore) builder.Ignore("table");
    if (table) builder.Place(builder.Tensor("table").Slice(0, 0, 3), buffer.Slice(0, 2, 5));
    auto layout = builder.Build(1);
    REQUIRE_OK(layout);
    return *std::move(layout);
  };
  const std::vector<Layout> whole = {build(true, true, false, false),
                                     build(false, true, true, false)};
  REQUIRE_OK(CheckCoverage(manifest, Pointers(whole)));
  const auto map = RegionMap::Create(manifest, Pointers(whole));
  REQUIRE_OK(map);
  REQUIRE(map->regions().size() == 1);
  REQUIRE(map->regions(0).size() == 1);
  REQUIRE(map->regions(1).empty());
  REQUIRE(map->tensors() == 4);

  const std::vector<Layout> unlike = {build(true, true, true, false),
                                      build(true, false, true, false)};
  REQUIRE_ERROR(CheckCoverage(manifest, Pointers(unlike)), kInvalid,
                "ranks 0 and 1 have unlike alias groups");
  const std::vector<Layout> lacking = {build(false, false, false, false)};
  REQUIRE_ERROR(CheckCoverage(manifest, Pointers(lacking)), kInvalid,
                "'a' (2 of 2), 'b' (2 of 2), 'table' (4 of 4)");
  // Ignored by one rank, but another begins to hold it.
  const std::vector<Layout> partly = {build(true, true, true, false),
                                      build(true, true, false, true)};
  REQUIRE_ERROR(CheckCoverage(manifest, Pointers(partly)), kInvalid, "'table' (1 of 4)");
  REQUIRE_ERROR(CheckCoverage(manifest, {}), kInvalid, "at least one rank");
  const Manifest other = MakeManifest({{"a", Dtype::kF32, {2}}});
  REQUIRE_ERROR(CheckCoverage(other, Pointers(whole)), kInvalid,
                "the layout of rank 0 is for a checkpoint of 4 tensors, not 1");
}

TEST_CASE("regions: the usual case is one region a placement") {
  const Manifest manifest = MakeManifest({{"t", Dtype::kBF16, {8, 6}}});
  // KV heads replicated in pairs of ranks.
  std::vector<Layout> layouts;
  for (const uint64_t head : {0, 0, 1, 1}) {
    layouts.push_back(RowsLayout(manifest, head * 4, head * 4 + 4));
  }
  const auto map = RegionMap::Create(manifest, Pointers(layouts));
  REQUIRE_OK(map);
  REQUIRE(map->regions().size() == 2);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    REQUIRE(map->cells(rank).size() == 1);
    REQUIRE(map->cells(rank)[0].region == rank / 2);
    REQUIRE(map->cells(rank)[0].box == layouts[rank].placements()[0]);
    REQUIRE(map->cells(rank)[0].is_first == (rank % 2 == 0));
  }
  REQUIRE(map->holders(map->regions()[1])[1] == RegionHolder{3, 0});
  // The digest names the layouts and their order.
  std::swap(layouts[0], layouts[2]);
  REQUIRE(RegionMap::Create(manifest, Pointers(layouts))->digest() != map->digest());
}

TEST_CASE("regions: placements without a common grid are refused by name") {
  const Manifest manifest = MakeManifest({{"t", Dtype::kBF16, {35}}});
  std::vector<Layout> layouts;
  for (const uint64_t step : {5, 7, 1}) {
    LayoutBuilder builder(manifest);
    const StridedView part = builder.Tensor("t").Slice(0, 0, 35, step);
    builder.Place(part, builder.Buffer({"B", Dtype::kBF16, {part.count(0)}}));
    layouts.push_back(*builder.Build(1));
  }
  REQUIRE_ERROR(RegionMap::Create(manifest, Pointers(layouts)), kInvalid,
                "'t': placements that meet have no common grid: steps of 7 and 5 elements");
  REQUIRE_ERROR(CheckCoverage(manifest, Pointers(layouts)), kInvalid, "no common grid");
}

// Sums of all cells, from memory that is right but for changes.
class SumFixture {
 public:
  SumFixture(const Manifest& manifest, const std::vector<Layout>& layouts)
      : manifest_(manifest),
        layouts_(layouts),
        map_(*RegionMap::Create(manifest, Pointers(layouts))),
        key_(Sha256().Update("sum fixture").Finish()) {
    std::mt19937_64 random(1);  // of no account: any content will do
    for (const Manifest::Tensor& tensor : manifest.tensors()) {
      checkpoint_.emplace_back(tensor.size_bytes());
      for (uint8_t& byte : checkpoint_.back()) byte = static_cast<uint8_t>(random());
      tensor_sums_.push_back(
          TensorFingerprinter(key_, tensor.spec.name).Sum(0, checkpoint_.back()));
    }
    for (const Layout& layout : layouts) {
      memory_.emplace_back();
      for (uint32_t b = 0; b < layout.buffers().size(); ++b) {
        memory_.back().emplace_back(layout.buffer_bytes(b));
      }
      for (const Placement& placement : layout.placements()) {
        const uint32_t width = manifest.tensor(placement.tensor).element_bytes;
        for (const auto& [from, to] : ElementsOf(placement)) {
          std::copy_n(&checkpoint_[placement.tensor][from * width], width,
                      &memory_.back()[placement.buffer][to * width]);
        }
      }
    }
  }

  const RegionMap& map() const { return map_; }
  const std::vector<Fingerprint>& tensor_sums() const { return tensor_sums_; }
  uint8_t& byte(uint32_t rank, uint32_t buffer, size_t offset) {
    return memory_[rank][buffer][offset];
  }

  std::vector<std::vector<Fingerprint>> CellSums() const {
    std::vector<std::vector<Fingerprint>> sums(layouts_.size());
    for (uint32_t rank = 0; rank < layouts_.size(); ++rank) {
      for (const Cell& cell : map_.cells(rank)) {
        const Manifest::Tensor& tensor = manifest_.tensor(cell.box.tensor);
        const TensorFingerprinter fingerprinter(key_, tensor.spec.name);
        Fingerprint sum;
        for (const auto& [from, to] : ElementsOf(cell.box)) {
          const uint8_t* at = &memory_[rank][cell.box.buffer][to * tensor.element_bytes];
          sum += fingerprinter.Sum(from * tensor.element_bytes, {at, tensor.element_bytes});
        }
        sums[rank].push_back(sum);
      }
    }
    return sums;
  }

  std::vector<SumFault> Judge() const { return JudgeSums(map_, CellSums(), tensor_sums_); }

 private:
  const Manifest& manifest_;
  const std::vector<Layout>& layouts_;
  RegionMap map_;
  FingerprintKey key_;
  std::vector<std::vector<uint8_t>> checkpoint_;
  std::vector<std::vector<std::vector<uint8_t>>> memory_;  // by rank, by buffer
  std::vector<Fingerprint> tensor_sums_;
};

TEST_CASE("sums: those of regions add up to the fingerprint, however tensors are cut") {
  std::mt19937_64 random(TestSeed("region sums"));
  for (int round = 0; round < 60; ++round) {
    const Manifest manifest =
        MakeManifest({{"t", Dtype::kBF16, {1 + Below(random, 6), 1 + Below(random, 8), 3}}});
    const std::vector<Layout> layouts = RandomRanks(random, manifest);
    if (!RegionMap::Create(manifest, Pointers(layouts)).ok()) continue;
    SumFixture fixture(manifest, layouts);
    REQUIRE(fixture.Judge().empty());

    const std::vector<Fingerprint> regions = RegionSums(fixture.map(), fixture.CellSums());
    Fingerprint all;
    for (const Fingerprint& region : regions) all += region;
    REQUIRE(all == fixture.tensor_sums()[0]);

    // The fast path: one total per rank.
    const auto sums = fixture.CellSums();
    const std::vector<Fingerprint> totals = RankTotals(fixture.map(), regions);
    Fingerprint of_first_cells;
    for (uint32_t rank = 0; rank < layouts.size(); ++rank) {
      Fingerprint total;
      for (size_t i = 0; i < sums[rank].size(); ++i) {
        total += sums[rank][i];
        if (fixture.map().cells(rank)[i].is_first) of_first_cells += sums[rank][i];
      }
      REQUIRE(total == totals[rank]);
    }
    REQUIRE(of_first_cells == fixture.tensor_sums()[0]);

    // One flipped bit anywhere that is placed is found, on the right rank or on all that it may be.
    const auto rank = static_cast<uint32_t>(Below(random, layouts.size()));
    if (layouts[rank].placements().empty()) continue;
    const auto elements = ElementsOf(layouts[rank].placements()[0]);
    const uint64_t to = elements[Below(random, elements.size())].second;
    fixture.byte(rank, 0, to * 2 + Below(random, 2)) ^= 1 << Below(random, 8);
    const std::vector<SumFault> faults = fixture.Judge();
    REQUIRE(faults.size() == 1);
    REQUIRE(std::count(faults[0].ranks.begin(), faults[0].ranks.end(), rank) == 1);
  }
}

TEST_CASE("sums: the verdict names ranks and tensors") {
  const Manifest manifest =
      MakeManifest({{"norm", Dtype::kBF16, {6}}, {"t", Dtype::kBF16, {8, 2}}});
  const auto ranks = [&](const std::vector<std::pair<uint64_t, uint64_t>>& rows) {
    std::vector<Layout> layouts;
    for (const auto& [begin, end] : rows) {
      LayoutBuilder builder(manifest);
      builder.Place(builder.Tensor("norm"), builder.Buffer({"n", Dtype::kBF16, {6}}));
      const StridedView t = builder.Buffer({"t", Dtype::kBF16, {8, 2}});
      builder.Place(builder.Tensor("t").Slice(0, begin, end), t.Slice(0, 0, end - begin));
      layouts.push_back(*builder.Build(1));
    }
    return layouts;
  };
  const auto three = ranks({{0, 4}, {0, 4}, {4, 8}});
  {
    SumFixture fixture(manifest, three);
    REQUIRE(fixture.Judge().empty());
    // One of three copies.
    fixture.byte(1, 0, 3) ^= 1;
    REQUIRE(fixture.Judge() == std::vector<SumFault>{{Kind::kReplicasDiffer, 0, {1}}});
    REQUIRE(ToString(fixture.Judge()[0], manifest) ==
            "tensor 'norm': rank 1 differs from the right copies");
    // Two of three are wrong alike: the tensor's sum knows better than the majority.
    fixture.byte(2, 0, 3) ^= 1;
    REQUIRE(fixture.Judge() == std::vector<SumFault>{{Kind::kReplicasDiffer, 0, {1, 2}}});
    REQUIRE(ToString(fixture.Judge()[0], manifest) ==
            "tensor 'norm': ranks 1, 2 differ from the right copies");
    // All are wrong alike.
    fixture.byte(0, 0, 3) ^= 1;
    REQUIRE(fixture.Judge() == std::vector<SumFault>{{Kind::kTensorWrong, 0, {0, 1, 2}}});
    REQUIRE(ToString(fixture.Judge()[0], manifest) ==
            "tensor 'norm': the parts on ranks 0, 1, 2 do not add up to its fingerprint");
    // None is right, but two agree.
    fixture.byte(2, 0, 3) ^= 2;
    REQUIRE(fixture.Judge() == std::vector<SumFault>{{Kind::kReplicasDiffer, 0, {2}}});
    // All three differ, and none is right.
    fixture.byte(1, 0, 3) ^= 4;
    REQUIRE(fixture.Judge() == std::vector<SumFault>{{Kind::kReplicasUnsure, 0, {0, 1, 2}}});
    REQUIRE(ToString(fixture.Judge()[0], manifest) ==
            "tensor 'norm': the copies on ranks 0, 1, 2 differ, and which is right cannot be told");
  }
  {
    // One of two copies: told by the sum, as long as the rest of the tensor is right.
    SumFixture fixture(manifest, three);
    fixture.byte(1, 1, 0) ^= 1;
    REQUIRE(fixture.Judge() == std::vector<SumFault>{{Kind::kReplicasDiffer, 1, {1}}});
    fixture.byte(2, 1, 0) ^= 1;
    REQUIRE(fixture.Judge() == std::vector<SumFault>{{Kind::kReplicasUnsure, 1, {0, 1}}});
  }
  {
    // A region held once: all that hold a part of the tensor are named.
    SumFixture fixture(manifest, three);
    fixture.byte(2, 1, 0) ^= 1;
    REQUIRE(fixture.Judge() == std::vector<SumFault>{{Kind::kTensorWrong, 1, {0, 1, 2}}});
    const auto totals = RankTotals(fixture.map(), RegionSums(fixture.map(), fixture.CellSums()));
    REQUIRE(totals.size() == 3);
  }
  {
    // Two regions in dispute: two copies each cannot be told, three can by majority.
    const auto five = ranks({{0, 4}, {0, 4}, {4, 8}, {4, 8}, {4, 8}});
    SumFixture fixture(manifest, five);
    fixture.byte(0, 1, 0) ^= 1;
    fixture.byte(3, 1, 0) ^= 1;
    REQUIRE(fixture.Judge() == std::vector<SumFault>{{Kind::kReplicasDiffer, 1, {3}},
                                                     {Kind::kReplicasUnsure, 1, {0, 1}}});
  }
}

}  // namespace
}  // namespace wstore
