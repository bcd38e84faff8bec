// The words that coordinator and worker share.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "wstore/digest.h"
#include "wstore/types.h"

namespace wstore::protocol {

// Microseconds of the party's own clock, which never goes back and counts time suspended. Clocks of
// two parties are never compared; within a lease they must not drift apart by more than the skew.
using Micros = int64_t;
constexpr Micros kNever = INT64_MAX;

// One run of the store. Synced before the first message of that run.
using Epoch = StrongNumber<struct EpochTag>;

// A rank of an instance. "engine-0/1".
struct RankId {
  std::string instance;
  uint32_t rank = 0;

  friend auto operator<=>(const RankId&, const RankId&) = default;
};
std::string ToString(const RankId& rank);

// One process that runs as a rank. Of two that report, the greater holds the rank's place, and the
// other goes out. A late report of a dead process cannot take it for longer than a lease: whoever
// is silent for that long loses it to any other.
struct Incarnation {
  uint64_t generation = 0;  // from the wall clock at start
  uint64_t nonce = 0;       // random, never 0

  friend auto operator<=>(const Incarnation&, const Incarnation&) = default;
};

// Where a replica stands, or shall stand: after which decided move, and at which version by number
// and by content and history.
struct Position {
  MoveNumber move;
  VersionId version;
  Digest chain_digest;

  friend bool operator==(const Position&, const Position&) = default;
};
std::string ToString(const Position& position);  // "v7 (3f2a91c04b7d) of move 9"

enum class Policy : uint8_t {
  kAll,   // every live instance ends at the new version, or every one at the old
  kEach,  // head moves when durable; every instance follows on its own
};
enum class Durability : uint8_t { kSync, kAsync };
enum class Laggards : uint8_t { kFence, kAbort };

// What a rank does with its weights.
enum class Standing : uint8_t {
  kOut,       // serves nothing, and starts only on a grant
  kResuming,  // may serve, but waits until all ranks of its instance stand at the same place
  kServing,
  kPaused,  // was serving, and will go on by itself after the decision, within its lease
};
std::string_view StandingName(Standing standing);

// How far a rank is with an update.
enum class Stage : uint8_t {
  kNone,
  kStaging,   // collects content
  kChecking,  // all content is announced; the old sums are being compared
  kStaged,    // the vote "yes"
  kPausing,   // told to apply; waits for a safe point, and serves until then
  kApplying,  // memory is being written
  kApplied,   // memory holds the new version; in doubt until the decision
  kUndoing,   // decided against; memory is being taken back
};
std::string_view StageName(Stage stage);

// An update as a rank is told about it.
struct Plan {
  TransactionNumber transaction;
  Position from;          // from.move: the last decided move, which the rank must stand at
  Position to;            // to.chain_digest is known once `complete`
  bool complete = false;  // all content is known: check and vote
  bool decided = false;   // `to` is in the journal: once applied, it is committed
  uint64_t layout_generation = 0;

  friend bool operator==(const Plan&, const Plan&) = default;
};

// What the ranks of an instance compare before they serve.
struct ReadyKey {
  Epoch epoch;
  MoveNumber move;
  Digest chain_digest;

  friend bool operator==(const ReadyKey&, const ReadyKey&) = default;
};

struct Timing {
  Micros lease = 3'000'000;
  Micros skew = 1'000'000;              // by which two clocks may drift apart within a lease
  Micros stage_deadline = 600'000'000;  // from begin until all content has come
  Micros vote_deadline = 30'000'000;    // from then until all votes are there
  Micros apply_deadline = 5'000'000;    // from the apply order until a laggard is fenced
  Micros hold_deadline = 10'000'000;    // from the apply order until the record's write begins
};

//   kInvalidArgument: not lease > 0, skew >= 0, apply deadline >= lease + skew, hold deadline >
//   apply deadline; all that is wrong is listed
absl::Status CheckTiming(const Timing& timing);

// Names come from outside: 1 to 128 bytes, rank below ranks, at most 65,536 ranks.
constexpr uint32_t kMaxRanksPerInstance = 65'536;
absl::Status CheckRank(const RankId& rank, uint32_t ranks);

}  // namespace wstore::protocol
