#include "store/client/worker/worker_messages.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "store/client/transfer_messages.h"

namespace wstore::client {
namespace {

constexpr size_t kCellsPerMessage = 65'536;

absl::StatusOr<protocol::Position> PositionOf(const v1::Position& position) {
  // Orders without a plan carry empty ones.
  if (position.version().chain_digest().empty()) return protocol::Position();
  ASSIGN_OR_RETURN(const VersionName name, FromProto(position.version()));
  return protocol::Position{MoveNumber(position.move()), name.version, name.chain_digest};
}

}  // namespace

v1::VersionName ToProto(const VersionName& version) {
  v1::VersionName out;
  out.set_version(version.version.value());
  out.set_chain_digest(ToBytes(version.chain_digest));
  return out;
}

absl::StatusOr<VersionName> FromProto(const v1::VersionName& name) {
  const std::optional<Digest> digest = DigestFromBytes(name.chain_digest());
  if (digest) return VersionName{VersionId(name.version()), *digest};
  return absl::InvalidArgumentError(
      absl::StrCat("a chain digest of ", name.chain_digest().size(), " bytes; digests have 32"));
}

v1::Fingerprint ToProto(const Fingerprint& fingerprint) {
  v1::Fingerprint out;
  out.set_lane0(fingerprint.lanes[0]);
  out.set_lane1(fingerprint.lanes[1]);
  return out;
}

Fingerprint FromProto(const v1::Fingerprint& fingerprint) {
  return Fingerprint{{fingerprint.lane0(), fingerprint.lane1()}};
}

v1::FromRank ToProto(const protocol::Report& report) {
  v1::FromRank message;
  v1::Report& out = *message.mutable_report();
  out.set_request(report.request);
  out.set_valid_from(report.valid_from);
  out.set_epoch(report.epoch.value());
  if (report.position) {
    *out.mutable_position()->mutable_version() =
        ToProto(VersionName{report.position->version, report.position->chain_digest});
    out.mutable_position()->set_move(report.position->move.value());
  }
  out.set_not_durable(!report.durable);
  out.set_standing(static_cast<v1::Standing>(report.standing));
  out.set_stage(static_cast<v1::Stage>(report.stage));
  out.set_transaction(report.transaction.value());
  out.set_move(report.move.value());
  *out.mutable_sum_before() = ToProto(report.sums.before);
  *out.mutable_sum_after() = ToProto(report.sums.after);
  if (report.refused) out.set_refused(report.refused->value());
  out.set_error(report.error);
  out.set_poisoned(report.poisoned);
  out.set_layout_generation(report.layout_generation);
  out.set_unfenceable(report.unfenceable);
  return message;
}

absl::StatusOr<protocol::Order> FromProto(const v1::Order& order, const protocol::RankId& rank) {
  if (!v1::OrderKind_IsValid(order.kind())) {
    return absl::InvalidArgumentError(absl::StrCat("an order of the unknown kind ", order.kind()));
  }
  protocol::Order out;
  out.rank = rank;
  out.kind = static_cast<protocol::OrderKind>(order.kind());
  out.epoch = protocol::Epoch(order.epoch());
  out.incarnation = {order.incarnation().generation(), order.incarnation().nonce()};
  out.request = order.request();
  out.lease = order.lease_micros();
  out.plan.transaction = TransactionNumber(order.plan().transaction());
  ASSIGN_OR_RETURN(out.plan.from, PositionOf(order.plan().from()));
  ASSIGN_OR_RETURN(out.plan.to, PositionOf(order.plan().to()));
  out.plan.complete = order.plan().complete();
  out.plan.decided = order.plan().decided();
  out.plan.layout_generation = order.plan().layout_generation();
  out.commit = order.commit();
  out.durable = !order.not_durable();
  out.reason = order.reason();
  return out;
}

std::vector<v1::FromRank> VoteMessages(TransactionNumber transaction,
                                       const std::vector<CellSums>& cells) {
  std::vector<v1::FromRank> messages;
  absl::Span<const CellSums> left(cells);
  do {
    v1::Vote& vote = *messages.emplace_back().mutable_vote();
    vote.set_transaction(transaction.value());
    *vote.mutable_cells() = wire::ToProto(left.subspan(0, kCellsPerMessage));
    left.remove_prefix(std::min(left.size(), kCellsPerMessage));
    vote.set_last(left.empty());
  } while (!left.empty());
  return messages;
}

std::vector<v1::FromRank> AuditMessages(uint64_t audit, const VersionName& version,
                                        const std::vector<Fingerprint>& cells) {
  std::vector<v1::FromRank> messages;
  size_t next = 0;
  do {
    v1::Audit& part = *messages.emplace_back().mutable_audit();
    part.set_audit(audit);
    *part.mutable_version() = ToProto(version);
    std::vector<CellSums> sums;
    const size_t end = std::min(cells.size(), next + kCellsPerMessage);
    for (; next < end; ++next) sums.push_back({static_cast<uint32_t>(next), {{}, cells[next]}});
    *part.mutable_cells() = wire::ToProto(sums);
    part.set_last(next == cells.size());
  } while (next < cells.size());
  return messages;
}

}  // namespace wstore::client
