#include "store/protocol/coordinator.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "store/protocol/coordinator_step.h"

namespace wstore::protocol {

std::string_view TransactionPhaseName(TransactionPhase phase) {
  static constexpr std::array<std::string_view, 5> kNames = {"reserving", "staging", "voting",
                                                             "applying", "recording"};
  return kNames[static_cast<size_t>(phase)];
}

std::string_view CoordinatorPhaseName(CoordinatorPhase phase) {
  static constexpr std::array<std::string_view, 4> kNames = {"starting", "recovering", "ready",
                                                             "unknown"};
  return kNames[static_cast<size_t>(phase)];
}

std::string_view TransactionKindName(TransactionKind kind) {
  static constexpr std::array<std::string_view, 6> kNames = {"publish", "candidate", "rollout",
                                                             "promote", "revert",    "rollback"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view AnswerKindName(AnswerKind kind) {
  static constexpr std::array<std::string_view, 8> kNames = {
      "begun",   "committed", "served, not durable", "repeated", "unchanged", "refused",
      "aborted", "unknown"};
  return kNames[static_cast<size_t>(kind)];
}

Position Target(const Move& move, const std::string& instance) {
  if (move.trial && std::find(move.trial->instances.begin(), move.trial->instances.end(),
                              instance) != move.trial->instances.end()) {
    return {move.head.move, move.trial->version, move.trial->chain_digest};
  }
  return move.head;
}

CoordinatorState NewCoordinator(const CoordinatorConfig& config) {
  WSTORE_CHECK(CheckTiming(config.timing).ok());
  CoordinatorState state;
  state.config = config;
  return state;
}

CoordinatorEffects Step(CoordinatorState& state, Micros now, const CoordinatorEvent& event) {
  CoordinatorEffects effects;
  CoordinatorStep(state, now, effects).Run(event);
  return effects;
}

void CoordinatorStep::Run(const CoordinatorEvent& event) {
  // Without a journal there is nothing to say.
  const bool mute = s_.phase == CoordinatorPhase::kUnknown || s_.moves.empty();
  if (mute && !std::holds_alternative<Started>(event)) {
    if (const auto* start = std::get_if<StartTransaction>(&event)) {
      Refuse(start->waiter, absl::UnavailableError("the store is opening its journal; try again"));
    } else if (const auto* abort = std::get_if<AbortTransaction>(&event)) {
      Refuse(abort->waiter, absl::UnavailableError("the store is opening its journal; try again"));
    } else if (const auto* await = std::get_if<AwaitOutcome>(&event)) {
      Reply(await->waiter, AnswerKind::kUnknown,
            absl::UnavailableError("the store is opening its journal; ask again"), {}, {});
    }
    return;
  }
  std::visit([this](const auto& e) { On(e); }, event);
  Advance();
  SetWakeTime();
}

// How long after it is given, on this clock, no lease can be good any more.
Micros CoordinatorStep::LeaseAllowance() const {
  return timing().lease + (Mutated(Mutation::kLeaseWithoutSkew) ? 0 : timing().skew);
}

void CoordinatorStep::On(const Started& event) {
  WSTORE_CHECK(!event.journal.moves.empty());
  if (s_.pending_rollback) {
    Reply(s_.pending_rollback->waiter, AnswerKind::kAborted,
          absl::AbortedError("the journal was reopened before the rollback began; ask again"), {},
          {});
  }
  CoordinatorState fresh;
  fresh.config = s_.config;
  fresh.epoch = event.journal.epoch.next();
  fresh.started_at = now_;
  fresh.next = event.journal.next;
  fresh.moves.assign(event.journal.moves.begin(), event.journal.moves.end());
  fresh.hold = event.journal.hold;
  fresh.outcomes.assign(event.journal.outcomes.begin(), event.journal.outcomes.end());
  for (const Move& move : fresh.moves) {
    if (move.policy == Policy::kAll) fresh.last_all_move = move.head.move;
  }
  if (Mutated(Mutation::kEpochNotSynced)) {
    fresh.epoch = Epoch(1);
    fresh.next = {fresh.head().transaction.next(), fresh.head().head.version.next(),
                  fresh.head().head.move.next()};
  }
  s_ = std::move(fresh);
  Emit(SyncEpoch{s_.epoch});
}

void CoordinatorStep::On(const EpochSynced&) {
  if (s_.phase != CoordinatorPhase::kStarting) return;
  s_.phase =
      Mutated(Mutation::kNoRecovery) ? CoordinatorPhase::kReady : CoordinatorPhase::kRecovering;
}

void CoordinatorStep::On(const HoldChanged& event) {
  s_.hold = event.hold;
  const bool publishing = s_.active && s_.active->request.kind != TransactionKind::kRollback &&
                          s_.active->phase < TransactionPhase::kRecording;
  if (event.hold && publishing) {
    AbortActive(absl::FailedPreconditionError("publishing was put on hold"));
  }
}

void CoordinatorStep::Advance() {
  if (s_.phase == CoordinatorPhase::kRecovering && now_ >= s_.started_at + LeaseAllowance()) {
    s_.phase = CoordinatorPhase::kReady;
    Log("leases given before this start have ended");
    DriveAll();
  }
  if (s_.phase != CoordinatorPhase::kReady) return;
  while (AdvanceOnce()) {
  }
}

void CoordinatorStep::SetWakeTime() {
  Micros at = kNever;
  const auto consider = [&](Micros time) {
    if (time > now_) at = std::min(at, time);
  };
  if (s_.phase == CoordinatorPhase::kRecovering) consider(s_.started_at + LeaseAllowance());
  if (s_.active) {
    consider(s_.active->deadline);
    consider(s_.active->hold_deadline);
    const bool on_leases = s_.active->phase == TransactionPhase::kVoting ||
                           s_.active->phase == TransactionPhase::kApplying;
    if (on_leases) {
      for (const auto& [name, instance] : s_.instances) {
        for (const RankRow& row : instance.ranks) consider(row.LeaseEnds());
      }
    }
  }
  effects_.wake_at = at;
}

namespace {

bool IsLost(const CoordinatorState& state, const RankRow& row, Micros now) {
  const Timing& timing = state.config.timing;
  return !row.heard() || now >= row.heard_at + timing.lease + timing.skew;
}

}  // namespace

std::string_view RankStateName(const CoordinatorState& state, const RankId& rank, Micros now) {
  const auto found = state.instances.find(rank.instance);
  if (found == state.instances.end() || rank.rank >= found->second.ranks.size()) return "lost";
  const Instance& instance = found->second;
  const RankRow& row = instance.ranks[rank.rank];
  if (IsLost(state, row, now)) return "lost";
  if (row.last.poisoned) return "poisoned";
  if (row.last.stage >= Stage::kApplying) return "in-doubt";
  if (row.last.standing == Standing::kOut && instance.fenced) return "fenced";
  if (row.last.stage != Stage::kNone) return "staging";
  const bool there = !state.moves.empty() && row.last.position &&
                     *row.last.position == Target(state.head(), rank.instance);
  return there && row.last.standing != Standing::kOut ? "current" : "behind";
}

std::optional<Position> MayServeWhenLost(const CoordinatorState& state, const RankId& rank,
                                         Micros now) {
  const auto found = state.instances.find(rank.instance);
  if (found == state.instances.end() || rank.rank >= found->second.ranks.size()) return {};
  const RankRow& row = found->second.ranks[rank.rank];
  if (!IsLost(state, row, now) || !row.Unfenceable()) return {};
  return row.last.position;
}

}  // namespace wstore::protocol
