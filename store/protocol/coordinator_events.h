// What the coordinator is told, and what it has done.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "store/protocol/messages.h"
#include "store/protocol/types.h"

namespace wstore::protocol {

// Numbers that were synced before they were used, and are never used again.
struct Numbers {
  TransactionNumber transaction;
  VersionId version;
  MoveNumber move;
};

// A candidate that some instances serve in place of head.
struct Trial {
  VersionId version;
  Digest chain_digest;
  std::vector<std::string> instances;

  friend bool operator==(const Trial&, const Trial&) = default;
};

// A recorded move: where the fleet should stand from then on.
struct Move {
  Position head;  // head.move is the move's number
  TransactionNumber transaction;
  Policy policy = Policy::kAll;
  std::optional<Trial> trial;

  friend bool operator==(const Move&, const Move&) = default;
};

enum class TransactionKind : uint8_t {
  kPublish,
  kCandidate,  // a version that does not become head; no rank sees it
  kRollout,    // named instances serve a candidate
  kPromote,    // a candidate becomes head, for all
  kRevert,     // the rollout ends, and all serve head
  kRollback,
};
std::string_view TransactionKindName(TransactionKind kind);

// A transaction that committed, by the caller's id.
struct Outcome {
  std::string id;
  TransactionKind kind = TransactionKind::kPublish;
  TransactionNumber transaction;
  Position to;
  std::optional<Digest> content;  // where it is known
};

// What the journal holds when it is opened.
struct JournalView {
  Epoch epoch;              // the latest synced
  Numbers next;             // above all that were synced
  std::vector<Move> moves;  // the latest, ascending; at least one (move 0 is the base)
  bool hold = false;
  std::vector<Outcome> outcomes;  // the latest, ascending
};

// Events.

struct Started {
  JournalView journal;
};
struct EpochSynced {};
struct NumbersReserved {
  TransactionNumber transaction;
};
// Begins a transaction, or joins the one of the same id. Answered once: a publish when it may
// stage (kBegun) or is refused; all others with their outcome.
struct StartTransaction {
  uint64_t waiter = 0;  // names the caller in Answer
  std::string id;       // at most 256 bytes; not empty
  TransactionKind kind = TransactionKind::kPublish;
  Policy policy = Policy::kAll;
  Durability durability = Durability::kSync;
  std::optional<Laggards> laggards;  // default: the coordinator's
  // What the caller builds on; must be head.
  std::optional<Position> parent;
  // What is to be head (rollback), or is tried out (rollout) or promoted: a version that the caller
  // found in the journal. Its move is ignored.
  Position to;
  std::vector<std::string> instances;  // kRollout
  uint32_t contributors = 1;           // kPublish, kCandidate: at most 65,535
  std::optional<Digest> content;       // publish: the patch set's digest, if it is known by now
};
// All content of one contributor is in the journal's staging area. Again: nothing happens.
struct ContentStaged {
  TransactionNumber transaction;
  uint32_t contributor = 0;
};
// After CompleteContent: the payload is ingested and its digests are right; or they are not.
struct ContentComplete {
  TransactionNumber transaction;
  absl::Status status;
  Digest chain_digest;  // of the version to be
};
struct ReportReceived {
  Report report;
};
// After Judge.
struct InstanceJudged {
  TransactionNumber transaction;
  std::string instance;
  bool ok = false;
  std::string error;
};
enum class RecordOutcome : uint8_t {
  kDurable,   // record and witness
  kAppended,  // kAsync: written, not synced; kDurable or kUnknown follows
  kNothing,   // certainly nothing was written
  kUnknown,
};
struct RecordWritten {
  TransactionNumber transaction;
  RecordOutcome outcome = RecordOutcome::kDurable;
  absl::Status status;  // why, unless it is on disk
};
// `hold` or `resume` is in the journal.
struct HoldChanged {
  bool hold = false;
};
// Its ranks go out, and stay so until they are started again.
struct Evict {
  std::string instance;
};
struct AbortTransaction {
  uint64_t waiter = 0;
  std::string id;
  std::string reason;
};
// The outcome of a transaction: now if it is decided, otherwise when it is.
struct AwaitOutcome {
  uint64_t waiter = 0;
  std::string id;
};
struct CoordinatorTick {};

using CoordinatorEvent =
    std::variant<Started, EpochSynced, NumbersReserved, StartTransaction, ContentStaged,
                 ContentComplete, ReportReceived, InstanceJudged, RecordWritten, HoldChanged, Evict,
                 AbortTransaction, AwaitOutcome, CoordinatorTick>;

// Effects.

struct SendOrder {
  Order order;
};
// On disk before anything else happens; then EpochSynced.
struct SyncEpoch {
  Epoch epoch;
};
// All numbers below these are used, or were; then NumbersReserved.
struct ReserveNumbers {
  Numbers numbers;
};
// Ingest the content, compute its digests; then ContentComplete. Without contributors: plan the
// composed difference.
struct CompleteContent {
  TransactionNumber transaction;
};
// Compare the sums that all ranks of an instance foretold with the declared ones; then
// InstanceJudged.
struct Judge {
  TransactionNumber transaction;
  std::string instance;
};
// Then RecordWritten.
struct WriteRecord {
  TransactionKind kind = TransactionKind::kPublish;
  std::string id;
  Position parent;
  Move move;  // kCandidate: head.version and head.chain_digest of the version, no move
  Durability durability = Durability::kSync;
  bool hold = false;       // publishing is on hold from then on
  bool installed = false;  // at least one instance re-read its sums, and none has others
  std::optional<Digest> content;
};
// A write's outcome is not known. Close the journal, open it again, and give Started.
struct ReopenJournal {};
// A payload without a record can go.
struct DiscardContent {
  TransactionNumber transaction;
};
enum class AnswerKind : uint8_t {
  kBegun,
  kCommitted,
  kServedNotDurable,  // kAsync
  kRepeated,          // the id was committed before: this is the first outcome
  kUnchanged,         // head is there already: nothing was done
  kRefused,           // nothing has changed; `status` says why
  kAborted,           // everything as before; `status` says why
  kUnknown,           // ask by id
};
std::string_view AnswerKindName(AnswerKind kind);
struct Answer {
  uint64_t waiter = 0;
  AnswerKind kind = AnswerKind::kRefused;
  absl::Status status;
  TransactionNumber transaction;
  Position to;    // the version to be, or that was committed
  Position head;  // as it is now
};
// Something that cannot be, short of lost or foreign data: an operator must look.
struct Alarm {
  std::string text;
};
struct CoordinatorLog {
  std::string text;
};
using CoordinatorEffect =
    std::variant<SendOrder, SyncEpoch, ReserveNumbers, CompleteContent, Judge, WriteRecord,
                 ReopenJournal, DiscardContent, Answer, Alarm, CoordinatorLog>;

struct CoordinatorEffects {
  std::vector<CoordinatorEffect> list;
  Micros wake_at = kNever;  // replaces the one before
};

}  // namespace wstore::protocol
