// A coordinator for tests, and what it is told.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "store/protocol/coordinator.h"
#include "tests/support/catch.h"

namespace wstore::protocol {

constexpr Micros kSecond = 1'000'000;
inline const Position kBase = {MoveNumber(0), VersionId(0), Digest{}};
inline const Digest kDigest = {{1}};

// A coordinator whose disk is fast and sound, and ranks that say what the test wants.
struct Store {
  explicit Store(CoordinatorConfig config = {}) : state(NewCoordinator(config)) {
    Started started;
    started.journal.epoch = Epoch(4);
    started.journal.next = {TransactionNumber(1), VersionId(1), MoveNumber(1)};
    Move base;
    base.head = kBase;
    started.journal.moves = {base};
    Do(started);
    Do(EpochSynced{});
    now += 4 * kSecond;
    Do(CoordinatorTick{});
    REQUIRE(state.phase == CoordinatorPhase::kReady);
  }

  void Do(const CoordinatorEvent& event) {
    const CoordinatorEffects effects = Step(state, now, event);
    wake_at = effects.wake_at;
    last.clear();
    for (const CoordinatorEffect& effect : effects.list) {
      last.push_back(effect);
      if (const auto* order = std::get_if<SendOrder>(&effect)) {
        orders[ToString(order->order.rank)].push_back(order->order);
      } else if (const auto* answer = std::get_if<Answer>(&effect)) {
        answers.push_back(*answer);
      } else if (const auto* record = std::get_if<WriteRecord>(&effect)) {
        records.push_back(*record);
      }
    }
    const std::vector<CoordinatorEffect> now_done = last;
    for (const CoordinatorEffect& effect : now_done) {
      if (std::holds_alternative<ReserveNumbers>(effect)) {
        Do(NumbersReserved{state.active->number});
      } else if (const auto* complete = std::get_if<CompleteContent>(&effect)) {
        Do(ContentComplete{complete->transaction, absl::OkStatus(), kDigest});
      } else if (const auto* judge = std::get_if<Judge>(&effect)) {
        judged.push_back({judge->transaction, judge->instance, verdict.empty(), verdict});
        if (answers_judge) Do(judged.back());
      }
    }
  }

  Report& Of(const std::string& instance, uint32_t rank = 0, uint32_t ranks = 1) {
    Report& report = reports[instance + "/" + std::to_string(rank)];
    if (report.ranks == 0) {
      report.rank = {instance, rank};
      report.ranks = ranks;
      report.incarnation = {1, 1};
      report.valid_from = 1;
      report.position = kBase;
    }
    return report;
  }
  void Say(Report& report) {
    ++report.request;
    Do(ReportReceived{report});
  }
  const Order& Last(const Report& report) { return orders[ToString(report.rank)].back(); }
  void Serve(Report& report) {
    Say(report);
    REQUIRE(Last(report).kind == OrderKind::kGrant);
    report.standing = Standing::kServing;
    Say(report);
  }
  void SayStage(Report& report, Stage stage) {
    report.stage = stage;
    report.transaction = state.active->number;
    report.move = state.active->to.move;
    if (stage > Stage::kPausing) report.standing = Standing::kPaused;
    Say(report);
  }
  StartTransaction Publish(const std::string& id) {
    StartTransaction start;
    start.waiter = 1;
    start.id = id;
    return start;
  }
  void Stage1(const StartTransaction& start) {
    Do(start);
    REQUIRE(answers.back().kind == AnswerKind::kBegun);
    Do(AwaitOutcome{2, start.id});
    for (uint32_t i = 0; i < start.contributors; ++i) Do(ContentStaged{state.active->number, i});
  }

  CoordinatorState state;
  Micros now = 100;
  Micros wake_at = 0;
  std::vector<CoordinatorEffect> last;
  std::map<std::string, std::vector<Order>> orders;
  std::map<std::string, Report> reports;
  std::vector<Answer> answers;
  std::vector<WriteRecord> records;
  std::string verdict;  // of all judges; empty: the sums are right
  bool answers_judge = true;
  std::vector<InstanceJudged> judged;
};

}  // namespace wstore::protocol
