// The worker's half, step by step. What many steps together can do wrong is the simulator's to
// find.
#include "store/protocol/worker.h"

#include <string>

#include "tests/support/catch.h"

namespace wstore::protocol {
namespace {

constexpr Micros kLease = 3'000'000;
const Position kBase = {MoveNumber(0), VersionId(0), Digest{}};
const Position kFirst = {MoveNumber(1), VersionId(1), Digest{{1}}};

template <typename Effect>
const Effect* Find(const WorkerEffects& effects) {
  for (const WorkerEffect& effect : effects.list) {
    if (const auto* found = std::get_if<Effect>(&effect)) return found;
  }
  return nullptr;
}

struct Rank {
  Rank() {
    WorkerConfig config;
    config.rank = {"engine", 0};
    config.incarnation = {1, 7};
    state = StartWorker(config);
  }

  WorkerEffects Do(const WorkerEvent& event) {
    WorkerEffects effects = Step(state, now, event);
    if (const auto* sent = Find<SendReport>(effects)) report = sent->report;
    return effects;
  }
  Order MakeOrder(OrderKind kind) const {
    Order order;
    order.rank = state.config.rank;
    order.kind = kind;
    order.epoch = Epoch(1);
    order.incarnation = state.config.incarnation;
    order.request = report.request;
    order.lease = kLease;
    order.plan.transaction = TransactionNumber(1);
    order.plan.from = kBase;
    order.plan.to = kFirst;
    order.plan.complete = true;
    return order;
  }
  WorkerEffects Obey(OrderKind kind) { return Do(OrderReceived{MakeOrder(kind)}); }
  WorkerEffects Decide(bool commit) {
    Order order = MakeOrder(OrderKind::kDecide);
    order.commit = commit;
    return Do(OrderReceived{order});
  }
  void Serve() {
    Do(Proved{kBase, 1});
    Order first = MakeOrder(OrderKind::kWait);
    Do(OrderReceived{first});
    Do(WorkerTick{});
    now += 1'000'000;
    Do(WorkerTick{});
    Order grant = MakeOrder(OrderKind::kGrant);
    grant.plan.to = kBase;
    const WorkerEffects effects = Do(OrderReceived{grant});
    REQUIRE(Find<Ready>(effects) != nullptr);
    Do(AllReady{Find<Ready>(effects)->key});
    REQUIRE(MayServe(state, now));
  }
  void Vote() {
    Order prepare = MakeOrder(OrderKind::kPrepare);
    prepare.plan.layout_generation = 1;
    REQUIRE(Find<Finish>(Do(OrderReceived{prepare})) != nullptr);
    Do(StagingDone{TransactionNumber(1), true, {}, ""});
    REQUIRE(report.stage == Stage::kStaged);
  }
  void ReachDoubt() {
    Vote();
    REQUIRE(Find<Pause>(Obey(OrderKind::kApply)) != nullptr);
    REQUIRE(MayServe(state, now));
    REQUIRE(Find<Apply>(Do(Paused{})) != nullptr);
    REQUIRE_FALSE(MayServe(state, now));
    Do(ApplyDone{TransactionNumber(1), true, {}, ""});
    REQUIRE(report.stage == Stage::kApplied);
  }

  WorkerState state;
  Report report;
  Micros now = 50;
};

TEST_CASE("a rank serves on a grant, until its lease ends") {
  Rank rank;
  rank.Serve();
  const Micros sent_at = rank.now;
  rank.now = sent_at + kLease - 1;
  REQUIRE(MayServe(rank.state, rank.now));
  rank.now = sent_at + kLease;
  REQUIRE_FALSE(MayServe(rank.state, rank.now));
  REQUIRE(Find<Stop>(rank.Do(WorkerTick{})) != nullptr);
  REQUIRE(rank.report.standing == Standing::kOut);
}

TEST_CASE("a lease counts from when it was asked for, not from when the answer came") {
  Rank rank;
  rank.Serve();
  rank.now += 1'000'000;
  rank.Do(WorkerTick{});
  const Micros asked_at = rank.now;
  rank.now += 500'000;
  rank.Obey(OrderKind::kRenew);
  REQUIRE(rank.state.lease_until == asked_at + kLease);
}

TEST_CASE("a grant for an earlier request, another process or another place is refused") {
  Rank rank;
  rank.Do(Proved{kBase, 1});
  rank.Obey(OrderKind::kWait);
  rank.now += 1'000'000;
  rank.Do(WorkerTick{});
  Order grant = rank.MakeOrder(OrderKind::kGrant);
  grant.plan.to = kBase;
  SECTION("the right one") {
    rank.Do(OrderReceived{grant});
    REQUIRE(rank.state.standing == Standing::kResuming);
    return;
  }
  SECTION("earlier") { grant.request = rank.state.valid_from - 1; }
  SECTION("another process") { grant.incarnation = {1, 8}; }
  SECTION("another place") { grant.plan.to = kFirst; }
  SECTION("too late") { rank.now += kLease; }
  rank.Do(OrderReceived{grant});
  REQUIRE(rank.state.standing == Standing::kOut);
}

TEST_CASE("a renewal that was asked for elsewhere is void") {
  Rank rank;
  rank.Serve();
  rank.ReachDoubt();
  rank.now += 1'000'000;
  rank.Do(WorkerTick{});
  const Order renewal = rank.MakeOrder(OrderKind::kRenew);
  rank.Decide(true);
  const Micros until = rank.state.lease_until;
  rank.Do(OrderReceived{renewal});
  REQUIRE(rank.state.lease_until == until);
}

TEST_CASE("commit and abort after the doubt") {
  Rank rank;
  rank.Serve();
  rank.ReachDoubt();
  SECTION("commit") {
    const WorkerEffects effects = rank.Decide(true);
    REQUIRE(Find<Commit>(effects) != nullptr);
    REQUIRE(rank.state.position == kFirst);
    rank.Do(AllReady{Find<Ready>(effects)->key});
    REQUIRE(MayServe(rank.state, rank.now));
    // Doubled: nothing.
    REQUIRE(Find<Commit>(rank.Decide(true)) == nullptr);
  }
  SECTION("abort") {
    REQUIRE(Find<Undo>(rank.Decide(false)) != nullptr);
    REQUIRE(Find<Undo>(rank.Decide(false)) == nullptr);
    const WorkerEffects effects = rank.Do(UndoDone{});
    REQUIRE(rank.state.position == kBase);
    rank.Do(AllReady{Find<Ready>(effects)->key});
    REQUIRE(MayServe(rank.state, rank.now));
  }
  SECTION("a decision does not start a rank whose lease has ended") {
    rank.now += kLease;
    rank.Do(WorkerTick{});
    const WorkerEffects effects = rank.Decide(true);
    REQUIRE(Find<Commit>(effects) != nullptr);
    REQUIRE(Find<Ready>(effects) == nullptr);
    REQUIRE(rank.state.standing == Standing::kOut);
  }
  SECTION("a grant does not start a rank in doubt") {
    rank.now += kLease;
    rank.Do(WorkerTick{});
    Order grant = rank.MakeOrder(OrderKind::kGrant);
    grant.plan.to = kBase;
    rank.Do(OrderReceived{grant});
    REQUIRE(rank.state.standing == Standing::kOut);
  }
}

TEST_CASE("a late message of an earlier transaction finds another move") {
  Rank rank;
  rank.Serve();
  rank.ReachDoubt();
  rank.Decide(true);
  // Back to v0: the version of the first transaction's parent, but not its move.
  Order back = rank.MakeOrder(OrderKind::kPrepare);
  back.plan.transaction = TransactionNumber(2);
  back.plan.from = kFirst;
  back.plan.to = {MoveNumber(2), VersionId(0), Digest{}};
  back.plan.layout_generation = 1;
  rank.Do(OrderReceived{back});
  rank.Do(StagingDone{TransactionNumber(2), true, {}, ""});
  back.kind = OrderKind::kApply;
  rank.Do(OrderReceived{back});
  rank.Do(ApplyDone{TransactionNumber(2), true, {}, ""});
  back.kind = OrderKind::kDecide;
  back.commit = true;
  rank.Do(OrderReceived{back});
  REQUIRE(rank.state.position == back.plan.to);

  Order late = rank.MakeOrder(OrderKind::kPrepare);
  late.plan.layout_generation = 1;
  REQUIRE(Find<Begin>(rank.Do(OrderReceived{late})) == nullptr);
}

TEST_CASE("a rank that is out takes part in nothing that is not decided") {
  Rank rank;
  rank.Do(Proved{kBase, 1});
  Order prepare = rank.MakeOrder(OrderKind::kPrepare);
  prepare.plan.layout_generation = 1;
  REQUIRE(Find<Begin>(rank.Do(OrderReceived{prepare})) == nullptr);
  prepare.plan.decided = true;
  REQUIRE(Find<Begin>(rank.Do(OrderReceived{prepare})) != nullptr);
  rank.Do(StagingDone{TransactionNumber(1), true, {}, ""});
  REQUIRE(Find<Apply>(rank.Obey(OrderKind::kApply)) != nullptr);
  rank.Do(ApplyDone{TransactionNumber(1), true, {}, ""});
  REQUIRE(rank.state.position == kFirst);
  REQUIRE(rank.state.standing == Standing::kOut);
}

TEST_CASE("an older epoch is obeyed only in what is in the journal") {
  Rank rank;
  rank.Serve();
  rank.ReachDoubt();
  Order newer = rank.MakeOrder(OrderKind::kWait);
  newer.epoch = Epoch(2);
  rank.Do(OrderReceived{newer});
  REQUIRE(Find<Undo>(rank.Decide(false)) == nullptr);
  REQUIRE(Find<Commit>(rank.Decide(true)) != nullptr);
}

TEST_CASE("a set that was staged for another layout is refused") {
  Rank rank;
  rank.Serve();
  Order prepare = rank.MakeOrder(OrderKind::kPrepare);
  prepare.plan.layout_generation = 2;
  REQUIRE(Find<Begin>(rank.Do(OrderReceived{prepare})) == nullptr);
}

TEST_CASE("content that was whole before its staging was reported is finished at once") {
  Rank rank;
  rank.Serve();
  Order prepare = rank.MakeOrder(OrderKind::kPrepare);
  prepare.plan.layout_generation = 1;
  prepare.plan.complete = false;
  const WorkerEffects begun = rank.Do(OrderReceived{prepare});
  REQUIRE(Find<Begin>(begun) != nullptr);
  REQUIRE(Find<Finish>(begun) == nullptr);
  prepare.plan.complete = true;
  REQUIRE(Find<Finish>(rank.Do(OrderReceived{prepare})) != nullptr);
  // Again changes nothing.
  REQUIRE(rank.Do(OrderReceived{prepare}).list.empty());
}

TEST_CASE("a failed apply is told, and the rank goes on as before") {
  Rank rank;
  rank.Serve();
  rank.Vote();
  rank.Obey(OrderKind::kApply);
  rank.Do(Paused{});
  const WorkerEffects effects = rank.Do(ApplyDone{TransactionNumber(1), false, {}, "unit 3"});
  REQUIRE(rank.report.refused == TransactionNumber(1));
  REQUIRE(rank.report.error == "unit 3");
  rank.Do(AllReady{Find<Ready>(effects)->key});
  REQUIRE(MayServe(rank.state, rank.now));
  REQUIRE(rank.state.position == kBase);
  // A late copy of the order does not make it try again, unless the update is decided.
  Order prepare = rank.MakeOrder(OrderKind::kPrepare);
  prepare.plan.layout_generation = 1;
  REQUIRE(Find<Begin>(rank.Do(OrderReceived{prepare})) == nullptr);
  REQUIRE(rank.report.refused == TransactionNumber(1));
  prepare.plan.decided = true;
  REQUIRE(Find<Begin>(rank.Do(OrderReceived{prepare})) != nullptr);
}

TEST_CASE("a move that is not durable can be taken back, until it is") {
  Rank rank;
  rank.Serve();
  rank.ReachDoubt();
  Order decide = rank.MakeOrder(OrderKind::kDecide);
  decide.commit = true;
  decide.durable = false;
  REQUIRE(Find<Commit>(rank.Do(OrderReceived{decide}))->keep_undo);
  REQUIRE_FALSE(rank.report.durable);
  SECTION("it is durable") {
    decide.durable = true;
    REQUIRE(Find<ForgetUndo>(rank.Do(OrderReceived{decide})) != nullptr);
    REQUIRE(rank.report.durable);
    REQUIRE(Find<TakeBack>(rank.Obey(OrderKind::kTakeBack)) == nullptr);
  }
  SECTION("it is lost") {
    const WorkerEffects effects = rank.Obey(OrderKind::kTakeBack);
    REQUIRE(Find<Stop>(effects) != nullptr);
    REQUIRE(Find<TakeBack>(effects) != nullptr);
    rank.Do(UndoDone{});
    REQUIRE(rank.state.position == kBase);
    REQUIRE(rank.report.durable);
    REQUIRE(rank.state.standing == Standing::kOut);
  }
}

}  // namespace
}  // namespace wstore::protocol
