#include "store/client/messages.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace wstore::client {
namespace {

Fingerprint FingerprintOf(const v1::Fingerprint& fingerprint) {
  return Fingerprint{{fingerprint.lane0(), fingerprint.lane1()}};
}

absl::StatusOr<CommitResult::Outcome> OutcomeOf(v1::Outcome outcome) {
  switch (outcome) {
    case v1::OUTCOME_COMMITTED:
      return CommitResult::Outcome::kCommitted;
    case v1::OUTCOME_REPEATED:
      return CommitResult::Outcome::kRepeated;
    case v1::OUTCOME_UNCHANGED:
      return CommitResult::Outcome::kUnchanged;
    case v1::OUTCOME_SERVED_NOT_DURABLE:
      return CommitResult::Outcome::kServedNotDurable;
    default:
      return absl::DataLossError(
          absl::StrCat("the server answered with the unknown outcome ", static_cast<int>(outcome)));
  }
}

v1::Laggards LaggardsOf(PublishLaggards laggards) {
  switch (laggards) {
    case PublishLaggards::kFence:
      return v1::LAGGARDS_FENCE;
    case PublishLaggards::kAbort:
      return v1::LAGGARDS_ABORT;
    case PublishLaggards::kAsServer:
      break;
  }
  return v1::LAGGARDS_UNSPECIFIED;
}

}  // namespace

absl::StatusOr<Digest> DigestOf(const std::string& bytes, const char* field) {
  if (const std::optional<Digest> digest = DigestFromBytes(bytes)) return *digest;
  return absl::DataLossError(
      absl::StrCat("the server sent ", bytes.size(), " bytes as ", field, "; a digest has 32"));
}

absl::StatusOr<ServedHead> FromProto(const v1::Head& head) {
  ServedHead out;
  out.head.version = VersionId(head.version().version());
  ASSIGN_OR_RETURN(out.head.chain_digest,
                   DigestOf(head.version().chain_digest(), "head's chain digest"));
  ASSIGN_OR_RETURN(out.head.base_digest, DigestOf(head.base_digest(), "the base digest"));
  out.head.move = MoveNumber(head.move());
  out.durable = VersionId(head.durable_version());
  out.hold = head.hold();
  out.state = head.state();
  out.epoch = head.epoch();
  return out;
}

absl::StatusOr<ServerStatus> FromProto(const v1::Status& status) {
  ServerStatus out;
  ASSIGN_OR_RETURN(out.head, FromProto(status.head()));
  out.head.state = status.state();
  out.detail = status.detail();
  if (status.has_hold()) {
    out.hold = HoldInfo{status.hold().reason(), status.hold().actor(),
                        status.hold().created_unix_micros()};
  }
  out.base_path = status.base_path();
  out.base_tensors = status.base_tensors();
  out.base_elements = status.base_elements();
  out.base_bytes = status.base_bytes();
  out.journal_bytes = status.journal_bytes();
  out.versions = status.versions();
  out.instances = status.instances();
  out.uptime_micros = status.uptime_micros();
  out.program_version = status.program_version();
  return out;
}

absl::StatusOr<VersionInfo> FromProto(const v1::Version& version) {
  VersionInfo out;
  out.version = VersionId(version.name().version());
  ASSIGN_OR_RETURN(out.chain_digest, DigestOf(version.name().chain_digest(), "a chain digest"));
  if (version.has_parent()) out.parent = VersionId(version.parent());
  out.transaction = TransactionNumber(version.transaction());
  out.transaction_id = version.id();
  ASSIGN_OR_RETURN(out.patch_digest, DigestOf(version.patch_digest(), "a patch digest"));
  out.fingerprint = FingerprintOf(version.fingerprint());
  out.tensors = version.tensors();
  out.elements = version.elements();
  out.payload_bytes = version.payload_bytes();
  out.verified = ParseVerified(version.verified()).value_or(Verified::kNone);
  out.created_unix_micros = version.created_unix_micros();
  out.actor = version.actor();
  out.message = version.message();
  out.meta.insert(version.meta().begin(), version.meta().end());
  out.candidate = version.candidate();
  if (version.has_bad()) out.bad = version.bad();
  return out;
}

absl::StatusOr<Decision> FromProto(const v1::Decision& decision, const std::string& id) {
  Decision out;
  ASSIGN_OR_RETURN(out.outcome, OutcomeOf(decision.outcome()));
  ASSIGN_OR_RETURN(out.head, FromProto(decision.head()));
  out.id = id;
  out.transaction = TransactionNumber(decision.transaction());
  out.version = VersionId(decision.version().version());
  out.chain_digest = out.head.head.chain_digest;
  if (out.outcome != CommitResult::Outcome::kUnchanged) {
    ASSIGN_OR_RETURN(out.chain_digest,
                     DigestOf(decision.version().chain_digest(), "the version's chain digest"));
  }
  out.move = MoveNumber(decision.move());
  out.duration_micros = decision.duration_micros();
  return out;
}

MoveInfo FromProto(const v1::MoveEntry& move) {
  MoveInfo out;
  out.move = MoveNumber(move.move());
  out.from = VersionId(move.from_version());
  out.to = VersionId(move.to_version());
  out.why = move.why();
  out.transaction = TransactionNumber(move.transaction());
  out.transaction_id = move.id();
  out.policy = move.policy();
  out.outcome = move.outcome();
  out.actor = move.actor();
  out.peer = move.peer();
  out.message = move.message();
  out.created_unix_micros = move.created_unix_micros();
  out.duration_micros = move.duration_micros();
  return out;
}

TagInfo FromProto(const v1::TagEntry& tag) {
  return {tag.name(), VersionId(tag.version()), tag.actor(), tag.created_unix_micros()};
}

WorkerInfo FromProto(const v1::Worker& worker) {
  WorkerInfo out;
  out.instance = worker.instance();
  out.rank = worker.rank();
  out.ranks = worker.ranks();
  if (worker.has_version()) out.version = VersionId(worker.version());
  out.move = MoveNumber(worker.move());
  out.state = worker.state();
  out.lag = worker.lag();
  out.error = worker.error();
  out.peer = worker.peer();
  out.heard_micros_ago = worker.heard_micros_ago();
  out.may_serve_when_lost = worker.may_serve_when_lost();
  out.carried_bytes = worker.carried_bytes();
  out.served_bytes = worker.served_bytes();
  return out;
}

WorkerCheck FromProto(const v1::WorkerAudit& audit) {
  WorkerCheck out;
  out.instance = audit.instance();
  out.rank = audit.rank();
  if (audit.has_version()) out.version = VersionId(audit.version());
  if (!audit.answered()) {
    out.fault = audit.error().empty() ? "no answer in time" : audit.error();
  } else if (!audit.ok()) {
    out.fault = audit.error();
  }
  return out;
}

OpenTransaction FromProto(const v1::TransactionEntry& transaction) {
  OpenTransaction out;
  out.id = transaction.id();
  out.kind = transaction.kind();
  out.transaction = TransactionNumber(transaction.transaction());
  out.version = VersionId(transaction.version());
  out.phase = transaction.phase();
  out.contributors = transaction.contributors();
  out.waiting_for.assign(transaction.waiting_for().begin(), transaction.waiting_for().end());
  out.staged_bytes = transaction.staged_bytes();
  out.age_micros = transaction.age_micros();
  return out;
}

v1::BeginRequest ToProto(const PublishOptions& options, const std::string& actor) {
  const BeginOptions& begin = options.begin;
  v1::BeginRequest out;
  out.set_id(begin.transaction_id);
  if (begin.parent) out.set_parent(begin.parent->value());
  if (begin.parent_chain_digest) {
    out.set_parent_chain_digest(ToBytes(*begin.parent_chain_digest));
  }
  if (begin.base_digest) out.set_base_digest(ToBytes(*begin.base_digest));
  if (begin.move) out.set_move(begin.move->value());
  out.set_message(begin.message);
  out.mutable_meta()->insert(begin.meta.begin(), begin.meta.end());
  out.set_contributors(options.contributors);
  out.set_policy(options.policy == PublishPolicy::kEach ? v1::POLICY_EACH : v1::POLICY_ALL);
  out.set_durability(options.durability == PublishDurability::kAsync ? v1::DURABILITY_ASYNC
                                                                     : v1::DURABILITY_SYNC);
  out.set_laggards(LaggardsOf(options.laggards));
  out.set_candidate(begin.candidate);
  out.set_force(begin.force);
  out.set_check_sums(options.check_sums);
  out.set_carried(options.carried);
  out.set_actor(actor);
  return out;
}

v1::VersionName ToProto(VersionId version, const Digest& chain_digest) {
  v1::VersionName out;
  out.set_version(version.value());
  out.set_chain_digest(ToBytes(chain_digest));
  return out;
}

}  // namespace wstore::client
