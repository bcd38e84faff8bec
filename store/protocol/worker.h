// The worker's half of the commit protocol, for one rank, as a pure function.
//
//   WorkerState state = StartWorker(config);
//   WorkerEffects effects = Step(state, now, event);     // for every event
//   carry out effects.list in order; wake at effects.wake_at with WorkerTick
//
// It decides when a rank may serve, and what its replica is told. Whoever drives it has the engine,
// the replica, the network and the clock, and promises:
//   - effects are carried out in order; each event about one (StagingDone, Paused, ApplyDone,
//     UndoDone) is given once, and none for an effect that a later Drop or Stop made needless;
//   - output is released only while MayServe() is true at that moment, on a clock that counts time
//     suspended;
//   - AllReady is given only if all ranks of the instance are ready with this one key: for instance
//     by an all-gather of the keys at a safe point. NotReady takes a key back.
//
// Bounded: a step has at most 16 effects; the state does not grow. Nothing blocks or throws.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "store/protocol/messages.h"
#include "store/protocol/types.h"

namespace wstore::protocol {

struct WorkerConfig {
  RankId rank;
  uint32_t ranks = 1;
  Incarnation incarnation;
  Micros report_interval = 1'000'000;  // at most a third of the lease
  // Goes on serving when the lease is lost. Such an instance cannot be fenced.
  bool serve_on_lost_lease = false;
};

// Events.

// An audit proved what the memory holds. At start, and after LayoutChanged or Unproven.
struct Proved {
  Position position;
  uint64_t layout_generation = 0;
};
// The memory is of unknown content, going away or damaged; or its layout changes. Refused (nothing
// happens) from kApplying until the decision, and until that is durable, unless `poisoned`.
struct Unproven {
  bool poisoned = false;
  std::string reason;
};
struct OrderReceived {
  Order order;
};
// All content of the update came and was compared with the memory; or it cannot be had or taken,
// in which case the replica has dropped it.
struct StagingDone {
  TransactionNumber transaction;
  bool ok = false;
  TouchedSums sums;
  std::string error;
};
// The engine stands at a safe point, on all ranks at the same step.
struct Paused {};
// After Apply: the update is in memory and re-read; or it is taken back and re-read.
struct ApplyDone {
  TransactionNumber transaction;
  bool ok = false;
  TouchedSums sums;
  std::string error;
};
// After Undo or TakeBack: the old version is back and re-read. Where it is not, give Unproven.
struct UndoDone {};
struct AllReady {
  ReadyKey key;
};
struct WorkerTick {};
using WorkerEvent = std::variant<Proved, Unproven, OrderReceived, StagingDone, Paused, ApplyDone,
                                 UndoDone, AllReady, WorkerTick>;

// Effects.

struct SendReport {
  Report report;
};
struct Begin {  // start to collect an update
  Plan plan;
};
struct Finish {  // check it when all of it is there
  Plan plan;
};
struct Drop {  // forget an update that was not applied
  TransactionNumber transaction;
};
struct Pause {};  // at the next safe point; then give Paused
struct Apply {    // write it; the engine is not running
  TransactionNumber transaction;
};
struct Commit {
  TransactionNumber transaction;
  bool keep_undo = false;  // until ForgetUndo or TakeBack
};
struct Undo {  // take the applied update back
  TransactionNumber transaction;
};
struct TakeBack {};    // take the committed update back whose undo was kept
struct ForgetUndo {};  // the committed update is durable
struct Ready {         // this rank could serve, with this key, which replaces the one before
  ReadyKey key;
};
struct NotReady {};  // it could not any more
struct Start {       // the engine serves from now on
  Position position;
};
struct Stop {  // at once: release nothing more; forget a pending Pause
  std::string reason;
};
struct WorkerLog {
  std::string text;
};
using WorkerEffect = std::variant<SendReport, Begin, Finish, Drop, Pause, Apply, Commit, Undo,
                                  TakeBack, ForgetUndo, Ready, NotReady, Start, Stop, WorkerLog>;

struct WorkerEffects {
  std::vector<WorkerEffect> list;
  Micros wake_at = kNever;  // replaces the one before
};

struct WorkerUpdate {
  Plan plan;
  Stage stage = Stage::kStaging;
  TouchedSums sums;
};

struct WorkerState {
  WorkerConfig config;
  Epoch epoch;
  // When the latest requests were sent: a lease counts from there.
  struct Sent {
    uint64_t request = 0;
    Micros at = 0;
  };
  std::array<Sent, 32> sent;
  uint64_t request = 0;
  uint64_t valid_from = 1;

  std::optional<Position> position;
  std::optional<Position> before;  // where TakeBack leads; set while `position` is not durable
  bool taking_back = false;
  std::optional<WorkerUpdate> update;
  Standing standing = Standing::kOut;
  Micros lease_until = 0;
  std::optional<ReadyKey> ready;  // as last announced

  std::optional<TransactionNumber> refused;
  std::string error;
  bool poisoned = false;
  uint64_t layout_generation = 0;
  Micros report_at = 0;
};

WorkerState StartWorker(const WorkerConfig& config);
WorkerEffects Step(WorkerState& state, Micros now, const WorkerEvent& event);

// Whether output may be released at this moment.
bool MayServe(const WorkerState& state, Micros now);

}  // namespace wstore::protocol
