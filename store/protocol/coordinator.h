// The store's half of the commit protocol, for the whole fleet, as a pure function.
//
//   CoordinatorState state = NewCoordinator(config);
//   CoordinatorEffects effects = Step(state, now, event);   // for every event
//   carry out effects.list in order; wake at effects.wake_at with CoordinatorTick
//
// It decides what ranks are told, when a record is written, and what callers are answered. Whoever
// drives it has the journal, the network and the clock, and promises:
//   - effects are carried out in order; each that names an event is answered by it once;
//   - one process at a time has the journal open for writing; another run starts with Started, with
//     what the journal holds then, no sooner than the run before has ended;
//   - SyncEpoch, ReserveNumbers and WriteRecord are on disk (WriteRecord with kAsync: appended)
//     when their events are given.
//
// Bounded: see CoordinatorConfig. A step has at most a few effects per rank. Nothing blocks or
// throws.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/protocol/coordinator_events.h"
#include "store/protocol/messages.h"
#include "store/protocol/types.h"
#include "wstore/fingerprint.h"

namespace wstore::protocol {

struct CoordinatorConfig {
  Timing timing;
  Laggards laggards = Laggards::kFence;
  uint32_t max_instances = 1024;
  uint32_t max_moves = 1024;     // remembered; a rank in doubt about an older one starts anew
  uint32_t max_outcomes = 4096;  // remembered by id
  uint32_t max_waiters = 256;    // per transaction
};

// One rank as the store knows it.
struct RankRow {
  Incarnation incarnation;  // zero: never heard of in this run
  Report last;
  Micros heard_at = 0;
  // On this clock, when no lease given to this rank can be good any more: skew included. The second
  // is of earlier incarnations, which may still run.
  Micros lease_ends = 0;
  Micros old_lease_ends = 0;
  uint64_t granted_request = 0;  // the latest that was granted
  TouchedSums foretold;          // with the latest vote
  bool evicted = false;

  bool heard() const { return incarnation.nonce != 0; }

  Micros LeaseEnds() const { return std::max(lease_ends, old_lease_ends); }
  // It serves, or may by a grant, and no lease ends that.
  bool Unfenceable() const { return lease_ends == kNever; }
};

struct Instance {
  std::string name;
  std::vector<RankRow> ranks;
  // In the transaction now active:
  bool participant = false;  // was given the apply order
  bool reported = false;     // all ranks have applied
  bool fenced = false;       // was left out of the last decision; until it is granted again
  // Judging of the votes as they stand: a new vote resets it.
  TransactionNumber judging;
  std::optional<bool> approved;
  std::string verdict;        // what speaks against them
  bool judge_is_out = false;  // its answer is to come, be it about these votes or earlier ones
};

enum class TransactionPhase : uint8_t {
  kReserving,  // numbers are being synced
  kStaging,    // content is coming
  kVoting,
  kApplying,   // the apply order is out: the fleet is on hold
  kRecording,  // the record's write has begun: no abort from here on
};
std::string_view TransactionPhaseName(TransactionPhase phase);

struct ActiveTransaction {
  StartTransaction request;
  TransactionPhase phase = TransactionPhase::kReserving;
  TransactionNumber number;
  Position from;
  Position to;               // to.chain_digest once content is complete
  std::vector<bool> staged;  // by contributor
  bool completing = false;   // CompleteContent was asked for
  bool complete = false;
  Micros begun_at = 0;
  Micros deadline = kNever;       // of the phase
  Micros hold_deadline = kNever;  // kApplying
  std::vector<uint64_t> waiters;
  Move move;  // as it will be recorded

  bool MovesRanks() const { return request.kind != TransactionKind::kCandidate; }
  bool ForAll() const { return MovesRanks() && request.policy == Policy::kAll; }
  // From the apply order to the decision nobody may start serving.
  bool InWindow() const { return ForAll() && phase >= TransactionPhase::kApplying; }
};

enum class CoordinatorPhase : uint8_t {
  kStarting,    // the epoch is not synced: no message goes out
  kRecovering,  // leases of the run before may be good
  kReady,
  kUnknown,  // a write's outcome is not known: nothing until the journal is reopened
};
std::string_view CoordinatorPhaseName(CoordinatorPhase phase);

struct CoordinatorState {
  CoordinatorConfig config;
  CoordinatorPhase phase = CoordinatorPhase::kStarting;
  Epoch epoch;
  Micros started_at = 0;
  Numbers next;              // to be given out
  std::deque<Move> moves;    // the latest, ascending; never empty once started
  MoveNumber last_all_move;  // the latest under policy `all`: nobody serves an older one
  bool durable = true;       // the latest move is
  bool hold = false;
  std::map<std::string, Instance> instances;
  std::optional<ActiveTransaction> active;
  std::optional<StartTransaction> pending_rollback;  // begins when it may
  std::deque<Outcome> outcomes;
  std::deque<std::pair<std::string, absl::Status>> aborted;  // the latest by id, for messages

  const Move& head() const { return moves.back(); }
};

CoordinatorState NewCoordinator(const CoordinatorConfig& config);
CoordinatorEffects Step(CoordinatorState& state, Micros now, const CoordinatorEvent& event);

// A rank as `status` shows it: "current", "behind", "staging", "in-doubt", "fenced", "poisoned" or
// "lost".
std::string_view RankStateName(const CoordinatorState& state, const RankId& rank, Micros now);

// Where a lost rank may serve all the same ("may serve v7"), because it cannot be fenced. Nothing:
// it is not lost, or serves nothing by now.
std::optional<Position> MayServeWhenLost(const CoordinatorState& state, const RankId& rank,
                                         Micros now);

// Where an instance should stand after `move`.
Position Target(const Move& move, const std::string& instance);

}  // namespace wstore::protocol
