// The store's half, step by step. What many steps together can do wrong is the simulator's to find.

#include "tests/unit/protocol/coordinator_fixture.h"

namespace wstore::protocol {
namespace {

TEST_CASE("nothing is said before the epoch is on disk, nothing is admitted before leases ended") {
  CoordinatorState state = NewCoordinator({});
  Started started;
  started.journal.epoch = Epoch(4);
  Move base;
  base.head = kBase;
  started.journal.moves = {base};
  CoordinatorEffects effects = Step(state, 10, started);
  REQUIRE(effects.list.size() == 1);
  REQUIRE(std::get<SyncEpoch>(effects.list[0]).epoch == Epoch(5));
  Report report;
  report.rank = {"a", 0};
  report.ranks = 1;
  report.incarnation = {1, 1};
  report.request = 1;
  report.valid_from = 1;
  report.position = kBase;
  REQUIRE(Step(state, 20, ReportReceived{report}).list.empty());
  Step(state, 30, EpochSynced{});
  report.request = 2;
  effects = Step(state, 40, ReportReceived{report});
  REQUIRE(std::get<SendOrder>(effects.list.back()).order.kind == OrderKind::kWait);
  report.request = 3;
  effects = Step(state, 10 + 4 * kSecond, ReportReceived{report});
  REQUIRE(std::get<SendOrder>(effects.list.back()).order.kind == OrderKind::kGrant);
}

TEST_CASE("a publish of three contributors: votes, reports, record, commit") {
  Store store;
  Report& a = store.Of("a");
  Report& b = store.Of("b");
  store.Serve(a);
  store.Serve(b);
  StartTransaction start = store.Publish("p");
  start.contributors = 3;
  store.Stage1(start);
  REQUIRE(store.state.active->phase == TransactionPhase::kVoting);
  store.SayStage(a, Stage::kStaged);
  REQUIRE(store.state.active->phase == TransactionPhase::kVoting);
  store.SayStage(b, Stage::kStaged);
  REQUIRE(store.state.active->phase == TransactionPhase::kApplying);
  // No lease is renewed before the whole instance has reported.
  store.Say(a);
  REQUIRE(store.Last(a).kind == OrderKind::kWait);
  store.SayStage(a, Stage::kApplied);
  REQUIRE(store.Last(a).kind == OrderKind::kRenew);
  REQUIRE(store.records.empty());
  store.SayStage(b, Stage::kApplied);
  REQUIRE(store.records.size() == 1);
  REQUIRE(store.records[0].installed);
  REQUIRE(store.records[0].move.head == Position{MoveNumber(1), VersionId(1), kDigest});
  store.Do(RecordWritten{TransactionNumber(1), RecordOutcome::kDurable, absl::OkStatus()});
  REQUIRE(store.answers.back().kind == AnswerKind::kCommitted);
  REQUIRE(store.Last(a).kind == OrderKind::kDecide);
  REQUIRE(store.Last(a).commit);
  REQUIRE(store.state.head().head.version == VersionId(1));

  // The same id: the first outcome. Other content: refused.
  store.Do(start);
  REQUIRE(store.answers.back().kind == AnswerKind::kRepeated);
  REQUIRE(store.answers.back().transaction == TransactionNumber(1));
  start.kind = TransactionKind::kRollback;
  store.Do(start);
  REQUIRE(store.answers.back().kind == AnswerKind::kRefused);
  REQUIRE(absl::IsAlreadyExists(store.answers.back().status));
}

TEST_CASE("nobody is admitted while a transaction is decided") {
  Store store;
  Report& a = store.Of("a");
  Report& b = store.Of("b");
  store.Serve(a);
  store.Stage1(store.Publish("p"));
  store.SayStage(a, Stage::kStaged);
  store.Say(b);
  REQUIRE(store.Last(b).kind == OrderKind::kWait);
}

TEST_CASE(
    "a rollback preempts a publish, until its record is being written, and holds publishing") {
  Store store;
  store.Stage1(store.Publish("p"));
  REQUIRE(store.records.size() == 1);  // no instance: nothing to wait for
  StartTransaction rollback;
  rollback.waiter = 9;
  rollback.id = "r";
  rollback.kind = TransactionKind::kRollback;
  rollback.to = kBase;
  store.Do(rollback);
  REQUIRE(store.state.active->request.id == "p");
  store.Do(RecordWritten{TransactionNumber(1), RecordOutcome::kDurable, absl::OkStatus()});
  REQUIRE(store.state.active->request.id == "r");
  store.Do(RecordWritten{TransactionNumber(2), RecordOutcome::kDurable, absl::OkStatus()});
  REQUIRE(store.answers.back().waiter == 9);
  REQUIRE(store.answers.back().kind == AnswerKind::kCommitted);
  REQUIRE(store.records.back().hold);
  REQUIRE(store.state.head().head == Position{MoveNumber(2), VersionId(0), Digest{}});
  store.Do(store.Publish("q"));
  REQUIRE(store.answers.back().kind == AnswerKind::kRefused);
  REQUIRE(store.answers.back().head.move == MoveNumber(2));
  store.Do(HoldChanged{false});
  store.Do(store.Publish("q"));
  REQUIRE(store.answers.back().kind == AnswerKind::kBegun);
  rollback.id = "r2";
  store.Do(rollback);
  REQUIRE(store.answers.back().kind == AnswerKind::kUnchanged);
}

TEST_CASE("an unknown outcome is said, and the journal is reopened") {
  Store store;
  store.Stage1(store.Publish("p"));
  store.Do(RecordWritten{TransactionNumber(1), RecordOutcome::kUnknown,
                         absl::UnknownError("I/O error")});
  REQUIRE(store.answers.back().kind == AnswerKind::kUnknown);
  REQUIRE(std::holds_alternative<ReopenJournal>(store.last.back()));
  store.Do(AwaitOutcome{5, "p"});
  REQUIRE(store.answers.back().kind == AnswerKind::kUnknown);
}

TEST_CASE("a silent contributor aborts") {
  Store store;
  StartTransaction start = store.Publish("p");
  start.contributors = 2;
  store.Do(start);
  store.Do(AwaitOutcome{2, "p"});
  store.Do(ContentStaged{TransactionNumber(1), 0});
  REQUIRE(store.wake_at == store.now + 600 * kSecond);
  store.now = store.wake_at;
  store.Do(CoordinatorTick{});
  REQUIRE_THAT(std::string(store.answers.back().status.message()),
               Catch::Matchers::Contains("silent contributors: 1"));
}

TEST_CASE("the caller's parent must be head") {
  Store store;
  StartTransaction start = store.Publish("p");
  start.parent = Position{MoveNumber(3), VersionId(0), Digest{}};
  store.Do(start);
  REQUIRE(absl::IsFailedPrecondition(store.answers.back().status));
  REQUIRE_THAT(std::string(store.answers.back().status.message()),
               Catch::Matchers::Contains("of move 3") && Catch::Matchers::Contains("of move 0"));
}

TEST_CASE("an evicted instance is told to leave, until it is started again") {
  Store store;
  Report& a = store.Of("a");
  store.Serve(a);
  store.Do(Evict{"a"});
  REQUIRE(store.Last(a).kind == OrderKind::kLeave);
  a.standing = Standing::kOut;
  a.valid_from = a.request + 1;
  store.Say(a);
  REQUIRE(store.Last(a).kind == OrderKind::kWait);
  a.incarnation = {2, 1};
  store.Say(a);
  REQUIRE(store.Last(a).kind == OrderKind::kGrant);
  // The earlier process, if it still runs.
  a.incarnation = {1, 1};
  store.Say(a);
  REQUIRE(store.Last(a).kind == OrderKind::kLeave);
}

TEST_CASE("a late report of a dead process does not take a rank's place for long") {
  Store store;
  Report& a = store.Of("a");
  a.incarnation = {9, 1};  // before the clock went back
  store.Say(a);
  a.incarnation = {2, 1};
  store.Say(a);
  REQUIRE(store.Last(a).kind == OrderKind::kLeave);
  store.now += 4 * kSecond;
  store.Say(a);
  REQUIRE(store.Last(a).kind == OrderKind::kGrant);
}

TEST_CASE("a number that is not on disk is named to nobody") {
  Store store;
  const CoordinatorEffects begun = Step(store.state, store.now, store.Publish("p"));
  REQUIRE(std::holds_alternative<ReserveNumbers>(begun.list.back()));
  const CoordinatorEffects aborted = Step(store.state, store.now, AbortTransaction{7, "p", "no"});
  for (const CoordinatorEffect& effect : aborted.list) {
    const auto* answer = std::get_if<Answer>(&effect);
    if (answer == nullptr) continue;
    REQUIRE(answer->kind == AnswerKind::kAborted);
    REQUIRE(answer->transaction == TransactionNumber(0));
    REQUIRE(answer->to == Position{});
  }
}

TEST_CASE("a candidate is tried out on named instances, then promoted or reverted") {
  Store store;
  Report& a = store.Of("a");
  Report& b = store.Of("b");
  store.Serve(a);
  store.Serve(b);
  StartTransaction start = store.Publish("c");
  start.kind = TransactionKind::kCandidate;
  store.Stage1(start);
  REQUIRE(store.records.back().move.head.version == VersionId(1));
  store.Do(RecordWritten{TransactionNumber(1), RecordOutcome::kDurable, absl::OkStatus()});
  REQUIRE(store.state.head().head == kBase);
  StartTransaction rollout;
  rollout.waiter = 3;
  rollout.id = "t";
  rollout.kind = TransactionKind::kRollout;
  rollout.policy = Policy::kEach;
  rollout.to = {MoveNumber(0), VersionId(1), kDigest};
  rollout.instances = {"b"};
  store.Do(rollout);
  store.Do(RecordWritten{TransactionNumber(2), RecordOutcome::kDurable, absl::OkStatus()});
  REQUIRE(store.answers.back().kind == AnswerKind::kCommitted);
  REQUIRE(store.Last(a).plan.to == Position{MoveNumber(1), VersionId(0), Digest{}});
  REQUIRE(store.Last(b).plan.to == Position{MoveNumber(1), VersionId(1), kDigest});
  REQUIRE(store.Last(b).plan.decided);
  store.Do(store.Publish("p"));
  REQUIRE(absl::IsFailedPrecondition(store.answers.back().status));
  StartTransaction revert;
  revert.id = "u";
  revert.kind = TransactionKind::kRevert;
  revert.policy = Policy::kEach;
  store.Do(revert);
  store.Do(RecordWritten{TransactionNumber(3), RecordOutcome::kDurable, absl::OkStatus()});
  REQUIRE(Target(store.state.head(), "b") == Position{MoveNumber(2), VersionId(0), Digest{}});
}

TEST_CASE("a rank that shows a move that the store does not know is an alarm") {
  Store store;
  Report& a = store.Of("a");
  a.position = Position{MoveNumber(7), VersionId(3), kDigest};
  store.Say(a);
  bool alarm = false;
  for (const CoordinatorEffect& effect : store.last) {
    alarm = alarm || std::holds_alternative<Alarm>(effect);
  }
  REQUIRE(alarm);
  REQUIRE(store.Last(a).kind == OrderKind::kWait);
}

TEST_CASE("timing that could not fence is refused, all faults at once") {
  Timing timing;
  timing.apply_deadline = timing.lease;
  timing.hold_deadline = timing.lease;
  REQUIRE_ERROR(CheckTiming(timing), absl::StatusCode::kInvalidArgument, "no laggard could be");
  REQUIRE_ERROR(CheckTiming(timing), absl::StatusCode::kInvalidArgument, "not above the apply");
  REQUIRE_OK(CheckTiming(Timing{}));
}

}  // namespace
}  // namespace wstore::protocol
