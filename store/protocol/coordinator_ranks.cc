// Ranks: what they report, what they are told, and until when they may serve.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "store/protocol/coordinator_step.h"

namespace wstore::protocol {

void CoordinatorStep::Send(const RankRow& row, Order order) {
  order.rank = row.last.rank;
  order.epoch = s_.epoch;
  order.incarnation = row.last.incarnation;
  order.request = row.last.request;
  Emit(SendOrder{std::move(order)});
}

void CoordinatorStep::SendPlan(const Instance& instance, const RankRow& row, OrderKind kind,
                               const Move& move, bool decided) {
  Order order;
  order.kind = kind;
  order.plan.transaction = move.transaction;
  order.plan.from = *row.last.position;
  order.plan.to = Target(move, instance.name);
  order.plan.decided = decided;
  order.plan.complete = decided || (s_.active && s_.active->complete);
  order.plan.layout_generation = row.last.layout_generation;
  Send(row, std::move(order));
}

bool CoordinatorStep::LeasesAlive(const Instance& instance) const {
  return std::any_of(instance.ranks.begin(), instance.ranks.end(),
                     [this](const RankRow& row) { return row.LeaseEnds() > now_; });
}

const Move* CoordinatorStep::FindMove(MoveNumber number) const {
  const auto found =
      std::lower_bound(s_.moves.begin(), s_.moves.end(), number,
                       [](const Move& move, MoveNumber value) { return move.head.move < value; });
  return found != s_.moves.end() && found->head.move == number ? &*found : nullptr;
}

bool CoordinatorStep::InLog(TransactionNumber transaction, MoveNumber move) const {
  const Move* const found = FindMove(move);
  return found != nullptr && found->transaction == transaction;
}

// Whether a rank can stand there. Positions older than what is remembered are taken at their word:
// whoever composes the difference from there compares digests.
bool CoordinatorStep::IsKnown(const Instance& instance, const Position& position) const {
  if (position.move < s_.moves.front().head.move) return true;
  const Move* const found = FindMove(position.move);
  return found != nullptr && Target(*found, instance.name) == position;
}

// Room for another instance, at the cost of one that is long gone.
void CoordinatorStep::ForgetOneInstance() {
  auto oldest = s_.instances.end();
  Micros oldest_heard = kNever;
  for (auto it = s_.instances.begin(); it != s_.instances.end(); ++it) {
    if (LeasesAlive(it->second) || it->second.participant) continue;
    Micros heard = 0;
    for (const RankRow& row : it->second.ranks) heard = std::max(heard, row.heard_at);
    if (heard < oldest_heard && now_ >= heard + LeaseAllowance()) {
      oldest_heard = heard;
      oldest = it;
    }
  }
  if (oldest != s_.instances.end()) s_.instances.erase(oldest);
}

Instance* CoordinatorStep::FindOrMakeInstance(const Report& report) {
  const auto found = s_.instances.find(report.rank.instance);
  if (found != s_.instances.end()) {
    if (found->second.ranks.size() == report.ranks) return &found->second;
    // Started again with another number of ranks: only once the old ones are out.
    if (LeasesAlive(found->second) || found->second.participant) return nullptr;
    s_.instances.erase(found);
  }
  if (s_.instances.size() >= s_.config.max_instances) ForgetOneInstance();
  if (s_.instances.size() >= s_.config.max_instances) return nullptr;
  Instance& instance = s_.instances[report.rank.instance];
  instance.name = report.rank.instance;
  instance.ranks.resize(report.ranks);
  for (uint32_t rank = 0; rank < report.ranks; ++rank) {
    instance.ranks[rank].last.rank = {instance.name, rank};
  }
  return &instance;
}

// A rank that serves without a lease cannot be fenced. That it was started again, or that an
// operator evicts it, says that its process is gone; the time of a lease is left to it all the
// same.
void CoordinatorStep::ForgetUnfenceable(RankRow& row) {
  if (row.Unfenceable()) row.lease_ends = now_ + LeaseAllowance();
}

// A rank that cannot be fenced may serve for ever from its grant on, heard of or not.
Micros CoordinatorStep::LeaseEndsIfGiven(const Report& report) const {
  const bool for_ever = report.unfenceable && !Mutated(Mutation::kFenceUnfenceable);
  return for_ever ? kNever : now_ + LeaseAllowance();
}

// False: the report is late, doubled, or of an incarnation that was superseded.
bool CoordinatorStep::TakeReport(Instance& instance, const Report& report) {
  RankRow& row = instance.ranks[report.rank.rank];
  if (row.incarnation != report.incarnation) {
    // Silence says nothing of a process that needs no lease.
    const bool silent = now_ >= row.heard_at + LeaseAllowance() && !row.Unfenceable();
    if (report.incarnation < row.incarnation && !silent) {
      Order leave;
      leave.rank = report.rank;
      leave.kind = OrderKind::kLeave;
      leave.epoch = s_.epoch;
      leave.incarnation = report.incarnation;
      leave.reason = "another process runs as this rank";
      Emit(SendOrder{std::move(leave)});
      return false;
    }
    ForgetUnfenceable(row);
    row.old_lease_ends = row.LeaseEnds();
    row.lease_ends = 0;
    row.granted_request = 0;
    row.evicted = false;
    row.incarnation = report.incarnation;
  } else if (report.request <= row.last.request) {
    return false;
  }
  const bool votes = report.stage == Stage::kStaged;
  const bool voted = row.last.stage == Stage::kStaged && row.incarnation == row.last.incarnation &&
                     row.last.transaction == report.transaction;
  if (votes && (!voted || row.foretold != report.sums)) instance.judging = {};
  row.last = report;
  row.last.error = report.error.substr(0, 4096);
  row.heard_at = now_;
  if (votes) row.foretold = report.sums;
  // It has none, and no grant is on its way to it that it would take.
  if (report.standing == Standing::kOut && report.valid_from > row.granted_request) {
    row.lease_ends = 0;
  }
  if (report.unfenceable && report.standing != Standing::kOut && !row.evicted) {
    row.lease_ends = LeaseEndsIfGiven(report);
  }
  return true;
}

void CoordinatorStep::On(const ReportReceived& event) {
  const Report& report = event.report;
  // No message before the epoch is on disk.
  if (s_.phase == CoordinatorPhase::kStarting) return;
  if (!CheckRank(report.rank, report.ranks).ok() || report.incarnation.nonce == 0) return;
  Instance* const instance = FindOrMakeInstance(report);
  if (instance == nullptr) {
    Order wait;
    wait.rank = report.rank;
    wait.epoch = s_.epoch;
    wait.reason = absl::StrCat("no room for instance ", report.rank.instance, " of ", report.ranks,
                               " ranks: an instance of that name with another number of ranks may "
                               "serve, or ",
                               s_.config.max_instances, " instances are there");
    Emit(SendOrder{std::move(wait)});
    return;
  }
  RankRow& row = instance->ranks[report.rank.rank];
  const Stage stage_before = row.last.stage;
  if (!TakeReport(*instance, report)) return;
  Advance();
  // A rank that is ready to follow, or has arrived, can let the others of its instance go on.
  const bool following = !s_.active || row.last.transaction != s_.active->number;
  if (row.last.stage != stage_before && following) {
    DriveInstance(*instance);
  } else {
    Drive(*instance, row);
  }
  AnswerReport(*instance, row);
}

void CoordinatorStep::On(const Evict& event) {
  const auto found = s_.instances.find(event.instance);
  if (found == s_.instances.end()) return;
  for (RankRow& row : found->second.ranks) {
    row.evicted = true;
    ForgetUnfenceable(row);
  }
  DriveInstance(found->second);
}

void CoordinatorStep::DriveAll() {
  for (auto& [name, instance] : s_.instances) DriveInstance(instance);
}

void CoordinatorStep::DriveInstance(Instance& instance) {
  for (RankRow& row : instance.ranks) Drive(instance, row);
}

// Sends whatever moves this rank on from where it last said it was.
void CoordinatorStep::Drive(Instance& instance, RankRow& row) {
  if (!row.heard()) return;
  const Report& report = row.last;
  if (row.evicted && report.standing != Standing::kOut) {
    Order leave;
    leave.kind = OrderKind::kLeave;
    leave.reason = "evicted";
    Send(row, std::move(leave));
  }
  if (!report.position) return;
  if (!report.durable) {
    if (!InLog(s_.head().transaction, report.position->move) ||
        !IsKnown(instance, *report.position)) {
      Order back;
      back.kind = OrderKind::kTakeBack;
      back.plan.to = *report.position;
      back.reason = absl::StrCat(ToString(*report.position), " was lost before it was durable");
      Send(row, std::move(back));
      return;
    }
    if (s_.durable) {
      Order order;
      order.kind = OrderKind::kDecide;
      order.plan.transaction = s_.head().transaction;
      order.plan.to = *report.position;
      order.commit = true;
      Send(row, std::move(order));
    }
  } else if (!IsKnown(instance, *report.position)) {
    Emit(Alarm{absl::StrCat("rank ", ToString(report.rank), " stands at ",
                            ToString(*report.position),
                            ", which this store does not know; its "
                            "head is ",
                            ToString(s_.head().head))});
    Order leave;
    leave.kind = OrderKind::kLeave;
    leave.reason = "the store does not know this rank's version";
    Send(row, std::move(leave));
    return;
  }
  if (report.stage != Stage::kNone) {
    DriveUpdate(instance, row);
  } else {
    DriveIdle(instance, row);
  }
}

void CoordinatorStep::DriveUpdate(Instance& instance, RankRow& row) {
  const Report& report = row.last;
  if (s_.active && report.transaction == s_.active->number) {
    // The vote that was judged, not one that was given anew since.
    const bool judged = instance.judging == s_.active->number && instance.approved.value_or(false);
    const bool ordered = s_.active->phase == TransactionPhase::kApplying && instance.participant &&
                         (judged || Mutated(Mutation::kSumsNotCompared));
    if (report.stage == Stage::kStaging && s_.active->complete) {
      SendPlan(instance, row, OrderKind::kFinish, s_.active->move, false);
    } else if (report.stage == Stage::kStaged && ordered) {
      SendPlan(instance, row, OrderKind::kApply, s_.active->move, false);
    }
    return;
  }
  Order decide;
  decide.kind = OrderKind::kDecide;
  decide.plan.transaction = report.transaction;
  decide.plan.from = *report.position;
  if (InLog(report.transaction, report.move)) {
    const Move& move = *FindMove(report.move);
    decide.plan.to = Target(move, instance.name);
    decide.commit = true;
    decide.durable = s_.durable || move.head.move != s_.head().head.move;
    if (report.stage == Stage::kApplied) return Send(row, std::move(decide));
    if (move.head.move == s_.head().head.move) {
      if (!s_.durable) return;
      if (report.stage == Stage::kStaging) {
        SendPlan(instance, row, OrderKind::kFinish, move, true);
      } else if (report.stage == Stage::kStaged && MayApplyDecided(instance, row)) {
        SendPlan(instance, row, OrderKind::kApply, move, true);
      }
      return;
    }
    decide.commit = false;  // not applied, and head is elsewhere by now
  }
  // Whoever takes back an undecided update goes on with the old version; but the run before may
  // have told others that it is committed, if it was not durable. Their leases must end first.
  const bool recovering = s_.phase == CoordinatorPhase::kRecovering;
  if (report.stage >= Stage::kPausing && recovering) return;
  decide.plan.to.move = report.move;
  Send(row, std::move(decide));
}

void CoordinatorStep::DriveIdle(Instance& instance, RankRow& row) {
  const Report& report = row.last;
  const bool out = report.standing == Standing::kOut && !Mutated(Mutation::kOutRanksApply);
  const Position target = Target(s_.head(), instance.name);
  if (report.position->move != target.move) {
    if (s_.durable && report.durable) {
      SendPlan(instance, row, OrderKind::kPrepare, s_.head(), true);
    }
    return;
  }
  if (!s_.active || !s_.active->MovesRanks() || out) return;
  const bool open = s_.active->phase == TransactionPhase::kStaging ||
                    s_.active->phase == TransactionPhase::kVoting;
  if (open && report.refused != s_.active->number) {
    SendPlan(instance, row, OrderKind::kPrepare, s_.active->move, false);
  }
}

// An instance that serves waits until all its ranks can go there; a rank that is out need not.
bool CoordinatorStep::MayApplyDecided(Instance& instance, const RankRow& row) {
  if (row.last.standing == Standing::kOut) return true;
  const Position target = Target(s_.head(), instance.name);
  bool all_staged = true;
  for (const RankRow& mate : instance.ranks) {
    const bool there = mate.last.position == target;
    const bool staged =
        mate.last.stage >= Stage::kStaged && mate.last.transaction == s_.head().transaction;
    if (!mate.heard() || !(there || staged)) return false;
    all_staged =
        all_staged && mate.last.stage == Stage::kStaged && mate.last.position == row.last.position;
  }
  // Their sums add up only while all stand at one place, and none has applied.
  if (!all_staged) return true;
  return Approved(instance, s_.head().transaction);
}

// Empty: the lease may be renewed.
std::string CoordinatorStep::WhyNoRenewal(const Instance& instance, const RankRow& row) const {
  const Report& report = row.last;
  if (row.evicted) return "evicted";
  if (!report.position || !IsKnown(instance, *report.position)) return "its version is not known";
  if (report.position->move < s_.last_all_move) return "head has moved, for all";
  if (s_.active && s_.active->InWindow() && !instance.reported) {
    return "the fleet is on hold for a transaction";
  }
  return "";
}

// Empty: the rank may serve.
std::string CoordinatorStep::WhyNoGrant(const Instance& instance, const RankRow& row) const {
  if (s_.phase != CoordinatorPhase::kReady) return "the store has just started";
  if (s_.active && s_.active->InWindow() && !Mutated(Mutation::kGrantInWindow)) {
    return "a transaction is being decided";
  }
  if (row.last.stage >= Stage::kPausing && !Mutated(Mutation::kOutRanksApply)) {
    return "it is in doubt";
  }
  const Position target = Target(s_.head(), instance.name);
  for (const RankRow& mate : instance.ranks) {
    if (!mate.heard()) {
      return absl::StrCat("rank ", mate.last.rank.rank, " of its instance is not there");
    }
    if (mate.evicted) return "evicted";
    if (mate.last.position != target) {
      return absl::StrCat("rank ", mate.last.rank.rank, " is not at ", ToString(target));
    }
  }
  return "";
}

void CoordinatorStep::AnswerReport(Instance& instance, RankRow& row) {
  const Report& report = row.last;
  const bool out = report.standing == Standing::kOut;
  Order order;
  order.reason = out ? WhyNoGrant(instance, row) : WhyNoRenewal(instance, row);
  if (order.reason.empty()) {
    order.kind = out ? OrderKind::kGrant : OrderKind::kRenew;
    order.lease = timing().lease;
    row.lease_ends = std::max(row.lease_ends, LeaseEndsIfGiven(report));
    if (out) {
      order.plan.to = *report.position;
      row.granted_request = report.request;
      instance.fenced = false;
    }
  }
  Send(row, std::move(order));
}

}  // namespace wstore::protocol
