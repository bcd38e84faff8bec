// One step of the coordinator. Its methods lie in coordinator.cc (events, start, time),
// coordinator_transactions.cc (what callers ask for, and the phases) and coordinator_ranks.cc
// (reports, orders, leases, grants).
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "store/protocol/coordinator.h"
#include "store/protocol/mutations.h"

namespace wstore::protocol {

class CoordinatorStep {
 public:
  CoordinatorStep(CoordinatorState& state, Micros now, CoordinatorEffects& effects)
      : s_(state), now_(now), effects_(effects) {}

  void Run(const CoordinatorEvent& event);

 private:
  template <typename Effect>
  void Emit(Effect effect) {
    effects_.list.emplace_back(std::move(effect));
  }
  void Log(std::string text) { Emit(CoordinatorLog{std::move(text)}); }
  const Timing& timing() const { return s_.config.timing; }
  Micros LeaseAllowance() const;

  // coordinator.cc
  void On(const Started& event);
  void On(const EpochSynced& event);
  void On(const HoldChanged& event);
  void On(const CoordinatorTick&) {}
  void Advance();
  void SetWakeTime();

  // coordinator_transactions.cc
  void On(const NumbersReserved& event);
  void On(const StartTransaction& event);
  void On(const ContentStaged& event);
  void On(const ContentComplete& event);
  void On(const InstanceJudged& event);
  void On(const RecordWritten& event);
  void On(const AbortTransaction& event);
  void On(const AwaitOutcome& event);
  void Reply(uint64_t waiter, AnswerKind kind, absl::Status status, TransactionNumber transaction,
             const Position& to);
  void Refuse(uint64_t waiter, absl::Status status);
  void AddWaiter(uint64_t waiter);
  bool AnswerFromOutcomes(const StartTransaction& request);
  bool JoinActive(const StartTransaction& request);
  absl::Status CheckRequest(const StartTransaction& request) const;
  absl::Status CheckAgainstHead(const StartTransaction& request) const;
  void BeginTransaction(const StartTransaction& request);
  Laggards laggards() const;
  bool AdvanceOnce();
  bool AdvanceStaging();
  bool AdvanceVoting();
  bool AdvanceApplying();
  bool Unfenceable(const Instance& instance) const;
  bool HasLostRank(const Instance& instance) const;
  bool AbortedByDeadline(const Instance& instance, std::string_view what, Micros deadline);
  // A refusal or a laggard does not stop a rollback; anything else aborts. True: aborted.
  bool AbortedBy(const Instance& instance, const std::string& why);
  bool Voted(Instance& instance);
  bool Approved(Instance& instance, TransactionNumber transaction);
  bool Reported(Instance& instance);
  // Why the instance cannot take the active transaction; empty if nothing speaks against it.
  std::string Refusal(const Instance& instance) const;
  void OrderApply();
  bool Fenced(const Instance& instance) const;
  void BeginRecord(bool installed);
  void CommitActive(bool durable);
  void AbortActive(absl::Status status);

  // coordinator_ranks.cc
  void On(const ReportReceived& event);
  void On(const Evict& event);
  Instance* FindOrMakeInstance(const Report& report);
  bool TakeReport(Instance& instance, const Report& report);
  void DriveAll();
  void DriveInstance(Instance& instance);
  void Drive(Instance& instance, RankRow& row);
  void DriveUpdate(Instance& instance, RankRow& row);
  void DriveIdle(Instance& instance, RankRow& row);
  void AnswerReport(Instance& instance, RankRow& row);
  void Send(const RankRow& row, Order order);
  void SendPlan(const Instance& instance, const RankRow& row, OrderKind kind, const Move& move,
                bool decided);
  bool LeasesAlive(const Instance& instance) const;
  const Move* FindMove(MoveNumber number) const;
  bool InLog(TransactionNumber transaction, MoveNumber move) const;
  bool IsKnown(const Instance& instance, const Position& position) const;
  bool MayApplyDecided(Instance& instance, const RankRow& row);
  std::string WhyNoRenewal(const Instance& instance, const RankRow& row) const;
  std::string WhyNoGrant(const Instance& instance, const RankRow& row) const;
  void ForgetOneInstance();
  void ForgetUnfenceable(RankRow& row);
  Micros LeaseEndsIfGiven(const Report& report) const;

  CoordinatorState& s_;
  const Micros now_;
  CoordinatorEffects& effects_;
};

}  // namespace wstore::protocol
