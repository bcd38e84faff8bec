// The phases of the active transaction, from its content to its decision.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "store/protocol/coordinator_step.h"

namespace wstore::protocol {

void CoordinatorStep::On(const ContentStaged& event) {
  if (!s_.active || s_.active->number != event.transaction) return;
  if (event.contributor < s_.active->staged.size()) s_.active->staged[event.contributor] = true;
}

void CoordinatorStep::On(const ContentComplete& event) {
  if (!s_.active || s_.active->number != event.transaction || s_.active->complete ||
      s_.active->phase != TransactionPhase::kStaging) {
    return;
  }
  if (!event.status.ok()) return AbortActive(event.status);
  s_.active->complete = true;
  if (!s_.active->staged.empty()) {
    s_.active->to.chain_digest = event.chain_digest;
    s_.active->move.head.chain_digest = event.chain_digest;
  }
}

void CoordinatorStep::On(const InstanceJudged& event) {
  const auto found = s_.instances.find(event.instance);
  if (found == s_.instances.end()) return;
  Instance& instance = found->second;
  instance.judge_is_out = false;
  // About votes that are others by now.
  if (instance.judging != event.transaction) return DriveInstance(instance);
  instance.approved = event.ok;
  instance.verdict = event.error.substr(0, 4096);
  if (s_.active && s_.active->number == event.transaction) return;
  if (event.ok) return DriveInstance(instance);
  // On its way to head by itself: begin anew.
  Log(absl::StrCat("instance ", instance.name, " cannot follow: ", event.error));
  instance.judging = {};
  for (RankRow& row : instance.ranks) {
    if (row.last.stage != Stage::kStaged || row.last.transaction != event.transaction) continue;
    Order drop;
    drop.kind = OrderKind::kDecide;
    drop.plan.transaction = event.transaction;
    Send(row, std::move(drop));
  }
}

Laggards CoordinatorStep::laggards() const {
  // A hung instance must not veto a rollback.
  if (s_.active->request.kind == TransactionKind::kRollback) return Laggards::kFence;
  return s_.active->request.laggards.value_or(s_.config.laggards);
}

bool CoordinatorStep::AdvanceOnce() {
  if (!s_.active) {
    if (!s_.pending_rollback || !s_.durable) return false;
    const StartTransaction request = *std::exchange(s_.pending_rollback, std::nullopt);
    BeginTransaction(request);
    return s_.active.has_value();
  }
  switch (s_.active->phase) {
    case TransactionPhase::kReserving:
      return false;
    case TransactionPhase::kStaging:
      return AdvanceStaging();
    case TransactionPhase::kVoting:
      return AdvanceVoting();
    case TransactionPhase::kApplying:
      return AdvanceApplying();
    case TransactionPhase::kRecording:
      if (Mutated(Mutation::kAbortWhileRecording) && now_ >= s_.active->hold_deadline) {
        AbortActive(absl::AbortedError("hold deadline"));
        return true;
      }
      return false;
  }
  return false;
}

bool CoordinatorStep::AdvanceStaging() {
  ActiveTransaction& active = *s_.active;
  if (active.complete) {
    if (!active.ForAll()) {
      BeginRecord(false);
      return true;
    }
    active.phase = TransactionPhase::kVoting;
    active.deadline = now_ + timing().vote_deadline;
    DriveAll();
    return true;
  }
  if (now_ >= active.deadline) {
    std::vector<size_t> silent;
    for (size_t i = 0; i < active.staged.size() && silent.size() < 16; ++i) {
      if (!active.staged[i]) silent.push_back(i);
    }
    AbortActive(absl::DeadlineExceededError(absl::StrCat(
        "not all content came within ", timing().stage_deadline / 1000,
        " ms; silent contributors: ", silent.empty() ? "none" : absl::StrJoin(silent, ", "))));
    return true;
  }
  const bool all =
      std::all_of(active.staged.begin(), active.staged.end(), [](bool b) { return b; });
  if (all && !active.completing) {
    active.completing = true;
    Emit(CompleteContent{active.number});
  }
  return false;
}

std::string CoordinatorStep::Refusal(const Instance& instance) const {
  for (const RankRow& row : instance.ranks) {
    if (row.last.refused == s_.active->number) {
      return absl::StrCat("rank ", ToString(row.last.rank), ": ", row.last.error);
    }
    if (row.last.stage == Stage::kApplied && row.last.transaction == s_.active->number &&
        row.last.sums != row.foretold && !Mutated(Mutation::kRereadNotCompared)) {
      return absl::StrCat("rank ", ToString(row.last.rank),
                          ": the sums that it re-read are not those that it foretold");
    }
  }
  if (instance.judging == s_.active->number && instance.approved == false) {
    return absl::StrCat("its sums are not the declared ones: ", instance.verdict);
  }
  return "";
}

bool CoordinatorStep::Voted(Instance& instance) {
  for (const RankRow& row : instance.ranks) {
    if (row.last.stage != Stage::kStaged || row.last.transaction != s_.active->number) return false;
  }
  return Approved(instance, s_.active->number);
}

// Asks once about the votes as they stand. True: they were found right.
bool CoordinatorStep::Approved(Instance& instance, TransactionNumber transaction) {
  if (Mutated(Mutation::kSumsNotCompared)) return true;
  if (instance.judging != transaction) {
    if (instance.judge_is_out) return false;
    instance.judging = transaction;
    instance.approved.reset();
    instance.judge_is_out = true;
    Emit(Judge{transaction, instance.name});
  }
  return instance.approved.value_or(false);
}

// Such an instance is never left behind: it would serve on.
bool CoordinatorStep::Unfenceable(const Instance& instance) const {
  return std::any_of(instance.ranks.begin(), instance.ranks.end(),
                     [](const RankRow& row) { return row.Unfenceable(); });
}

// A rank has been silent for so long that its lease has ended, so the instance cannot vote before
// that rank is started again. One that cannot be fenced may still serve, and is waited for.
bool CoordinatorStep::HasLostRank(const Instance& instance) const {
  if (Unfenceable(instance)) return false;
  return std::any_of(instance.ranks.begin(), instance.ranks.end(), [this](const RankRow& row) {
    return row.LeaseEnds() <= now_ && now_ >= row.heard_at + LeaseAllowance();
  });
}

// True: the transaction needs this instance, and does not wait for it any longer.
bool CoordinatorStep::AbortedByDeadline(const Instance& instance, std::string_view what,
                                        Micros deadline) {
  const bool unfenceable = Unfenceable(instance);
  const bool lost = s_.active->phase == TransactionPhase::kVoting && HasLostRank(instance);
  if (now_ < s_.active->deadline && !lost) return false;
  if (!unfenceable && laggards() == Laggards::kFence) return false;
  const std::string reason =
      lost ? absl::StrCat(" has lost a rank, and cannot ", std::string(what))
           : absl::StrCat(" did not ", std::string(what), " within ", deadline / 1000, " ms");
  AbortActive(absl::AbortedError(absl::StrCat(
      "instance ", instance.name, reason,
      unfenceable ? ", and cannot be fenced: evict it, if its processes are gone" : "")));
  return true;
}

bool CoordinatorStep::AbortedBy(const Instance& instance, const std::string& why) {
  const bool rollback = s_.active->request.kind == TransactionKind::kRollback;
  if (rollback && laggards() == Laggards::kFence && !Unfenceable(instance)) return false;
  AbortActive(absl::AbortedError(
      absl::StrCat(why, " (instance ", instance.name, "); everything is as before")));
  return true;
}

bool CoordinatorStep::AdvanceVoting() {
  bool waiting = false;
  for (auto& [name, instance] : s_.instances) {
    // Whoever has no lease serves nothing, and starts at head.
    if (!LeasesAlive(instance)) continue;
    const bool voted = Voted(instance);
    if (const std::string refusal = Refusal(instance); !refusal.empty()) {
      if (AbortedBy(instance, refusal)) return true;
    } else if (!voted) {
      if (AbortedByDeadline(instance, "vote", timing().vote_deadline)) return true;
      waiting = waiting || !HasLostRank(instance);
    }
  }
  if (waiting && now_ < s_.active->deadline) return false;
  OrderApply();
  return true;
}

void CoordinatorStep::OrderApply() {
  ActiveTransaction& active = *s_.active;
  size_t participants = 0;
  size_t alive = 0;
  for (auto& [name, instance] : s_.instances) {
    instance.reported = false;
    const bool live = LeasesAlive(instance);
    instance.participant = live && Voted(instance);
    alive += live ? 1 : 0;
    participants += instance.participant ? 1 : 0;
  }
  if (alive > 0 && participants == 0 && active.request.kind != TransactionKind::kRollback) {
    return AbortActive(absl::AbortedError(absl::StrCat(
        "none of ", alive, " instances voted within ", timing().vote_deadline / 1000, " ms")));
  }
  active.phase = TransactionPhase::kApplying;
  active.deadline = now_ + timing().apply_deadline;
  active.hold_deadline = now_ + timing().hold_deadline;
  DriveAll();
}

bool CoordinatorStep::Reported(Instance& instance) {
  if (instance.reported) return true;
  if (!instance.participant) return false;
  for (const RankRow& row : instance.ranks) {
    const Report& report = row.last;
    if (report.stage != Stage::kApplied || report.transaction != s_.active->number) return false;
  }
  instance.reported = true;
  return true;
}

// Nothing that the store ever told this instance lets it serve now, and it is not about to report.
bool CoordinatorStep::Fenced(const Instance& instance) const {
  if (Mutated(Mutation::kRecordWithoutFence)) return now_ >= s_.active->deadline - timing().lease;
  if (LeasesAlive(instance)) return false;
  if (!instance.participant || now_ >= s_.active->deadline) return true;
  return std::any_of(instance.ranks.begin(), instance.ranks.end(), [](const RankRow& row) {
    return row.last.standing == Standing::kOut && row.last.stage < Stage::kPausing;
  });
}

bool CoordinatorStep::AdvanceApplying() {
  ActiveTransaction& active = *s_.active;
  const bool rollback = active.request.kind == TransactionKind::kRollback;
  size_t reported = 0;
  size_t participants = 0;
  bool waiting = false;
  for (auto& [name, instance] : s_.instances) {
    participants += instance.participant ? 1 : 0;
    const std::string refusal = Refusal(instance);
    if (refusal.empty() && Reported(instance)) {
      ++reported;
      continue;
    }
    if (instance.participant) {
      if (!refusal.empty() && AbortedBy(instance, refusal)) return true;
      if (AbortedByDeadline(instance, "apply", timing().apply_deadline)) return true;
    }
    waiting = waiting || !Fenced(instance);
  }
  if (!waiting) {
    if (participants > 0 && reported == 0 && !rollback) {
      AbortActive(absl::AbortedError("no instance remains: all were too slow to apply"));
    } else {
      BeginRecord(reported > 0);
    }
    return true;
  }
  if (now_ >= active.hold_deadline) {
    AbortActive(absl::AbortedError(absl::StrCat("not decided within the hold deadline, ",
                                                timing().hold_deadline / 1000, " ms")));
    return true;
  }
  return false;
}

// No abort from here on: the record may be found in the journal whatever happens.
void CoordinatorStep::BeginRecord(bool installed) {
  ActiveTransaction& active = *s_.active;
  active.phase = TransactionPhase::kRecording;
  active.deadline = kNever;
  if (!Mutated(Mutation::kAbortWhileRecording)) active.hold_deadline = kNever;
  WriteRecord record;
  record.kind = active.request.kind;
  record.id = active.request.id;
  record.parent = active.from;
  record.move = active.move;
  record.durability = active.request.durability;
  record.hold = active.request.kind == TransactionKind::kRollback;
  record.installed = installed;
  record.content = active.request.content;
  Emit(std::move(record));
}

void CoordinatorStep::On(const RecordWritten& event) {
  if (s_.active && s_.active->number == event.transaction) {
    if (s_.active->phase != TransactionPhase::kRecording) return;
    switch (event.outcome) {
      case RecordOutcome::kDurable:
        return CommitActive(true);
      case RecordOutcome::kAppended:
        return CommitActive(false);
      case RecordOutcome::kNothing:
        return AbortActive(event.status);
      case RecordOutcome::kUnknown:
        break;
    }
    for (const uint64_t waiter : s_.active->waiters) {
      Reply(waiter, AnswerKind::kUnknown, event.status, s_.active->number, s_.active->to);
    }
    s_.active->waiters.clear();
  } else if (!s_.durable && s_.head().transaction == event.transaction) {
    if (event.outcome == RecordOutcome::kDurable) {
      s_.durable = true;
      return DriveAll();
    }
  } else {
    return;
  }
  s_.phase = CoordinatorPhase::kUnknown;
  Emit(ReopenJournal{});
}

void CoordinatorStep::CommitActive(bool durable) {
  const ActiveTransaction active = *std::exchange(s_.active, std::nullopt);
  Outcome outcome;
  outcome.id = active.request.id;
  outcome.kind = active.request.kind;
  outcome.transaction = active.number;
  outcome.to = active.move.trial ? Position{active.to.move, active.move.trial->version,
                                            active.move.trial->chain_digest}
                                 : active.to;
  outcome.content = active.request.content;
  if (active.MovesRanks()) {
    s_.moves.push_back(active.move);
    if (s_.moves.size() > s_.config.max_moves) s_.moves.pop_front();
    s_.durable = durable;
    if (active.ForAll()) s_.last_all_move = active.to.move;
  }
  if (active.request.kind == TransactionKind::kRollback) s_.hold = true;
  for (auto& [name, instance] : s_.instances) {
    if (active.ForAll()) instance.fenced = !instance.reported;
    instance.participant = false;
    instance.reported = false;
  }
  for (const uint64_t waiter : active.waiters) {
    Reply(waiter, durable ? AnswerKind::kCommitted : AnswerKind::kServedNotDurable,
          absl::OkStatus(), active.number, outcome.to);
  }
  s_.outcomes.push_back(std::move(outcome));
  if (s_.outcomes.size() > s_.config.max_outcomes) s_.outcomes.pop_front();
  DriveAll();
}

void CoordinatorStep::AbortActive(absl::Status status) {
  const ActiveTransaction active = *std::exchange(s_.active, std::nullopt);
  for (auto& [name, instance] : s_.instances) {
    instance.participant = false;
    instance.reported = false;
  }
  // A number is named to nobody before it is on disk.
  const bool named = active.phase != TransactionPhase::kReserving;
  for (const uint64_t waiter : active.waiters) {
    Reply(waiter, AnswerKind::kAborted, status, named ? active.number : TransactionNumber(),
          named ? active.to : Position());
  }
  Log(absl::StrCat("transaction ", active.number.value(), " aborted: ", status.message()));
  s_.aborted.emplace_back(active.request.id, std::move(status));
  if (s_.aborted.size() > 256) s_.aborted.pop_front();
  Emit(DiscardContent{active.number});
  DriveAll();
}

}  // namespace wstore::protocol
