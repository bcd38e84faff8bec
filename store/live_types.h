// What a LiveStore is told, and tells.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "store/staged_content.h"
#include "wstore/transaction.h"
#include "wstore/version.h"

namespace wstore {

// Who asked for something, as the records have it.
struct Caller {
  std::string actor;
  std::string peer;  // credentials of the connection
};

enum class LiveKind : uint8_t { kPublish, kCandidate, kRollout, kPromote, kRevert, kRollback };

// A version by number and by content and history.
struct LiveVersion {
  VersionId version;
  Digest chain_digest;
};

struct LiveTrial {
  LiveVersion candidate;
  std::vector<std::string> instances;
};

// A recorded move of head, or the state before the first.
struct LiveMove {
  MoveNumber move;
  LiveVersion head;
  TransactionNumber transaction;
  bool for_all = true;  // policy `all`; otherwise `each`
  std::optional<LiveTrial> trial;
};

// What was committed under a caller's id.
struct LiveOutcome {
  std::string id;
  LiveKind kind = LiveKind::kPublish;
  TransactionNumber transaction;
  MoveNumber move;  // 0: none
  LiveVersion to;
  std::optional<Digest> patch_digest;
};

// The next to be given out.
struct LiveNumbers {
  TransactionNumber transaction;
  VersionId version;
  MoveNumber move;
};

struct LiveView {
  uint64_t epoch = 0;
  LiveNumbers next;
  std::vector<LiveMove> moves;  // the latest, ascending; at least one
  bool hold = false;
  std::vector<LiveOutcome> outcomes;  // the latest, ascending by transaction
};

// What a publish is made of, besides its chunks.
struct LivePublish {
  VersionId parent;
  std::string message;
  Metadata meta;
  uint32_t contributors = 1;
  // Takes the sums from the parent's bits even if contributors declare them, and compares.
  bool check_sums = false;
};

// All of a publish's content, checked and in the journal, but without a record.
struct LiveContent {
  uint64_t elements = 0;  // 0: nothing changes, so there will be no version
  Digest patch_digest;
  Digest chain_digest;  // of the version to be
  std::shared_ptr<const TouchedByTensor> touched = std::make_shared<TouchedByTensor>();
  Verified verified = Verified::kNone;
};

// A record to be written: a decision.
struct LiveRecord {
  LiveKind kind = LiveKind::kPublish;
  std::string id;
  TransactionNumber transaction;
  VersionId from;   // head before
  LiveVersion to;   // head after it; kCandidate: the candidate
  MoveNumber move;  // kCandidate: none
  bool for_all = true;
  bool hold = false;       // publishing is on hold from then on
  bool installed = false;  // ranks re-read the sums of it
  bool sync = true;        // false: written, not synced; see Sync
  std::optional<LiveTrial> trial;
  std::string message;  // of a move without a version of its own
  Caller caller;
  int64_t duration_micros = 0;
};

// An attempt that came to nothing.
struct LiveAttempt {
  std::string why;      // "publish", "rollback" or "promote"
  bool refused = true;  // otherwise aborted
  std::optional<VersionId> to;
  TransactionNumber transaction;
  std::string id;
  absl::Status reason;
  Caller caller;
  int64_t duration_micros = 0;
};

}  // namespace wstore
