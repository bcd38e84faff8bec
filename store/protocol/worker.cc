#include "store/protocol/worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "store/protocol/mutations.h"

namespace wstore::protocol {
namespace {

// One step. Events are handled by the overloads of On.
class WorkerStep {
 public:
  WorkerStep(WorkerState& state, Micros now, WorkerEffects& effects)
      : s_(state), now_(now), effects_(effects) {}

  void Run(const WorkerEvent& event) {
    ExpireLease();
    std::visit([this](const auto& e) { On(e); }, event);
    KeepReadyKey();
    if (report_ || now_ >= s_.report_at) Send();
    effects_.wake_at = s_.report_at;
    if (s_.standing != Standing::kOut && !s_.config.serve_on_lost_lease) {
      effects_.wake_at = std::min(effects_.wake_at, s_.lease_until);
    }
  }

 private:
  template <typename Effect>
  void Emit(Effect effect) {
    effects_.list.emplace_back(std::move(effect));
  }

  bool LeaseLost() const { return now_ >= s_.lease_until && !s_.config.serve_on_lost_lease; }
  Stage stage() const { return s_.update ? s_.update->stage : Stage::kNone; }
  bool IsUpdate(TransactionNumber transaction) const {
    return s_.update && s_.update->plan.transaction == transaction;
  }
  ReadyKey Key() const { return {s_.epoch, s_.position->move, s_.position->chain_digest}; }

  void ExpireLease() {
    if (s_.standing != Standing::kOut && LeaseLost()) GoOut("the lease has ended");
  }

  // From now on only a grant that answers a later request lets this rank serve.
  void GoOut(std::string reason) {
    s_.valid_from = s_.request + 1;
    report_ = true;
    if (s_.standing == Standing::kOut) return;
    s_.standing = Standing::kOut;
    // Not applied yet, and a rank that is out does not apply what is undecided.
    if (stage() == Stage::kPausing) s_.update->stage = Stage::kStaged;
    Emit(Stop{std::move(reason)});
  }

  // Announces the key whenever it changes while this rank could serve.
  void KeepReadyKey() {
    const bool could = s_.standing == Standing::kResuming || s_.standing == Standing::kServing;
    if (!could) {
      if (s_.ready) Emit(NotReady{});
      s_.ready.reset();
      return;
    }
    if (s_.ready != Key()) {
      s_.ready = Key();
      Emit(Ready{Key()});
    }
    if (Mutated(Mutation::kResumeAlone) && s_.standing == Standing::kResuming) {
      On(AllReady{Key()});
    }
  }

  void Send() {
    const uint64_t request = ++s_.request;
    s_.sent[request % s_.sent.size()] = {request, now_};
    s_.report_at = now_ + s_.config.report_interval;
    Report report;
    report.rank = s_.config.rank;
    report.ranks = s_.config.ranks;
    report.incarnation = s_.config.incarnation;
    report.request = request;
    report.valid_from = s_.valid_from;
    report.epoch = s_.epoch;
    report.position = s_.position;
    report.durable = !s_.before.has_value();
    report.standing = s_.standing;
    if (s_.update) {
      report.stage = s_.update->stage;
      report.transaction = s_.update->plan.transaction;
      report.move = s_.update->plan.to.move;
      report.sums = s_.update->sums;
    }
    report.refused = s_.refused;
    report.error = s_.error;
    report.poisoned = s_.poisoned;
    report.layout_generation = s_.layout_generation;
    report.unfenceable = s_.config.serve_on_lost_lease;
    Emit(SendReport{std::move(report)});
  }

  void DropUpdate() {
    Emit(Drop{s_.update->plan.transaction});
    s_.update.reset();
    report_ = true;
  }

  void Refuse(TransactionNumber transaction, std::string error) {
    s_.refused = transaction;
    s_.error = std::move(error);
    report_ = true;
  }

  // The position is another one now, or proved again: what was granted before does not count.
  void MoveTo(const Position& position) {
    s_.position = position;
    s_.valid_from = s_.request + 1;
    report_ = true;
  }

  // A decision only lets a rank go on that was serving when it paused and whose lease has not ended
  // since. (Both would have made it kOut.)
  void GoOn() {
    if (Mutated(Mutation::kDecisionStartsAnyRank) && s_.standing == Standing::kOut) {
      s_.lease_until = now_ + 3'000'000;
      s_.standing = Standing::kPaused;
    }
    if (s_.standing == Standing::kPaused) s_.standing = Standing::kResuming;
  }

  void CommitUpdate(bool durable) {
    const Plan plan = s_.update->plan;
    Emit(wstore::protocol::Commit{plan.transaction, !durable});
    s_.update.reset();
    s_.refused.reset();
    s_.error.clear();
    if (!durable) s_.before = s_.position;
    MoveTo(plan.to);
    GoOn();
  }

  void On(const WorkerTick&) {}

  void On(const Proved& event) {
    if (s_.update || s_.standing != Standing::kOut) return;
    s_.poisoned = false;
    s_.error.clear();
    s_.before.reset();
    s_.layout_generation = event.layout_generation;
    MoveTo(event.position);
  }

  void On(const Unproven& event) {
    const bool in_doubt = stage() == Stage::kApplying || stage() == Stage::kApplied ||
                          stage() == Stage::kUndoing || s_.before.has_value();
    if (in_doubt && !event.poisoned) {
      Emit(WorkerLog{absl::StrCat("not now: ", event.reason,
                                  "; an update is not decided or not "
                                  "durable yet")});
      return;
    }
    GoOut(event.reason);
    if (s_.update && !in_doubt) Emit(Drop{s_.update->plan.transaction});
    s_.update.reset();
    s_.position.reset();
    s_.before.reset();
    s_.taking_back = false;
    s_.poisoned = event.poisoned;
    s_.error = event.reason;
  }

  void On(const StagingDone& event) {
    if (!IsUpdate(event.transaction) || stage() != Stage::kChecking) {
      // It may fail before all content is announced, too.
      if (!IsUpdate(event.transaction) || stage() != Stage::kStaging || event.ok) return;
    }
    report_ = true;
    if (event.ok) {
      s_.update->stage = Stage::kStaged;
      s_.update->sums = event.sums;
    } else {
      s_.update.reset();
      Refuse(event.transaction, event.error);
    }
  }

  void On(const Paused&) {
    if (stage() != Stage::kPausing) return;
    s_.standing = Standing::kPaused;
    StartApplying();
  }

  void StartApplying() {
    s_.update->stage = Stage::kApplying;
    Emit(wstore::protocol::Apply{s_.update->plan.transaction});
  }

  void On(const ApplyDone& event) {
    if (!IsUpdate(event.transaction) || stage() != Stage::kApplying) return;
    report_ = true;
    if (!event.ok) {
      s_.update.reset();
      Refuse(event.transaction, event.error);
      GoOn();
      return;
    }
    s_.update->stage = Stage::kApplied;
    s_.update->sums = event.sums;
    if (s_.update->plan.decided) CommitUpdate(true);
  }

  void On(const UndoDone&) {
    if (s_.taking_back) {
      s_.taking_back = false;
      const Position before = *s_.before;
      s_.before.reset();
      MoveTo(before);
      return;
    }
    if (stage() != Stage::kUndoing) return;
    s_.update.reset();
    report_ = true;
    GoOn();
  }

  void On(const AllReady& event) {
    if (s_.standing != Standing::kResuming || !s_.position || event.key != Key()) return;
    s_.standing = Standing::kServing;
    report_ = true;
    Emit(wstore::protocol::Start{*s_.position});
  }

  void On(const OrderReceived& event) {
    const Order& order = event.order;
    if (order.epoch < s_.epoch) {
      // A commit is in the journal, whoever announces it; all else of an old epoch is void.
      const bool logged = order.kind == OrderKind::kDecide && order.commit && order.durable;
      if (!logged) return;
    }
    if (order.epoch > s_.epoch) {
      s_.epoch = order.epoch;
      s_.valid_from = s_.request + 1;
    }
    switch (order.kind) {
      case OrderKind::kWait:
        return;
      case OrderKind::kRenew:
        return Renew(order);
      case OrderKind::kGrant:
        return Granted(order);
      case OrderKind::kPrepare:
        return Prepare(order.plan);
      case OrderKind::kFinish:
        return FinishOrdered(order.plan);
      case OrderKind::kApply:
        return ApplyOrdered(order.plan);
      case OrderKind::kDecide:
        return Decide(order);
      case OrderKind::kTakeBack:
        return TakeBackOrdered(order);
      case OrderKind::kLeave:
        return Leave(order);
    }
  }

  void Leave(const Order& order) {
    if (order.incarnation != s_.config.incarnation) return;
    if (s_.standing != Standing::kOut) GoOut(order.reason);
  }

  // When the lease that answers `request` ends; 0 if that is too long ago to be known.
  Micros LeaseEnd(const Order& order) const {
    if (Mutated(Mutation::kLeaseFromReceipt)) return now_ + order.lease;
    const WorkerState::Sent& sent = s_.sent[order.request % s_.sent.size()];
    return sent.request == order.request ? sent.at + order.lease : 0;
  }

  void Renew(const Order& order) {
    if (order.incarnation != s_.config.incarnation || s_.standing == Standing::kOut) return;
    // It answers for where this rank stood when it asked. Before the epoch was known here, that may
    // have been another place than the store of this epoch means.
    if (order.request < s_.valid_from) return;
    s_.lease_until = std::max(s_.lease_until, LeaseEnd(order));
  }

  void Granted(const Order& order) {
    if (s_.standing != Standing::kOut || !s_.position || s_.taking_back) return;
    if (Mutated(Mutation::kGrantWithoutNonce)) {
      // Any grant, whoever asked for it and when.
      s_.lease_until = now_ + order.lease;
      if (stage() < Stage::kPausing) s_.standing = Standing::kResuming;
      return;
    }
    const bool mine = order.incarnation == s_.config.incarnation && order.request >= s_.valid_from;
    // A rank in doubt does not know which version its memory will hold.
    const bool in_doubt = stage() >= Stage::kApplying && !Mutated(Mutation::kOutRanksApply);
    if (!mine || in_doubt || order.plan.to != *s_.position || LeaseEnd(order) <= now_) return;
    s_.lease_until = LeaseEnd(order);
    s_.standing = Standing::kResuming;
    report_ = true;
  }

  bool Matches(const Plan& plan) const {
    if (!s_.position) return false;
    if (Mutated(Mutation::kMatchOnVersion)) return s_.position->version == plan.from.version;
    return *s_.position == plan.from;
  }

  void Prepare(const Plan& plan) {
    // The store has not heard yet that it is being staged, and all of it has come meanwhile.
    if (IsUpdate(plan.transaction) && plan.complete) return FinishOrdered(plan);
    if (s_.update || s_.taking_back || !Matches(plan)) return;
    if (plan.layout_generation != s_.layout_generation) return;
    // What it has refused it takes only once it is decided, from a store that knows.
    if (s_.refused == plan.transaction && !plan.decided) return;
    // A rank that is out takes only what is in the journal.
    if (s_.standing == Standing::kOut && !plan.decided && !Mutated(Mutation::kOutRanksApply)) {
      return;
    }
    if (s_.before) return;  // nothing is put on a move that is not durable
    s_.update = WorkerUpdate{plan, Stage::kStaging, {}};
    s_.refused.reset();
    s_.error.clear();
    Emit(Begin{plan});
    if (plan.complete) FinishOrdered(plan);
  }

  void FinishOrdered(const Plan& plan) {
    if (!IsUpdate(plan.transaction) || stage() != Stage::kStaging) return;
    s_.update->plan.complete = true;
    s_.update->plan.to = plan.to;
    s_.update->plan.decided |= plan.decided;
    s_.update->stage = Stage::kChecking;
    Emit(wstore::protocol::Finish{s_.update->plan});
    report_ = true;
  }

  void ApplyOrdered(const Plan& plan) {
    if (!IsUpdate(plan.transaction) || stage() != Stage::kStaged || !Matches(plan)) return;
    s_.update->plan.decided |= plan.decided;
    if (s_.standing == Standing::kServing) {
      s_.update->stage = Stage::kPausing;
      Emit(Pause{});
      return;
    }
    if (s_.standing == Standing::kOut && !s_.update->plan.decided &&
        !Mutated(Mutation::kOutRanksApply)) {
      return;
    }
    // The engine stands still already.
    if (s_.standing == Standing::kResuming) s_.standing = Standing::kPaused;
    StartApplying();
  }

  void Decide(const Order& order) {
    if (s_.before && order.commit && order.durable && order.plan.to == *s_.position) {
      s_.before.reset();
      report_ = true;
      Emit(ForgetUndo{});
      return;
    }
    if (!IsUpdate(order.plan.transaction)) return;
    if (stage() == Stage::kApplied) {
      if (order.commit) return CommitUpdate(order.durable);
      s_.update->stage = Stage::kUndoing;
      Emit(Undo{order.plan.transaction});
      return;
    }
    const bool staged =
        stage() == Stage::kStaging || stage() == Stage::kChecking || stage() == Stage::kStaged;
    if (staged && !order.commit) DropUpdate();
  }

  void TakeBackOrdered(const Order& order) {
    if (!s_.before || s_.taking_back || order.plan.to != *s_.position) return;
    if (stage() >= Stage::kPausing) return;  // never: nothing is put on what is not durable
    if (s_.update) DropUpdate();
    GoOut(order.reason);
    s_.taking_back = true;
    Emit(TakeBack{});
  }

  WorkerState& s_;
  const Micros now_;
  WorkerEffects& effects_;
  bool report_ = false;
};

}  // namespace

WorkerState StartWorker(const WorkerConfig& config) {
  WSTORE_CHECK(CheckRank(config.rank, config.ranks).ok() && config.incarnation.nonce != 0);
  WorkerState state;
  state.config = config;
  return state;
}

WorkerEffects Step(WorkerState& state, Micros now, const WorkerEvent& event) {
  WorkerEffects effects;
  WorkerStep(state, now, effects).Run(event);
  return effects;
}

bool MayServe(const WorkerState& state, Micros now) {
  return state.standing == Standing::kServing &&
         (now < state.lease_until || state.config.serve_on_lost_lease);
}

}  // namespace wstore::protocol
