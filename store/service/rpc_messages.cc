#include "store/service/rpc_messages.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "store/client/transfer_messages.h"

namespace wstore::service {
namespace {

absl::StatusOr<std::optional<Digest>> OptionalDigest(const char* field, const std::string& bytes) {
  if (bytes.empty()) return std::optional<Digest>();
  const std::optional<Digest> digest = DigestFromBytes(bytes);
  if (digest) return digest;
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has ", bytes.size(), " bytes; a digest has 32"));
}

absl::StatusOr<Digest> RequiredDigest(const char* field, const std::string& bytes) {
  ASSIGN_OR_RETURN(const std::optional<Digest> digest, OptionalDigest(field, bytes));
  if (digest) return *digest;
  return absl::InvalidArgumentError(absl::StrCat(field, " is missing"));
}

absl::Status UnknownValue(const char* field, int value) {
  return absl::InvalidArgumentError(absl::StrCat(field, " has the unknown value ", value));
}

v1::Position PositionProto(const protocol::Position& position) {
  v1::Position out;
  *out.mutable_version() = ToProto(position.version, position.chain_digest);
  out.set_move(position.move.value());
  return out;
}

v1::Incarnation IncarnationProto(const protocol::Incarnation& incarnation) {
  v1::Incarnation out;
  out.set_generation(incarnation.generation);
  out.set_nonce(incarnation.nonce);
  return out;
}

v1::Outcome OutcomeOf(protocol::AnswerKind kind) {
  switch (kind) {
    case protocol::AnswerKind::kCommitted:
      return v1::OUTCOME_COMMITTED;
    case protocol::AnswerKind::kServedNotDurable:
      return v1::OUTCOME_SERVED_NOT_DURABLE;
    case protocol::AnswerKind::kRepeated:
      return v1::OUTCOME_REPEATED;
    case protocol::AnswerKind::kUnchanged:
      return v1::OUTCOME_UNCHANGED;
    default:
      return v1::OUTCOME_UNSPECIFIED;
  }
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

grpc::Status ToGrpc(const absl::Status& status, const v1::Head& head) {
  if (!absl::IsFailedPrecondition(status) && !absl::IsAborted(status)) return ToGrpc(status);
  v1::ErrorDetail detail;
  *detail.mutable_head() = head;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      detail.SerializeAsString());
}

absl::Status CheckText(const char* field, const std::string& text, size_t limit) {
  if (text.size() <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has ", text.size(), " bytes; the limit is ", limit));
}

absl::StatusOr<BeginPublish> FromProto(const v1::BeginRequest& request) {
  BeginPublish begin;
  begin.id = request.id();
  if (request.has_parent()) begin.expected.parent = VersionId(request.parent());
  if (request.has_move()) begin.expected.move = MoveNumber(request.move());
  ASSIGN_OR_RETURN(begin.expected.parent_chain_digest,
                   OptionalDigest("parent_chain_digest", request.parent_chain_digest()));
  ASSIGN_OR_RETURN(begin.expected.base_digest,
                   OptionalDigest("base_digest", request.base_digest()));
  ASSIGN_OR_RETURN(begin.patch_digest, OptionalDigest("patch_digest", request.patch_digest()));
  begin.expected.transaction_id = request.id();
  begin.expected.message = request.message();
  begin.expected.meta.insert(request.meta().begin(), request.meta().end());
  begin.expected.candidate = request.candidate();
  begin.expected.force = request.force();
  RETURN_IF_ERROR(CheckLimits(begin.expected));
  if (request.contributors() > 65'535) {
    return absl::InvalidArgumentError(
        absl::StrCat("contributors is ", request.contributors(), "; 1 to 65535 are allowed"));
  }
  begin.contributors = std::max(request.contributors(), 1u);
  if (!v1::Policy_IsValid(request.policy())) return UnknownValue("policy", request.policy());
  if (!v1::Durability_IsValid(request.durability())) {
    return UnknownValue("durability", request.durability());
  }
  if (!v1::Laggards_IsValid(request.laggards())) {
    return UnknownValue("laggards", request.laggards());
  }
  begin.policy =
      request.policy() == v1::POLICY_EACH ? protocol::Policy::kEach : protocol::Policy::kAll;
  begin.durability = request.durability() == v1::DURABILITY_ASYNC ? protocol::Durability::kAsync
                                                                  : protocol::Durability::kSync;
  if (request.laggards() != v1::LAGGARDS_UNSPECIFIED) {
    begin.laggards = request.laggards() == v1::LAGGARDS_ABORT ? protocol::Laggards::kAbort
                                                              : protocol::Laggards::kFence;
  }
  begin.check_sums = request.check_sums();
  begin.carried = request.carried();
  return begin;
}

absl::StatusOr<ContributorSummary> FromProto(const v1::CommitRequest& request) {
  ContributorSummary summary;
  summary.chunks = request.chunks();
  ASSIGN_OR_RETURN(summary.digest, RequiredDigest("digest", request.digest()));
  if (request.content_follows()) summary.elements = request.elements();
  if (!request.has_sums()) return summary;
  RETURN_IF_ERROR(wire::AppendTensors(request.sums(), &summary.sums.emplace()));
  return summary;
}

absl::StatusOr<VersionName> FromProto(const v1::VersionName& name, const char* field) {
  ASSIGN_OR_RETURN(const Digest digest, RequiredDigest(field, name.chain_digest()));
  return VersionName{VersionId(name.version()), digest};
}

absl::StatusOr<protocol::Report> FromProto(const v1::Report& report,
                                           const RankRegistration& registration) {
  protocol::Report out;
  out.rank = registration.process.first;
  out.ranks = registration.ranks;
  out.incarnation = registration.process.second;
  out.request = report.request();
  out.valid_from = report.valid_from();
  out.epoch = protocol::Epoch(report.epoch());
  if (report.has_position()) {
    ASSIGN_OR_RETURN(const VersionName name,
                     FromProto(report.position().version(), "position's chain digest"));
    out.position = {MoveNumber(report.position().move()), name.version, name.chain_digest};
  }
  out.durable = !report.not_durable();
  if (!v1::Standing_IsValid(report.standing())) return UnknownValue("standing", report.standing());
  if (!v1::Stage_IsValid(report.stage())) return UnknownValue("stage", report.stage());
  out.standing = static_cast<protocol::Standing>(report.standing());
  out.stage = static_cast<protocol::Stage>(report.stage());
  out.transaction = TransactionNumber(report.transaction());
  out.move = MoveNumber(report.move());
  out.sums = {FromProto(report.sum_before()), FromProto(report.sum_after())};
  if (report.has_refused()) out.refused = TransactionNumber(report.refused());
  out.error = report.error();
  out.poisoned = report.poisoned();
  out.layout_generation = report.layout_generation();
  out.unfenceable = report.unfenceable();
  return out;
}

absl::StatusOr<std::vector<CellSums>> CellsFromProto(const v1::SumList& cells) {
  std::vector<CellSums> out;
  RETURN_IF_ERROR(wire::AppendCells(cells, &out));
  return out;
}

Fingerprint FromProto(const v1::Fingerprint& fingerprint) {
  return Fingerprint{{fingerprint.lane0(), fingerprint.lane1()}};
}

v1::Fingerprint ToProto(const Fingerprint& fingerprint) {
  v1::Fingerprint out;
  out.set_lane0(fingerprint.lanes[0]);
  out.set_lane1(fingerprint.lanes[1]);
  return out;
}

v1::VersionName ToProto(VersionId version, const Digest& chain_digest) {
  v1::VersionName out;
  out.set_version(version.value());
  out.set_chain_digest(ToBytes(chain_digest));
  return out;
}

std::string StateWord(const HeadState& state, const std::string& store_state) {
  if (state.phase != protocol::CoordinatorPhase::kReady) return "recovering";
  return store_state;
}

v1::Head ToProto(const HeadState& state, const Digest& base_digest, const std::string& word) {
  v1::Head head;
  *head.mutable_version() = ToProto(state.head.version, state.head.chain_digest);
  head.set_move(state.head.move.value());
  head.set_base_digest(ToBytes(base_digest));
  head.set_durable_version(state.durable_version.value());
  head.set_hold(state.hold);
  head.set_state(word);
  head.set_epoch(state.epoch);
  return head;
}

v1::Decision ToProto(const FleetAnswer& answer, v1::Head head) {
  v1::Decision decision;
  decision.set_outcome(OutcomeOf(answer.kind));
  decision.set_transaction(answer.transaction.value());
  *decision.mutable_version() = ToProto(answer.to.version, answer.to.chain_digest);
  decision.set_move(answer.to.move.value());
  *decision.mutable_head() = std::move(head);
  decision.set_duration_micros(answer.duration_micros);
  return decision;
}

v1::Version ToProto(const VersionInfo& version, VersionId head) {
  v1::Version out;
  *out.mutable_name() = ToProto(version.version, version.chain_digest);
  if (version.parent) out.set_parent(version.parent->value());
  out.set_transaction(version.transaction.value());
  out.set_id(version.transaction_id);
  out.set_patch_digest(ToBytes(version.patch_digest));
  *out.mutable_fingerprint() = ToProto(version.fingerprint);
  out.set_tensors(version.tensors);
  out.set_elements(version.elements);
  out.set_payload_bytes(version.payload_bytes);
  out.set_verified(std::string(VerifiedName(version.verified)));
  out.set_created_unix_micros(version.created_unix_micros);
  out.set_actor(version.actor);
  out.set_message(version.message);
  out.mutable_meta()->insert(version.meta.begin(), version.meta.end());
  out.set_candidate(version.candidate);
  if (version.bad) out.set_bad(*version.bad);
  out.set_is_head(version.version == head);
  return out;
}

v1::MoveEntry ToProto(const MoveInfo& move) {
  v1::MoveEntry out;
  out.set_move(move.move.value());
  out.set_from_version(move.from.value());
  out.set_to_version(move.to.value());
  out.set_why(move.why);
  out.set_transaction(move.transaction.value());
  out.set_id(move.transaction_id);
  out.set_policy(move.policy);
  out.set_outcome(move.outcome);
  out.set_actor(move.actor);
  out.set_peer(move.peer);
  out.set_message(move.message);
  out.set_created_unix_micros(move.created_unix_micros);
  out.set_duration_micros(move.duration_micros);
  return out;
}

v1::Hold ToProto(const HoldInfo& hold) {
  v1::Hold out;
  out.set_reason(hold.reason);
  out.set_actor(hold.actor);
  out.set_created_unix_micros(hold.created_unix_micros);
  return out;
}

v1::Worker ToProto(const WorkerRow& row, MoveNumber head) {
  v1::Worker out;
  out.set_instance(row.rank.instance);
  out.set_rank(row.rank.rank);
  out.set_ranks(row.ranks);
  if (row.position) {
    out.set_version(row.position->version.value());
    out.set_move(row.position->move.value());
    out.set_lag(head.value() - std::min(head.value(), row.position->move.value()));
  }
  out.set_state(row.state);
  out.set_error(row.error);
  out.set_peer(row.peer);
  out.set_heard_micros_ago(row.heard_micros_ago);
  out.set_may_serve_when_lost(row.unfenceable);
  out.set_carried_bytes(row.received.carried);
  out.set_served_bytes(row.received.served);
  return out;
}

v1::WorkerAudit ToProto(const WorkerAudit& audit) {
  v1::WorkerAudit out;
  out.set_instance(audit.rank.instance);
  out.set_rank(audit.rank.rank);
  out.set_answered(audit.status.has_value());
  if (!audit.status) {
    out.set_error("no answer: it holds no proved version, or is busy with an update");
    return out;
  }
  out.set_version(audit.version.value());
  out.set_ok(audit.status->ok());
  out.set_error(std::string(audit.status->message()));
  return out;
}

v1::TransactionEntry ToProto(const TransactionRow& row) {
  v1::TransactionEntry out;
  out.set_id(row.id);
  out.set_kind(std::string(protocol::TransactionKindName(row.kind)));
  out.set_transaction(row.transaction.value());
  out.set_version(row.version.value());
  out.set_phase(row.phase ? std::string(protocol::TransactionPhaseName(*row.phase)) : "waiting");
  out.set_contributors(row.contributors);
  for (const uint32_t contributor : row.waiting_for) out.add_waiting_for(contributor);
  out.set_age_micros(row.age_micros);
  return out;
}

v1::Order ToProto(const RankOrder& rank_order) {
  const protocol::Order& order = rank_order.order;
  v1::Order out;
  out.set_kind(static_cast<v1::OrderKind>(order.kind));
  out.set_epoch(order.epoch.value());
  *out.mutable_incarnation() = IncarnationProto(order.incarnation);
  out.set_request(order.request);
  out.set_lease_micros(order.lease);
  v1::Plan* const plan = out.mutable_plan();
  plan->set_transaction(order.plan.transaction.value());
  *plan->mutable_from() = PositionProto(order.plan.from);
  *plan->mutable_to() = PositionProto(order.plan.to);
  plan->set_complete(order.plan.complete);
  plan->set_decided(order.plan.decided);
  plan->set_layout_generation(order.plan.layout_generation);
  out.set_commit(order.commit);
  out.set_not_durable(!order.durable);
  out.set_reason(order.reason);
  out.set_open_publish(rank_order.open_publish);
  out.set_contributors(rank_order.contributors);
  out.set_why(rank_order.why);
  out.set_carried(rank_order.carried);
  return out;
}

absl::StatusOr<Page> PageOf(size_t size, uint32_t page_size, const std::string& token) {
  // A token is the number of entries that are older than the page's first.
  uint64_t older = size;
  if (!token.empty() && (!absl::SimpleAtoi(token, &older) || older > size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_token '", token, "' is none that this server gave out"));
  }
  const size_t wanted = page_size == 0 ? kDefaultPage : std::min(page_size, kMaxPage);
  Page page;
  page.begin = size - older;
  page.end = std::min(size, page.begin + wanted);
  if (page.end < size) page.next_token = absl::StrCat(size - page.end);
  return page;
}

}  // namespace wstore::service
