// Votes, sums, laggards, and instances that cannot be fenced.
#include <algorithm>

#include "tests/unit/protocol/coordinator_fixture.h"

namespace wstore::protocol {
namespace {

TEST_CASE("a laggard is fenced after its lease, or aborts") {
  CoordinatorConfig config;
  SECTION("fence") { config.laggards = Laggards::kFence; }
  SECTION("abort") { config.laggards = Laggards::kAbort; }
  Store store(config);
  Report& a = store.Of("a");
  Report& b = store.Of("b");
  store.Serve(a);
  store.Serve(b);
  store.Stage1(store.Publish("p"));
  store.SayStage(a, Stage::kStaged);
  store.SayStage(b, Stage::kStaged);
  const Micros ordered_at = store.now;
  store.SayStage(a, Stage::kApplied);
  store.now = ordered_at + 5 * kSecond - 1;
  store.Do(CoordinatorTick{});
  REQUIRE(store.records.empty());
  store.now = ordered_at + 5 * kSecond;
  store.Do(CoordinatorTick{});
  if (config.laggards == Laggards::kAbort) {
    REQUIRE(store.records.empty());
    REQUIRE(store.answers.back().kind == AnswerKind::kAborted);
    return;
  }
  REQUIRE(store.records.size() == 1);
  store.Do(RecordWritten{TransactionNumber(1), RecordOutcome::kDurable, absl::OkStatus()});
  // It comes back, in doubt: it is told, and then admitted.
  b.stage = Stage::kApplied;
  b.transaction = TransactionNumber(1);
  b.move = MoveNumber(1);
  b.standing = Standing::kOut;
  b.valid_from = b.request + 1;
  store.Say(b);
  const std::vector<Order>& orders = store.orders["b/0"];
  REQUIRE(orders[orders.size() - 2].kind == OrderKind::kDecide);
  REQUIRE(store.Last(b).kind == OrderKind::kWait);
  b.stage = Stage::kNone;
  b.position = store.state.head().head;
  store.Say(b);
  REQUIRE(store.Last(b).kind == OrderKind::kGrant);
}

TEST_CASE("a vote does not wait for an instance that has lost a rank") {
  CoordinatorConfig config;
  SECTION("fence") { config.laggards = Laggards::kFence; }
  SECTION("abort") { config.laggards = Laggards::kAbort; }
  Store store(config);
  Report& a = store.Of("a");
  Report& b = store.Of("b", 0, 2);
  Report& silent = store.Of("b", 1, 2);
  store.Serve(a);
  store.Say(silent);
  store.Serve(b);
  store.Serve(silent);
  store.Stage1(store.Publish("p"));
  store.SayStage(a, Stage::kStaged);
  store.SayStage(b, Stage::kStaged);
  const Timing timing;
  store.now += timing.lease + timing.skew - 1;
  store.Say(a);
  store.Say(b);
  REQUIRE(store.state.active->phase == TransactionPhase::kVoting);
  ++store.now;
  store.Do(CoordinatorTick{});
  if (config.laggards == Laggards::kAbort) {
    REQUIRE(store.answers.back().kind == AnswerKind::kAborted);
    REQUIRE_THAT(store.answers.back().status.ToString(), Catch::Matchers::Contains("instance b"));
    return;
  }
  REQUIRE(store.state.active->phase == TransactionPhase::kApplying);
  REQUIRE(store.Last(a).kind == OrderKind::kApply);
  REQUIRE(store.Last(b).kind != OrderKind::kApply);
}

TEST_CASE("an instance that cannot be fenced aborts the transaction that it misses") {
  Store store;
  Report& a = store.Of("a");
  Report& b = store.Of("b");
  b.unfenceable = true;
  store.Serve(a);
  store.Serve(b);
  store.Stage1(store.Publish("p"));
  store.SayStage(a, Stage::kStaged);
  store.SayStage(b, Stage::kStaged);
  store.SayStage(a, Stage::kApplied);
  store.now += 6 * kSecond;
  store.Do(CoordinatorTick{});
  REQUIRE(store.records.empty());
  REQUIRE(store.answers.back().kind == AnswerKind::kAborted);

  // Evicted: after the time of a lease nothing waits for it.
  a.stage = Stage::kNone;
  a.standing = Standing::kServing;
  store.Say(a);
  store.Do(Evict{"b"});
  store.now += 2 * kSecond;
  store.Say(a);
  store.now += 2 * kSecond;
  store.Stage1(store.Publish("q"));
  store.SayStage(a, Stage::kStaged);
  store.SayStage(a, Stage::kApplied);
  REQUIRE(store.records.size() == 1);
}

TEST_CASE(
    "whoever cannot be fenced counts from its grant on, and is not waited for in the window") {
  Store store;
  Report& a = store.Of("a");
  Report& b = store.Of("b");
  b.unfenceable = true;
  store.Serve(a);
  // Granted, and never heard of again: it may serve.
  store.Say(b);
  REQUIRE(store.Last(b).kind == OrderKind::kGrant);
  REQUIRE_FALSE(MayServeWhenLost(store.state, b.rank, store.now).has_value());
  store.now += 20 * kSecond;
  store.Say(a);
  REQUIRE(RankStateName(store.state, b.rank, store.now) == "lost");
  REQUIRE(MayServeWhenLost(store.state, b.rank, store.now) == kBase);
  REQUIRE_FALSE(MayServeWhenLost(store.state, {"c", 0}, store.now).has_value());
  StartTransaction start = store.Publish("p");
  SECTION("a publish") { store.Stage1(start); }
  SECTION("a rollback, which leaves others behind") {
    store.state.moves.back().head.version = VersionId(7);
    a.position->version = VersionId(7);
    store.Say(a);
    start.kind = TransactionKind::kRollback;
    start.to = kBase;
    store.Do(start);
    store.Do(ContentComplete{store.state.active->number, absl::OkStatus(), kDigest});
  }
  store.SayStage(a, Stage::kStaged);
  REQUIRE(store.state.active->phase == TransactionPhase::kVoting);
  store.now += 30 * kSecond;
  store.Do(CoordinatorTick{});
  // Nobody was told to pause.
  REQUIRE(store.records.empty());
  REQUIRE(store.orders["a/0"].back().kind == OrderKind::kDecide);
  REQUIRE(store.answers.back().kind == AnswerKind::kAborted);
  REQUIRE_THAT(std::string(store.answers.back().status.message()),
               Catch::Matchers::Contains("instance b did not vote") &&
                   Catch::Matchers::Contains("evict it"));
}

TEST_CASE("a late report of a dead process does not say that one without a lease is gone") {
  Store store;
  Report& a = store.Of("a");
  a.unfenceable = true;
  a.incarnation = {5, 1};
  store.Serve(a);
  Report late = a;
  late.incarnation = {3, 2};
  store.now += 60 * kSecond;
  store.Do(ReportReceived{late});
  REQUIRE(store.Last(a).kind == OrderKind::kLeave);
  REQUIRE(store.state.instances.at("a").ranks[0].Unfenceable());
  // A later process, or an eviction, does.
  SECTION("later") {
    late.incarnation = {6, 3};
    store.Do(ReportReceived{late});
  }
  SECTION("evicted") {
    store.Do(Evict{"a"});
    store.now += 4 * kSecond;
    store.Do(ReportReceived{late});
  }
  const RankRow& row = store.state.instances.at("a").ranks[0];
  REQUIRE(row.incarnation == late.incarnation);
  REQUIRE(row.old_lease_ends <= store.now + 4 * kSecond);
}

TEST_CASE("a vote that is given anew is judged anew, and an answer about the earlier one is void") {
  Store store;
  store.answers_judge = false;
  Report& a = store.Of("a");
  store.Serve(a);
  store.Stage1(store.Publish("p"));
  store.SayStage(a, Stage::kStaged);
  REQUIRE(store.judged.size() == 1);
  // Its memory was loaded again meanwhile, and holds something else.
  store.SayStage(a, Stage::kChecking);
  a.sums.before.lanes[0] = 17;
  store.SayStage(a, Stage::kStaged);
  REQUIRE(store.judged.size() == 1);  // one at a time
  store.Do(store.judged[0]);
  REQUIRE(store.state.active->phase == TransactionPhase::kVoting);
  REQUIRE(store.judged.size() == 2);
  InstanceJudged verdict = store.judged[1];
  verdict.ok = false;
  verdict.error = "rank 0 is wrong";
  store.Do(verdict);
  REQUIRE(store.answers.back().kind == AnswerKind::kAborted);
  REQUIRE(store.records.empty());
}

TEST_CASE("a vote that is given anew in the window is not judged, and its rank does not apply") {
  Store store;
  Report& a = store.Of("a");
  Report& b = store.Of("b");
  store.Serve(a);
  store.Serve(b);
  store.Stage1(store.Publish("p"));
  store.SayStage(a, Stage::kStaged);
  store.SayStage(b, Stage::kStaged);
  REQUIRE(store.state.active->phase == TransactionPhase::kApplying);
  const auto applies = [&] {
    const std::vector<Order>& orders = store.orders["a/0"];
    return std::count_if(orders.begin(), orders.end(),
                         [](const Order& order) { return order.kind == OrderKind::kApply; });
  };
  REQUIRE(applies() == 1);
  store.Say(a);  // the same vote: once more
  REQUIRE(applies() == 2);
  store.SayStage(a, Stage::kChecking);
  a.sums.before.lanes[0] = 17;
  store.SayStage(a, Stage::kStaged);
  REQUIRE(applies() == 2);
}

TEST_CASE("the votes of an instance that follows are judged only if they start from one place") {
  Store store;
  Report& a0 = store.Of("a", 0, 2);
  Report& a1 = store.Of("a", 1, 2);
  store.Say(a0);
  store.Serve(a1);
  store.Serve(a0);
  StartTransaction publish = store.Publish("p");
  publish.policy = Policy::kEach;
  store.Stage1(publish);
  store.Do(RecordWritten{TransactionNumber(1), RecordOutcome::kDurable, absl::OkStatus()});
  const auto stage = [&](Report& report) {
    report.stage = Stage::kStaged;
    report.transaction = TransactionNumber(1);
    report.move = MoveNumber(1);
    store.Say(report);
  };
  stage(a0);
  SECTION("from one place") {
    stage(a1);
    REQUIRE(store.judged.size() == 1);
    REQUIRE(store.orders["a/0"].back().kind == OrderKind::kApply);
    return;
  }
  // Started again: it goes to head from elsewhere, and sums of two differences do not add up.
  a1.incarnation = {2, 2};
  a1.standing = Standing::kOut;
  store.state.moves.push_front(store.state.moves.front());
  store.state.moves[1].head = {MoveNumber(1), VersionId(8), kDigest};
  store.state.moves[2].head.move = MoveNumber(2);
  a0.position = store.state.moves[1].head;
  a0.move = MoveNumber(2);
  a1.move = MoveNumber(2);
  a1.stage = Stage::kStaged;
  a1.transaction = TransactionNumber(1);
  store.Say(a1);
  store.Say(a0);
  REQUIRE(store.judged.empty());
  const std::vector<Order>& orders = store.orders["a/0"];
  REQUIRE(orders[orders.size() - 2].kind == OrderKind::kApply);
}

TEST_CASE("a vote against, a failed apply and wrong sums abort, and name the rank") {
  Store store;
  Report& a = store.Of("a");
  store.Serve(a);
  store.Stage1(store.Publish("p"));
  SECTION("a vote against") {
    a.refused = TransactionNumber(1);
    a.error = "no memory";
    store.Say(a);
    REQUIRE_THAT(std::string(store.answers.back().status.message()),
                 Catch::Matchers::Contains("rank a/0: no memory"));
  }
  SECTION("sums that are not the declared ones") {
    store.verdict = "tensor 'w': rank 0 differs from the right copies";
    store.SayStage(a, Stage::kStaged);
    REQUIRE_THAT(
        std::string(store.answers.back().status.message()),
        Catch::Matchers::Contains("rank 0 differs") && Catch::Matchers::Contains("instance a"));
  }
  SECTION("other sums than foretold") {
    store.SayStage(a, Stage::kStaged);
    a.sums.after.lanes[0] = 1;
    store.SayStage(a, Stage::kApplied);
    REQUIRE_THAT(std::string(store.answers.back().status.message()),
                 Catch::Matchers::Contains("re-read"));
  }
  REQUIRE(store.answers.back().kind == AnswerKind::kAborted);
  REQUIRE(store.records.empty());
  // The numbers are burnt, the id is free.
  store.Do(store.Publish("p"));
  REQUIRE(store.answers.back().transaction == TransactionNumber(2));
  REQUIRE(store.answers.back().to.version == VersionId(2));
}

}  // namespace
}  // namespace wstore::protocol
