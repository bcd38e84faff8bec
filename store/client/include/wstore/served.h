// What a server tells.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "wstore/commit.h"
#include "wstore/patch_source.h"
#include "wstore/version.h"

namespace wstore {

// Head of a served store.
struct ServedHead {
  HeadInfo head;
  VersionId durable;   // head, unless that is not durable yet
  bool hold = false;   // publishing is stopped
  std::string state;   // "ok", "hold", "read-only", "recovering" or "damaged"
  uint64_t epoch = 0;  // of this run of the server; grows with every start
};

// Head as the server saw it when it refused or aborted something; nothing for other errors.
std::optional<ServedHead> ConflictHead(const absl::Status& status);

struct ServerStatus {
  ServedHead head;
  std::string detail;  // why, where the state is not "ok"
  std::optional<HoldInfo> hold;
  std::string base_path;  // on the server
  uint64_t base_tensors = 0;
  uint64_t base_elements = 0;
  uint64_t base_bytes = 0;
  uint64_t journal_bytes = 0;
  uint64_t versions = 0;
  uint32_t instances = 0;
  int64_t uptime_micros = 0;
  std::string program_version;
};

// The outcome of a publish, a rollback or a promotion.
struct Decision {
  CommitResult::Outcome outcome = CommitResult::Outcome::kCommitted;
  std::string id;  // that it was done under
  TransactionNumber transaction;
  VersionId version;  // committed or moved to; unchanged: head
  Digest chain_digest;
  MoveNumber move;  // 0 for a candidate
  ServedHead head;  // now
  int64_t duration_micros = 0;
};

// One rank of an instance.
struct WorkerInfo {
  std::string instance;
  uint32_t rank = 0;
  uint32_t ranks = 0;
  std::optional<VersionId> version;  // none: not proved, or lost
  MoveNumber move;
  // "current", "behind", "staging", "in-doubt", "fenced", "poisoned" or "lost"
  std::string state;
  uint64_t lag = 0;  // moves behind head
  std::string error;
  std::string peer;
  int64_t heard_micros_ago = 0;
  bool may_serve_when_lost = false;  // it cannot be fenced
  // Of chunks, since it was started: received past the server, and from it.
  uint64_t carried_bytes = 0;
  uint64_t served_bytes = 0;
};

// What a rank found when it summed its live memory.
struct WorkerCheck {
  std::string instance;
  uint32_t rank = 0;
  std::optional<VersionId> version;  // that it holds; none: it has not answered
  std::optional<std::string>
      fault;  // what differs, or why there is no answer; nothing: it is right
};

// A transaction that is open, or a rollback that waits for one.
struct OpenTransaction {
  std::string id;
  std::string kind;  // "publish", "candidate", "rollback" or "promote"
  TransactionNumber transaction;
  VersionId version;
  std::string phase;
  uint32_t contributors = 0;
  std::vector<uint32_t> waiting_for;  // contributors that have not finished, at most 16
  uint64_t staged_bytes = 0;
  int64_t age_micros = 0;
};

// The way from one version to another, and what a replica must find before and after it.
struct ServedDifference {
  std::unique_ptr<PatchSource> patches;
  DifferenceInfo info;
};

}  // namespace wstore
