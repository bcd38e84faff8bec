// Updates that go well, on layouts of all kinds, against the dense reference.
#include <cstring>

#include "tests/conformance/replica/instance.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "wstore/layout_builder.h"

namespace wstore::testing {
namespace {

constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

Layout Build(LayoutBuilder& builder) {
  absl::StatusOr<Layout> layout = builder.Build(1);
  REQUIRE_OK(layout);
  return *std::move(layout);
}

// Tensors of every width, of several tiles, of one element and of none.
Manifest MixedManifest() {
  return MakeManifest({{"a.bf16", Dtype::kBF16, {200, 400}},
                       {"b.f8", Dtype::kF8E4M3, {70001}},
                       {"c.f4", Dtype::kF4, {100, 64}},
                       {"d.f32", Dtype::kF32, {40, 30}},
                       {"e.f64", Dtype::kF64, {17}},
                       {"f.i8", Dtype::kI8, {3, 5, 7}},
                       {"g.empty", Dtype::kBF16, {0, 4}},
                       {"h.scalar", Dtype::kF16, {}},
                       {"i.bool", Dtype::kBool, {9}}});
}

TEST_CASE("replica: updates of every width and density, forwards, backwards and by composition") {
  std::mt19937_64 random(TestSeed("replica widths"));
  const Manifest manifest = MixedManifest();
  Publisher publisher(manifest, RandomModel(manifest, random));
  const int threads = GENERATE(1, 4);
  Instance instance(manifest, publisher.key(), {WholeLayout(manifest)}, {.threads = threads});
  instance.Load(publisher);
  // Few, many, nearly all, all.
  for (const uint64_t count : {1, 100, 3000, 40000, 200000}) {
    const Update update = publisher.Publish(RandomChanges(manifest, count, random));
    REQUIRE_OK(instance.Run(update));
    publisher.Commit(update);
    REQUIRE(instance.Holds(publisher.model()));
    REQUIRE_OK(
        instance.replica(0).ProveAlone(publisher.head(), publisher.move(), publisher.sums()));
  }
  for (const auto& [from, to] : {std::pair{5, 3}, {3, 0}, {0, 4}, {4, 5}}) {
    const Update update =
        publisher.Between(VersionId(from), VersionId(to), ChangeReason::kRollback);
    REQUIRE_OK(instance.Run(update));
    publisher.Commit(update);
    REQUIRE(instance.Holds(publisher.model(VersionId(to))));
  }
}

TEST_CASE("replica: bits are bits, whatever they mean as numbers", "[small]") {
  const Manifest manifest = MakeManifest({{"bf16", Dtype::kBF16, {4}},
                                          {"f32", Dtype::kF32, {2}},
                                          {"f4", Dtype::kF4, {4}},
                                          {"f8", Dtype::kF8E5M2, {3}},
                                          {"i8", Dtype::kI8, {2}}});
  // Quiet and signalling NaNs with payloads, both zeros, infinities, and two packed numbers a byte.
  const Model from{{0x01, 0x7f, 0x80, 0x7f, 0x00, 0x00, 0xff, 0xff},
                   {0x01, 0x00, 0x80, 0x7f, 0x00, 0x00, 0x00, 0x80},
                   {0x8f, 0x10},
                   {0x7d, 0x00, 0xfc},
                   {0x80, 0x7f}};
  const Model to{{0x02, 0x7f, 0x81, 0xff, 0x00, 0x80, 0xfe, 0xff},
                 {0x01, 0x00, 0xc0, 0x7f, 0x00, 0x00, 0x00, 0x00},
                 {0x8e, 0x20},
                 {0x7e, 0x80, 0x7c},
                 {0x7f, 0x80}};
  Publisher publisher(manifest, from);
  Instance instance(manifest, publisher.key(), {WholeLayout(manifest)}, {});
  instance.Load(publisher);
  const Update update = publisher.Publish(Difference(manifest, from, to));
  REQUIRE_OK(instance.Run(update));
  REQUIRE(instance.Holds(to));
  publisher.Commit(update);
  const Update back = publisher.Between(VersionId(1), VersionId(0), ChangeReason::kRollback);
  REQUIRE_OK(instance.Run(back));
  REQUIRE(instance.Holds(from));
}

TEST_CASE("A11 one element of one expert changes one rank, and all ranks move", "[small]") {
  std::mt19937_64 random(TestSeed("A11"));
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 8; ++i) {
    specs.push_back({"experts." + std::to_string(i) + ".w", Dtype::kBF16, {16, 24}});
  }
  const Manifest manifest = MakeManifest(specs);
  Publisher publisher(manifest, RandomModel(manifest, random));
  std::vector<Layout> layouts;
  for (uint64_t rank = 0; rank < 4; ++rank) {
    LayoutBuilder builder(manifest);
    const StridedView stacked = builder.Buffer({"experts", Dtype::kBF16, {2, 16, 32}});
    for (uint64_t i = 0; i < 2; ++i) {
      builder.Place(builder.Tensor(2 * rank + i), stacked.Select(0, i).Slice(1, 0, 24));
    }
    layouts.push_back(Build(builder));
  }
  Instance instance(manifest, publisher.key(), std::move(layouts), {});
  instance.Load(publisher);
  for (const auto& [expert, owner] : {std::pair{7, 3}, {0, 0}}) {
    const Model before = publisher.model();
    const Update update = publisher.Publish({{{static_cast<TensorIndex>(expert), 77}, 0x8001}});
    REQUIRE_OK(instance.Run(update));
    publisher.Commit(update);
    for (uint32_t rank = 0; rank < 4; ++rank) {
      const bool is_owner = rank == static_cast<uint32_t>(owner);
      CAPTURE(expert, rank);
      REQUIRE(instance.Holds(rank, publisher.model()));
      REQUIRE(instance.Holds(rank, before) == !is_owner);
      REQUIRE(instance.replica(rank).status().version == publisher.head());
      REQUIRE(instance.events(rank).back().elements == (is_owner ? 1 : 0));
    }
  }
}

TEST_CASE("A12 replicated key and value heads all change, and nothing else", "[small]") {
  std::mt19937_64 random(TestSeed("A12"));
  constexpr uint64_t kHead = 4;
  constexpr uint64_t kHidden = 48;
  constexpr uint64_t kQueryHeads = 8;
  const Manifest manifest = MakeManifest({{"k", Dtype::kBF16, {2 * kHead, kHidden}},
                                          {"q", Dtype::kBF16, {kQueryHeads * kHead, kHidden}},
                                          {"v", Dtype::kBF16, {2 * kHead, kHidden}}});
  const uint64_t ranks = GENERATE(4, 8);
  Publisher publisher(manifest, RandomModel(manifest, random));
  std::vector<Layout> layouts;
  for (uint64_t rank = 0; rank < ranks; ++rank) {
    const uint64_t query_rows = kQueryHeads / ranks * kHead;
    const uint64_t head = rank * 2 / ranks;
    LayoutBuilder builder(manifest);
    const StridedView fused =
        builder.Buffer({"qkv", Dtype::kBF16, {query_rows + 2 * kHead, kHidden}});
    builder.Place(builder.Tensor("q").Slice(0, rank * query_rows, (rank + 1) * query_rows),
                  fused.Slice(0, 0, query_rows));
    builder.Place(builder.Tensor("k").Slice(0, head * kHead, (head + 1) * kHead),
                  fused.Slice(0, query_rows, query_rows + kHead));
    builder.Place(builder.Tensor("v").Slice(0, head * kHead, (head + 1) * kHead),
                  fused.Slice(0, query_rows + kHead, query_rows + 2 * kHead));
    layouts.push_back(Build(builder));
  }
  Instance instance(manifest, publisher.key(), std::move(layouts), {});
  instance.Load(publisher);
  // Row 5 is in the second head: the upper half of the ranks has it.
  const Update update =
      publisher.Publish({{{0, 5 * kHidden + 7}, 0x0101}, {{2, 5 * kHidden + 9}, 0x0202}});
  REQUIRE_OK(instance.Run(update));
  publisher.Commit(update);
  REQUIRE(instance.Holds(publisher.model()));
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    REQUIRE(instance.events(rank).back().elements == (rank < ranks / 2 ? 0 : 2));
    REQUIRE(instance.replica(rank).status().version == publisher.head());
  }
  // One replica that differs from the other is found, whatever the update says.
  const Update second = publisher.Publish({{{0, 5 * kHidden + 7}, 0x0101}});
  const uint64_t row = kQueryHeads / ranks * kHead + 1;
  instance.Flip(static_cast<uint32_t>(ranks - 1), 0, (row * kHidden + 7) * 2, 0x10);
  REQUIRE_ERROR(instance.Stage(second), absl::StatusCode::kDataLoss,
                "rank " + std::to_string(ranks - 1) + " differs");
}

TEST_CASE("A26 one event per change of version, none on failure or no change", "[small]") {
  std::mt19937_64 random(TestSeed("A26"));
  const Manifest manifest = MixedManifest();
  Publisher publisher(manifest, RandomModel(manifest, random));
  Instance instance(manifest, publisher.key(), {WholeLayout(manifest)}, {});
  Replica& replica = instance.replica(0);
  instance.Load(publisher);
  REQUIRE(instance.events(0).empty());

  const Update v1 = publisher.Publish(RandomChanges(manifest, 50, random));
  REQUIRE_OK(instance.Stage(v1));
  REQUIRE_OK(instance.Apply(v1));
  REQUIRE(instance.events(0).empty());
  REQUIRE_OK(instance.Commit(v1));
  publisher.Commit(v1);
  REQUIRE(instance.events(0).size() == 1);
  REQUIRE(instance.events(0)[0].from == publisher.name(VersionId(0)));
  REQUIRE(instance.events(0)[0].to == publisher.name(VersionId(1)));
  REQUIRE(instance.events(0)[0].reason == ChangeReason::kPublish);
  REQUIRE(instance.events(0)[0].move == v1.header.move);

  // The same again, in any of its steps.
  const absl::StatusOr<bool> again = replica.BeginUpdate(v1.header);
  REQUIRE_OK(again);
  REQUIRE_FALSE(*again);
  REQUIRE_OK(replica.StageChunk(v1.chunks[0]));
  REQUIRE_OK(replica.Apply(v1.header.transaction));
  REQUIRE_OK(replica.Commit(v1.header.transaction));
  REQUIRE_ERROR(replica.Abort(v1.header.transaction), kPrecondition, "is committed here");
  REQUIRE(instance.events(0).size() == 1);
  REQUIRE(instance.Holds(publisher.model()));

  // An aborted one.
  const Update v2 = publisher.Publish(RandomChanges(manifest, 50, random));
  REQUIRE_OK(instance.Stage(v2));
  REQUIRE_OK(instance.Apply(v2));
  REQUIRE(instance.Holds(v2.result));
  REQUIRE_OK(instance.Abort(v2));
  REQUIRE_OK(instance.Abort(v2));
  REQUIRE(instance.Holds(publisher.model()));
  REQUIRE(instance.events(0).size() == 1);

  // A rollback.
  const Update back = publisher.Between(VersionId(1), VersionId(0), ChangeReason::kRollback);
  REQUIRE_OK(instance.Run(back));
  publisher.Commit(back);
  REQUIRE(instance.events(0).size() == 2);
  REQUIRE(instance.events(0)[1].to == publisher.name(VersionId(0)));
  REQUIRE(instance.events(0)[1].reason == ChangeReason::kRollback);

  // A head move that leads to where it came from.
  const Update nothing = publisher.Between(VersionId(0), VersionId(0), ChangeReason::kRollback);
  REQUIRE_OK(instance.Run(nothing));
  REQUIRE(instance.events(0).size() == 2);
  REQUIRE(replica.status().move == nothing.header.move);
}

TEST_CASE("A22 a replica restarted from base catches up in one step, then follows") {
  std::mt19937_64 random(TestSeed("A22"));
  const Manifest manifest = MixedManifest();
  Publisher publisher(manifest, RandomModel(manifest, random));
  for (int i = 0; i < 12; ++i)
    publisher.Commit(publisher.Publish(RandomChanges(manifest, 20, random)));
  Instance instance(manifest, publisher.key(), {WholeLayout(manifest)}, {});
  Replica& replica = instance.replica(0);
  instance.Write(publisher.model(VersionId(0)));
  REQUIRE(replica.status().state == ReplicaState::kUnproven);
  REQUIRE_FALSE(replica.status().version.has_value());
  // It does not pass for what it is not.
  REQUIRE_ERROR(replica.ProveAlone(publisher.head(), publisher.move(), publisher.sums()),
                absl::StatusCode::kDataLoss, "does not hold v12");
  REQUIRE_OK(replica.ProveAlone(publisher.name(VersionId(0)), publisher.move(),
                                SumsOf(manifest, publisher.key(), publisher.model(VersionId(0)))));
  REQUIRE(replica.status().version->version == VersionId(0));

  const Update v13 = publisher.Publish(RandomChanges(manifest, 20, random));
  REQUIRE_ERROR(replica.BeginUpdate(v13.header), kPrecondition, "it needs version v12");
  const Update catch_up = publisher.Between(VersionId(0), VersionId(12), ChangeReason::kCatchUp);
  REQUIRE_OK(instance.Run(catch_up));
  publisher.Commit(catch_up);
  REQUIRE(instance.Holds(publisher.model()));
  REQUIRE(instance.events(0).back().reason == ChangeReason::kCatchUp);
  const Update next = publisher.Publish(RandomChanges(manifest, 20, random));
  REQUIRE_OK(instance.Run(next));
  REQUIRE(instance.Holds(next.result));
}

TEST_CASE("replica: a patch set is staged as a whole from a source") {
  std::mt19937_64 random(TestSeed("replica source"));
  const Manifest manifest = MixedManifest();
  Publisher publisher(manifest, RandomModel(manifest, random));
  Instance instance(manifest, publisher.key(), {WholeLayout(manifest)}, {});
  instance.Load(publisher);
  const Update update = publisher.Publish(RandomChanges(manifest, 4000, random));
  const ModelSource old_source(publisher.model());
  const ModelSource new_source(update.result);
  const auto from = MakeDense(manifest, old_source);
  const auto to = MakeDense(manifest, new_source);
  const auto difference = MakeDiff(manifest, *from, *to);
  Replica& replica = instance.replica(0);
  REQUIRE_OK(replica.BeginUpdate(update.header));
  const absl::StatusOr<ContributorContent> content = replica.StageAll(*difference);
  REQUIRE_OK(content);
  // The digest does not depend on how chunks were cut.
  REQUIRE(content->digest == update.summary.contents[0].digest);
  UpdateSummary summary = update.summary;
  summary.contents = {*content};
  REQUIRE_OK(replica.FinishStaging(summary));
  REQUIRE(replica.status().state == ReplicaState::kApproved);
  REQUIRE_OK(replica.Apply(update.header.transaction));
  REQUIRE_OK(replica.Commit(update.header.transaction));
  REQUIRE(instance.Holds(update.result));
}

TEST_CASE("replica: places far apart, transposed, blocked, interleaved and repeated", "[small]") {
  std::mt19937_64 random(TestSeed("replica places"));
  const Manifest manifest = MakeManifest({{"g", Dtype::kBF16, {64, 96}},
                                          {"t", Dtype::kBF16, {700, 200}},
                                          {"u", Dtype::kBF16, {64, 96}},
                                          {"w", Dtype::kF32, {32, 64}}});
  Publisher publisher(manifest, RandomModel(manifest, random));
  std::vector<Layout> layouts;
  for (uint64_t rank = 0; rank < 2; ++rank) {
    LayoutBuilder builder(manifest);
    // Gate and up rows that alternate.
    const StridedView gate_up = builder.Buffer({"gate_up", Dtype::kBF16, {64, 96}});
    builder.Place(builder.Tensor("g").Slice(0, 32 * rank, 32 * rank + 32),
                  gate_up.Slice(0, 0, 64, 2));
    builder.Place(builder.Tensor("u").Slice(0, 32 * rank, 32 * rank + 32),
                  gate_up.Slice(0, 1, 64, 2));
    // Columns, transposed, in rows far longer than the tensor's.
    const StridedView transposed = builder.Buffer({"transposed", Dtype::kBF16, {100, 9000}});
    builder.Place(builder.Tensor("t").Slice(1, 100 * rank, 100 * rank + 100).Permute({1, 0}),
                  transposed.Slice(1, 0, 700));
    // Blocks of 16 columns that lie together; and a second copy as it is.
    const StridedView blocked = builder.Buffer({"blocked", Dtype::kF32, {4, 32, 16}});
    builder.Place(builder.Tensor("w").Split(1, 16).Permute({1, 0, 2}), blocked);
    builder.Place(builder.Tensor("w"), builder.Buffer({"copy", Dtype::kF32, {32, 64}}));
    layouts.push_back(Build(builder));
  }
  Instance instance(manifest, publisher.key(), std::move(layouts), {});
  instance.Load(publisher);
  for (const uint64_t count : {1, 40, 3000, 40000}) {
    const Update update = publisher.Publish(RandomChanges(manifest, count, random));
    REQUIRE_OK(instance.Stage(update));
    REQUIRE_OK(instance.Apply(update));
    REQUIRE(instance.Holds(update.result));
    REQUIRE_OK(instance.Abort(update));
    REQUIRE(instance.Holds(publisher.model()));
    const Update again = publisher.Publish(Difference(manifest, publisher.model(), update.result));
    REQUIRE_OK(instance.Run(again));
    publisher.Commit(again);
    REQUIRE(instance.Holds(publisher.model()));
  }
  ModelSource source(publisher.model());
  instance.Write(publisher.model(VersionId(0)));
  for (uint32_t rank = 0; rank < 2; ++rank) {
    REQUIRE_OK(instance.replica(rank).Load(*MakeDense(manifest, source)));
  }
  REQUIRE_OK(instance.Prove(publisher));
  REQUIRE(instance.Holds(publisher.model()));
}

}  // namespace
}  // namespace wstore::testing
