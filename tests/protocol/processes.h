// The parties of a simulated fleet: the store, its disk, ranks, callers.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/protocol/coordinator.h"
#include "store/protocol/worker.h"
#include "tests/protocol/contents.h"

namespace wstore::protocol::testing {

constexpr Micros kMillisecond = 1000;
constexpr Micros kSecond = 1000 * kMillisecond;
constexpr size_t kUnits = 3;  // that an update of one rank is written in

// A clock of its own, which runs too fast or too slow, within the skew.
struct LocalClock {
  Micros offset = 0;
  int64_t parts_per_thousand = 1000;

  Micros At(Micros now) const { return offset + now / 1000 * parts_per_thousand; }
  Micros Real(Micros local) const;  // the first moment at which it shows `local`
};

// What survives the store's death.
struct Journal {
  struct Entry {
    Move move;
    TransactionKind kind = TransactionKind::kPublish;
    std::string id;
    Position parent;
    Position outcome;
    bool synced = true;
  };
  Epoch epoch;
  Numbers next;
  std::vector<Entry> moves;       // those that are moves, from move 0
  std::vector<Entry> candidates;  // those that are not
  bool hold = false;
};

// One process, which can crash and freeze.
struct Process {
  bool up = false;
  uint64_t run = 0;  // events for an earlier run are void
  Micros frozen_until = 0;
  Micros cut_off_until = 0;  // no message arrives or leaves
  LocalClock clock;
  uint64_t wake = 0;  // events for an earlier wake-up time are void
};

// What a rank foretells of an update, cell by cell.
struct Vote {
  TransactionNumber transaction;
  uint64_t request = 0;  // of the report that it came with
  Position from;
  Position to;
  std::vector<CellSums> cells;
  TouchedSums total;
  bool damaged = false;       // known to the simulator alone: bits that count were wrong
  bool copy_damaged = false;  // and other ranks have sound copies of these
};

struct StoreProcess : Process {
  CoordinatorState state;
  std::map<std::pair<RankId, Incarnation>, Vote> votes;  // the latest of each process
  // Writes that are under way: when the process dies, each is on disk or not.
  std::map<uint64_t, std::function<void()>> writes;
};

struct RankProcess : Process {
  RankId id;
  uint32_t ranks = 1;
  WorkerState state;
  const Sharding* sharding = nullptr;
  Memory memory;
  Memory damage;          // bits that are flipped, and nobody knows it; no update writes them right
  bool trusting = false;  // reports re-read sums without comparing them
  bool unfenceable = false;
  uint64_t known_to_run = 0;  // of the store: it granted this process something, or heard it serve
  // The move that it was left behind by: it cannot be fenced, but the store did not know of it, or
  // an operator had evicted it.
  MoveNumber left_behind_by;
  Vote vote;
  Fingerprint found;  // what the apply under way has overwritten
  // The latest update that was re-read, and whether bits that count were wrong then.
  TransactionNumber reread;
  bool reread_damaged = false;
  uint64_t layout_generation = 1;
  std::optional<Plan> plan;     // the update being staged or applied
  std::optional<Plan> undo;     // of the committed update that is not durable
  uint64_t job = 0;             // staging and pausing that an earlier number started are void
  std::optional<ReadyKey> key;  // on the instance's board
  std::vector<Order> received;  // all but renewals
  std::string said;             // the last report, for the trace
  bool changing = false;        // memory is being written
};

// Somebody who publishes, rolls back, promotes; one thing at a time, again until it is answered.
struct Client {
  bool active = false;
  StartTransaction request;
  bool begun = false;
  TransactionNumber transaction;
  int attempts = 0;
  int extra = 0;  // repeats after the final answer
  std::optional<Answer> final;
};

}  // namespace wstore::protocol::testing
