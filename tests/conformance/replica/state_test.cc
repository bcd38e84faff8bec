// What a replica accepts in which state, and what it says when it does not.
#include "common/status_macros.h"
#include "tests/conformance/replica/instance.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "wstore/layout_builder.h"

namespace wstore::testing {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

struct Rig {
  explicit Rig(uint64_t seed, uint64_t undo_budget_bytes = 1 << 20,
               uint64_t stage_budget_bytes = UINT64_MAX)
      : random(seed),
        manifest(MakeManifest({{"a", Dtype::kBF16, {400, 300}}, {"b", Dtype::kF32, {50, 20}}})),
        publisher(manifest, RandomModel(manifest, random)),
        instance(
            manifest, publisher.key(), {WholeLayout(manifest)},
            {.undo_budget_bytes = undo_budget_bytes, .stage_budget_bytes = stage_budget_bytes}) {
    instance.Load(publisher);
  }

  Replica& replica() { return instance.replica(0); }
  Update NewUpdate(uint64_t count = 40) {
    return publisher.Publish(RandomChanges(manifest, count, random));
  }
  // Publishes and follows.
  void Advance(uint64_t count = 40) {
    const Update update = NewUpdate(count);
    REQUIRE_OK(instance.Run(update));
    publisher.Commit(update);
  }
  // Goes back by the replica's own history.
  absl::Status StageBack(const Update& update, bool declared = true) {
    RETURN_IF_ERROR(replica().BeginUpdate(update.header).status());
    RETURN_IF_ERROR(replica().StageFromHistory(update.header.transaction));
    UpdateSummary summary = update.summary;
    if (!declared) summary.declared.reset();
    return replica().FinishStaging(summary).status();
  }

  std::mt19937_64 random;
  const Manifest manifest;
  Publisher publisher;
  Instance instance;
};

TEST_CASE("replica states: an update is refused by name before anything is staged") {
  Rig rig(TestSeed("replica refusals"));
  const Update good = rig.NewUpdate();
  const auto refused = [&](auto change, absl::StatusCode code, const std::string& text) {
    Update update = good;
    change(update.header);
    REQUIRE_ERROR(rig.replica().BeginUpdate(update.header), code, text);
    REQUIRE(rig.replica().status().state == ReplicaState::kReady);
  };
  const std::string base = ToHex(rig.publisher.key().base_digest());
  refused([](UpdateHeader& h) { h.base_digest.bytes[0] ^= 1; }, kPrecondition,
          "the replica has " + base);
  refused([](UpdateHeader& h) { h.from.version = VersionId(7); }, kPrecondition,
          "needs version v7");
  refused([](UpdateHeader& h) { h.from.chain_digest.bytes[3] ^= 1; }, kPrecondition,
          "needs version v0");
  refused([](UpdateHeader& h) { h.parent_move = MoveNumber(99); }, kPrecondition,
          "needs head move 99, the replica has 100");
  refused([](UpdateHeader& h) { h.layout_generation = 2; }, kPrecondition,
          "needs layout generation 2, the replica has 1");
  refused([](UpdateHeader& h) { h.move = h.parent_move; }, kInvalid, "head move 100 after 100");
  refused([](UpdateHeader& h) { h.contributors = 0; }, kInvalid, "0 contributors");

  REQUIRE_OK(rig.instance.Begin(good));
  REQUIRE_OK(rig.instance.Begin(good));
  REQUIRE(rig.replica().pending() == good.header);
  REQUIRE_ERROR(rig.replica().BeginUpdate(rig.NewUpdate().header), kPrecondition,
                "transaction " + std::to_string(good.header.transaction.value()) + " is pending");
  REQUIRE_ERROR(rig.replica().Apply(good.header.transaction), kPrecondition, "is staging");
  REQUIRE_ERROR(rig.replica().Approve(good.header.transaction), kPrecondition, "is staging");
  REQUIRE_ERROR(rig.replica().Commit(good.header.transaction), kPrecondition, "is staging");
  REQUIRE_ERROR(rig.replica().Commit(TransactionNumber(1)), kPrecondition, "transaction 1");
  REQUIRE_OK(rig.replica().Abort(TransactionNumber(1)));
  REQUIRE_OK(rig.replica().Abort(good.header.transaction));
  REQUIRE_FALSE(rig.replica().pending().has_value());
  REQUIRE_OK(rig.instance.Run(good));
  // Its number again, but for another move: not what was committed.
  Update other = good;
  other.header.move = MoveNumber(good.header.move.value() + 1);
  REQUIRE_ERROR(rig.replica().BeginUpdate(other.header), kPrecondition,
                "is committed here as head");
}

TEST_CASE("replica states: v0, v1, back to v0, and a late message of v1's transaction", "[small]") {
  Rig rig(TestSeed("replica late"));
  const Update v1 = rig.NewUpdate();
  REQUIRE_OK(rig.instance.Run(v1));
  rig.publisher.Commit(v1);
  const Update back = rig.publisher.Between(VersionId(1), VersionId(0), ChangeReason::kRollback);
  REQUIRE_OK(rig.instance.Run(back));
  rig.publisher.Commit(back);
  REQUIRE(rig.replica().status().version == v1.header.from);
  REQUIRE_ERROR(rig.replica().BeginUpdate(v1.header), kPrecondition, "needs head move 100");
  REQUIRE_ERROR(rig.replica().StageChunk(v1.chunks[0]), kPrecondition, "no update is pending");
  REQUIRE_ERROR(rig.replica().Apply(v1.header.transaction), kPrecondition, "no update is pending");
  REQUIRE(rig.instance.Holds(rig.publisher.model()));
}

TEST_CASE("replica history: one step back, several, and within a budget") {
  Rig rig(TestSeed("replica history"));
  for (const uint64_t count : {30, 3000, 100000, 20}) rig.Advance(count);
  REQUIRE(rig.replica().history().size() == 4);
  REQUIRE(rig.replica().history()[0] == rig.publisher.name(VersionId(3)));

  // An aborted step leaves the history.
  Update step = rig.publisher.Between(VersionId(4), VersionId(3), ChangeReason::kRollback);
  REQUIRE_OK(rig.StageBack(step));
  REQUIRE_OK(rig.instance.Apply(step));
  REQUIRE(rig.instance.Holds(rig.publisher.model(VersionId(3))));
  REQUIRE_OK(rig.instance.Abort(step));
  REQUIRE(rig.instance.Holds(rig.publisher.model(VersionId(4))));
  REQUIRE(rig.replica().history().size() == 4);

  step = rig.publisher.Between(VersionId(4), VersionId(3), ChangeReason::kRollback);
  REQUIRE_OK(rig.StageBack(step));
  REQUIRE_OK(rig.instance.Apply(step));
  REQUIRE_OK(rig.instance.Commit(step));
  rig.publisher.Commit(step);
  REQUIRE(rig.instance.Holds(rig.publisher.model()));
  REQUIRE(rig.replica().history().size() == 3);
  REQUIRE(rig.instance.events(0).back().to == rig.publisher.name(VersionId(3)));

  // Three at once: each element once, its sums those of the composed difference.
  step = rig.publisher.Between(VersionId(3), VersionId(0), ChangeReason::kRollback);
  REQUIRE_OK(rig.StageBack(step));
  REQUIRE_OK(rig.instance.Apply(step));
  REQUIRE_OK(rig.instance.Commit(step));
  rig.publisher.Commit(step);
  REQUIRE(rig.instance.Holds(rig.publisher.model(VersionId(0))));
  REQUIRE(rig.replica().history().empty());

  // Not there; or another history of the same number.
  rig.Advance();
  step = rig.publisher.Between(VersionId(5), VersionId(2), ChangeReason::kRollback);
  REQUIRE_ERROR(rig.StageBack(step), absl::StatusCode::kNotFound, "v2 is not among the 1 versions");
  REQUIRE_OK(rig.replica().Abort(step.header.transaction));
  step = rig.publisher.Between(VersionId(5), VersionId(0), ChangeReason::kRollback);
  step.summary.to_chain_digest.bytes[9] ^= 1;
  REQUIRE_ERROR(rig.StageBack(step), kPrecondition, "the history leads to v0");
  REQUIRE(rig.replica().status().state == ReplicaState::kReady);
  // Without declared sums it waits for approval, as any update.
  step = rig.publisher.Between(VersionId(5), VersionId(0), ChangeReason::kRollback);
  REQUIRE_OK(rig.StageBack(step, /*declared=*/false));
  REQUIRE(rig.replica().status().state == ReplicaState::kStaged);

  // The oldest go first; what is larger than the budget leaves nothing to go back through.
  Rig small(TestSeed("replica history budget"), /*undo_budget_bytes=*/4096);
  for (int i = 0; i < 6; ++i) small.Advance(100);
  const size_t kept = small.replica().history().size();
  REQUIRE(kept >= 1);
  REQUIRE(kept < 6);
  REQUIRE(small.replica().history()[0] == small.publisher.name(VersionId(5)));
  small.Advance(50000);
  REQUIRE(small.replica().history().empty());
}

TEST_CASE("replica states: invalidated, suspended, placed anew, poisoned, rebuilt", "[small]") {
  Rig rig(TestSeed("replica life"));
  Replica& replica = rig.replica();
  rig.Advance();
  const absl::StatusOr<AuditReport> stale = replica.Audit();
  REQUIRE_OK(stale);

  // While an update is staged, and while one is applied.
  for (const bool is_applied : {false, true}) {
    const Update update = rig.NewUpdate();
    REQUIRE_OK(rig.instance.Stage(update));
    if (is_applied) REQUIRE_OK(rig.instance.Apply(update));
    REQUIRE_OK(replica.Invalidate("an adapter was merged"));
    REQUIRE(replica.status().state == ReplicaState::kUnproven);
    REQUIRE_FALSE(replica.status().version.has_value());
    REQUIRE(replica.detail() == "an adapter was merged");
    REQUIRE_ERROR(replica.Apply(update.header.transaction), kPrecondition, "an adapter was merged");
    REQUIRE_ERROR(replica.Commit(update.header.transaction), kPrecondition, "unproven");
    REQUIRE_ERROR(replica.BeginUpdate(update.header), kPrecondition, "unproven");
    REQUIRE_ERROR(replica.Adopt(*stale, rig.publisher.head(), rig.publisher.move()),
                  absl::StatusCode::kAborted, "audit it again");
    rig.instance.Write(rig.publisher.model());
    REQUIRE_OK(rig.instance.Prove(rig.publisher));
  }
  REQUIRE(replica.history().size() == 1);

  // Asleep, and awake elsewhere.
  REQUIRE_OK(replica.Suspend());
  REQUIRE_OK(replica.Suspend());
  REQUIRE(replica.status().state == ReplicaState::kSuspended);
  REQUIRE_ERROR(replica.Audit(), kPrecondition, "suspended");
  REQUIRE_ERROR(replica.Poison("?"), kPrecondition, "suspended");
  ModelSource source(rig.publisher.model());
  REQUIRE_ERROR(replica.Load(*MakeDense(rig.manifest, source)), kPrecondition, "suspended");
  std::vector<LocalBuffer>& buffers = rig.instance.buffers(0);
  buffers = rig.instance.NewBuffers(WholeLayout(rig.manifest));
  std::vector<LocalBuffer> wrong = buffers;
  --wrong[0].size_bytes;
  wrong[1].data = static_cast<uint8_t*>(wrong[1].data) + 1;
  REQUIRE_ERROR(replica.Resume(wrong), kInvalid, "'a' has 239999 bytes, the layout wants 240000");
  REQUIRE_ERROR(replica.Resume(wrong), kInvalid, "'b' is not aligned");
  REQUIRE_ERROR(replica.Resume(absl::MakeSpan(wrong).first(1)), kInvalid, "but 1 are given");
  wrong = buffers;
  wrong[1].data = static_cast<uint8_t*>(wrong[0].data) + 1024;
  REQUIRE_ERROR(replica.Resume(wrong), kInvalid, "'a' and 'b' overlap");
  wrong[1].data = nullptr;
  REQUIRE_ERROR(replica.Resume(wrong), kInvalid, "'b' is at no address");
  REQUIRE_OK(replica.Resume(buffers));
  REQUIRE_ERROR(replica.Resume(buffers), kPrecondition, "unproven");
  rig.instance.Write(rig.publisher.model());
  REQUIRE_OK(rig.instance.Prove(rig.publisher));
  // The way back is still known, and leads through the new addresses.
  const Update back = rig.publisher.Between(VersionId(1), VersionId(0), ChangeReason::kRollback);
  REQUIRE_OK(rig.StageBack(back));
  REQUIRE_OK(rig.instance.Apply(back));
  REQUIRE(rig.instance.Holds(rig.publisher.model(VersionId(0))));
  REQUIRE_OK(rig.instance.Abort(back));

  // Another layout.
  const size_t events = rig.instance.events(0).size();
  REQUIRE_ERROR(
      replica.Relayout({std::make_shared<const Layout>(WholeLayout(rig.manifest, 1)), nullptr, 0},
                       buffers),
      kPrecondition, "generation 1, the present one 1");
  REQUIRE_OK(replica.Relayout(
      {std::make_shared<const Layout>(WholeLayout(rig.manifest, 3)), nullptr, 0}, buffers));
  REQUIRE(replica.status().layout_generation == 3);
  REQUIRE(replica.history().empty());
  REQUIRE_OK(rig.instance.Prove(rig.publisher));
  Update update = rig.NewUpdate();
  REQUIRE_ERROR(replica.BeginUpdate(update.header), kPrecondition, "needs layout generation 1");
  update.header.layout_generation = 3;
  REQUIRE_OK(rig.instance.Run(update));
  rig.publisher.Commit(update);
  REQUIRE(rig.instance.events(0).size() == events + 1);

  // Poisoned, and rebuilt as another version than it was: that is a change, too.
  REQUIRE_OK(replica.Poison("an audit found another sum"));
  REQUIRE(replica.status().state == ReplicaState::kPoisoned);
  REQUIRE_ERROR(rig.instance.Prove(rig.publisher), kPrecondition, "an audit found another sum");
  ModelSource first(rig.publisher.model(VersionId(0)));
  REQUIRE_OK(replica.Load(*MakeDense(rig.manifest, first)));
  REQUIRE_OK(replica.ProveAlone(
      rig.publisher.name(VersionId(0)), rig.publisher.move(),
      SumsOf(rig.manifest, rig.publisher.key(), rig.publisher.model(VersionId(0)))));
  REQUIRE(rig.instance.events(0).size() == events + 2);
  REQUIRE(rig.instance.events(0).back().from == rig.publisher.head());
  REQUIRE(rig.instance.events(0).back().reason == ChangeReason::kRebuilt);
}

TEST_CASE("replica states: what is attached must fit") {
  Rig rig(TestSeed("replica attach"));
  const auto layout = std::make_shared<const Layout>(WholeLayout(rig.manifest));
  const std::vector<LocalBuffer> buffers = rig.instance.buffers(0);
  const auto attach = [&](ReplicaPlacement placement) {
    return Replica::Attach(rig.manifest, rig.publisher.key(), std::move(placement), buffers, {})
        .status();
  };
  REQUIRE_OK(attach({layout, nullptr, 0}));
  REQUIRE_ERROR(attach({nullptr, nullptr, 0}), kInvalid, "needs a layout");
  // A rank that holds a part must say of what.
  LayoutBuilder builder(rig.manifest);
  builder.Place(builder.Tensor("a").Slice(0, 0, 200),
                builder.Buffer({"a", Dtype::kBF16, {200, 300}}));
  builder.Place(builder.Tensor("b"), builder.Buffer({"b", Dtype::kF32, {50, 20}}));
  absl::StatusOr<Layout> half = builder.Build(1);
  REQUIRE_OK(half);
  const auto part = std::make_shared<const Layout>(*std::move(half));
  REQUIRE_ERROR(attach({part, nullptr, 0}), kInvalid, "'a'");
  REQUIRE_ERROR(attach({part, rig.replica().regions(), 0}), kInvalid, "another layout");
  REQUIRE_ERROR(attach({layout, rig.replica().regions(), 1}), kInvalid,
                "rank 1 of an instance of 1");
}

TEST_CASE("A28 memory follows the patch and its budget") {
  Rig rig(TestSeed("A28"), 0, /*stage_budget_bytes=*/100000);
  Replica& replica = rig.replica();
  const Update one = rig.publisher.Publish({{{0, 119999}, 1}});
  REQUIRE_OK(rig.instance.Begin(one));
  REQUIRE_OK(rig.instance.StageChunks(one));
  const absl::StatusOr<StagedReport> report = replica.FinishStaging(one.summary);
  REQUIRE_OK(report);
  REQUIRE(report->elements == 1);
  REQUIRE(report->size_bytes < 1024);
  REQUIRE_OK(rig.instance.Abort(one));

  const Update dense = rig.NewUpdate(60000);
  REQUIRE_OK(rig.instance.Begin(dense));
  REQUIRE_ERROR(rig.instance.StageChunks(dense), absl::StatusCode::kResourceExhausted,
                "at most 100000 may be");
  // Nothing is half done: the update can be given up, and a smaller one goes through.
  REQUIRE_OK(rig.instance.Abort(dense));
  REQUIRE(rig.instance.Holds(rig.publisher.model()));
  REQUIRE_OK(rig.instance.Run(one));
  REQUIRE(rig.instance.Holds(one.result));

  // Whatever the density, what is staged is never much more than the dense tensor.
  Rig wide(TestSeed("A28 dense"));
  for (const uint64_t count : {30000, 80000, 150000, 300000}) {
    const Update update = wide.NewUpdate(count);
    uint64_t chunk_bytes = 0;
    for (const std::string& chunk : update.chunks) chunk_bytes += chunk.size();
    REQUIRE_OK(wide.instance.Begin(update));
    REQUIRE_OK(wide.instance.StageChunks(update));
    const absl::StatusOr<StagedReport> staged = wide.replica().FinishStaging(update.summary);
    REQUIRE_OK(staged);
    CAPTURE(count, chunk_bytes, staged->size_bytes);
    REQUIRE(staged->size_bytes < 2 * chunk_bytes + 4096);
    REQUIRE_OK(wide.instance.Abort(update));
  }
}

}  // namespace
}  // namespace wstore::testing
