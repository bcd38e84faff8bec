// What a Fleet is asked, and answers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "store/live_types.h"
#include "store/protocol/coordinator.h"
#include "wstore/layout.h"
#include "wstore/transaction.h"
#include "wstore/transfer_group.h"

namespace wstore::service {

// What is known about head, at a moment.
struct HeadState {
  protocol::Position head;
  bool durable = true;
  VersionId durable_version;
  bool hold = false;
  protocol::CoordinatorPhase phase = protocol::CoordinatorPhase::kStarting;
  uint64_t epoch = 0;
  size_t instances = 0;

  friend bool operator==(const HeadState&, const HeadState&) = default;
};

// The outcome of a request that begins or decides something.
struct FleetAnswer {
  protocol::AnswerKind kind = protocol::AnswerKind::kRefused;
  absl::Status status;
  TransactionNumber transaction;
  protocol::Position to;
  protocol::Position parent;  // kBegun
  HeadState head;
  int64_t duration_micros = 0;
};
using AnswerFn = std::function<void(const FleetAnswer&)>;
using StatusFn = std::function<void(const absl::Status&)>;

struct BeginPublish {
  std::string id;
  BeginOptions expected;  // parent, digests, move, force, candidate, message, meta
  uint32_t contributors = 1;
  protocol::Policy policy = protocol::Policy::kAll;
  protocol::Durability durability = protocol::Durability::kSync;
  std::optional<protocol::Laggards> laggards;
  std::optional<Digest> patch_digest;
  bool check_sums = false;
  bool carried = false;  // see RankOrder
  Caller caller;
};

// A move that a candidate is concerned in.
struct MoveCandidate {
  protocol::TransactionKind kind = protocol::TransactionKind::kPromote;  // or kRollout, kRevert
  std::string id;
  std::string version;                 // not for kRevert
  std::vector<std::string> instances;  // kRollout: that shall serve it
  std::string message;
  Caller caller;
};

struct BeginRollback {
  std::string id;
  std::string to;  // a version or a tag
  std::string message;
  bool force = false;
  Caller caller;
};

// Bytes of chunks that a rank says it has received: as frames, and from the server.
struct ReceivedBytes {
  uint64_t carried = 0;
  uint64_t served = 0;
};

struct WorkerRow {
  protocol::RankId rank;
  uint32_t ranks = 0;
  std::optional<protocol::Position> position;
  std::string state;
  std::string error;
  std::string peer;
  int64_t heard_micros_ago = 0;
  bool unfenceable = false;
  ReceivedBytes received;
};

struct TransactionRow {
  std::string id;
  protocol::TransactionKind kind = protocol::TransactionKind::kPublish;
  TransactionNumber transaction;
  VersionId version;
  std::optional<protocol::TransactionPhase> phase;  // nothing: a rollback that waits
  uint32_t contributors = 0;
  std::vector<uint32_t> waiting_for;
  int64_t age_micros = 0;
};

// What a rank is told, with what it needs to fetch an update.
struct RankOrder {
  protocol::Order order;
  bool open_publish = false;  // kPrepare: the content is a publish that is open
  uint32_t contributors = 1;
  std::string why;       // "publish", "rollback" or "catch-up"
  bool carried = false;  // chunks come as frames, to members of transfer groups
};
struct AuditVerdict {
  uint64_t audit = 0;
  absl::Status status;
};

// What an audit that was asked for came to.
struct WorkerAudit {
  protocol::RankId rank;
  VersionId version;                   // that was audited
  std::optional<absl::Status> status;  // none: no answer
};

// Where orders for one rank go. Called from the strand; must not block, and may drop.
class RankSink {
 public:
  virtual ~RankSink() = default;
  virtual void Send(const RankOrder& order) = 0;
  virtual void Send(const AuditVerdict& verdict) = 0;
  virtual void RequestAudit() = 0;
  virtual void Send(const TransferPlan& plan, uint32_t contributor) = 0;
  virtual void SendTransferEnd(uint64_t epoch, const std::string& reason) = 0;
  virtual void Send(const FrameHeader& frame) = 0;
  // Another connection speaks for this process; nothing more comes.
  virtual void Superseded() = 0;
};

// A process that runs as a rank.
using RankProcess = std::pair<protocol::RankId, protocol::Incarnation>;

struct RankRegistration {
  RankProcess process;
  uint32_t ranks = 0;
  std::shared_ptr<const Layout> layout;  // null: cannot vote
  std::string peer;
};

}  // namespace wstore::service
