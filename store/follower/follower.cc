#include "wstore/follower.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "wstore/regions.h"

namespace wstore {
namespace {

VersionName NameOf(const VersionInfo& version) { return {version.version, version.chain_digest}; }

absl::Status OfRank(const absl::Status& status, size_t rank) {
  return Prefixed(status, absl::StrCat("rank ", rank));
}

}  // namespace

Follower::Follower(Store& store, std::vector<Replica*> ranks)
    : store_(store), ranks_(std::move(ranks)) {
  WSTORE_CHECK(!ranks_.empty());
}

absl::Status Follower::Load() {
  Drop();
  const VersionId head = store_.head().version;
  ASSIGN_OR_RETURN(const std::unique_ptr<DenseSource> dense, store_.Materialise(head));
  for (size_t i = 0; i < ranks_.size(); ++i) {
    RETURN_IF_ERROR(OfRank(ranks_[i]->Load(*dense), i));
  }
  ASSIGN_OR_RETURN(const std::vector<AuditReport> proofs, AuditAll());
  return ProveAs(proofs, head);
}

absl::StatusOr<std::vector<AuditReport>> Follower::AuditAll() {
  std::vector<AuditReport> proofs;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    absl::StatusOr<AuditReport> proof = ranks_[i]->Audit();
    RETURN_IF_ERROR(OfRank(proof.status(), i));
    proofs.push_back(*std::move(proof));
  }
  return proofs;
}

absl::Status Follower::ProveAs(const std::vector<AuditReport>& proofs, VersionId version) {
  ASSIGN_OR_RETURN(const VersionInfo info, store_.version(version));
  ASSIGN_OR_RETURN(const std::vector<Fingerprint> tensor_sums, store_.TensorFingerprints(version));
  std::vector<std::vector<Fingerprint>> cells;
  for (const AuditReport& proof : proofs) cells.push_back(proof.cells);
  const std::vector<SumFault> faults = JudgeSums(*ranks_[0]->regions(), cells, tensor_sums);
  if (!faults.empty()) {
    return absl::DataLossError(absl::StrCat("the ranks do not hold ", ToString(version), ": ",
                                            ToString(faults, store_.manifest())));
  }
  // An older version is a move that the next Prepare makes good: any lower number does.
  const HeadInfo head = store_.head();
  const MoveNumber move = version == head.version
                              ? head.move
                              : MoveNumber(std::max<uint64_t>(head.move.value(), 1) - 1);
  for (size_t i = 0; i < ranks_.size(); ++i) {
    RETURN_IF_ERROR(OfRank(ranks_[i]->Adopt(proofs[i], NameOf(info), move), i));
  }
  return absl::OkStatus();
}

absl::StatusOr<VersionId> Follower::Identify() {
  Drop();
  ASSIGN_OR_RETURN(const std::vector<AuditReport> proofs, AuditAll());
  const VersionId head = store_.head().version;
  const absl::Status is_head = ProveAs(proofs, head);
  if (is_head.ok()) return head;
  std::vector<VersionInfo> versions = store_.versions();
  for (auto it = versions.rbegin(); it != versions.rend(); ++it) {
    if (it->version == head) continue;
    const absl::Status is_this = ProveAs(proofs, it->version);
    if (is_this.ok()) return it->version;
    if (!absl::IsDataLoss(is_this)) return is_this;
  }
  return Prefixed(is_head, absl::StrCat("no version of the store (", versions.size(),
                                        " were compared); against head"));
}

UpdateHeader Follower::NextHeader() const {
  const ReplicaStatus now = ranks_[0]->status();
  const HeadInfo head = store_.head();
  UpdateHeader header;
  // One process, one follower: the head move is all that tells its updates apart.
  header.transaction = TransactionNumber(head.move.value());
  header.parent_move = now.move;
  header.move = head.move;
  header.from = *now.version;
  header.to = head.version;
  header.base_digest = head.base_digest;
  header.layout_generation = now.layout_generation;
  const absl::StatusOr<VersionInfo> to = store_.version(head.version);
  if (to.ok() && to->parent == header.from.version) {
    header.reason = ChangeReason::kPublish;
  } else {
    header.reason =
        header.to < header.from.version ? ChangeReason::kRollback : ChangeReason::kCatchUp;
  }
  return header;
}

absl::StatusOr<bool> Follower::Prepare() {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const ReplicaStatus status = ranks_[i]->status();
    if (status.version.has_value() && status.version == ranks_[0]->status().version) continue;
    const std::string detail = ranks_[i]->detail();
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", i, " is ", std::string(ReplicaStateName(status.state)),
                     detail.empty() ? "" : ": ", detail, "; load it, or identify what it holds"));
  }
  const UpdateHeader header = NextHeader();
  if (prepared_.has_value()) {
    if (prepared_->header == header) return true;
    Drop();
  }
  if (header.move == header.parent_move) {
    if (header.to == header.from.version) return false;
    return absl::FailedPreconditionError(absl::StrCat("the ranks hold ", ToString(header.from),
                                                      ", which never was head; load them"));
  }
  Target target{header, {}};
  const absl::Status staged = Stage(&target);
  if (!staged.ok()) {
    for (Replica* const rank : ranks_) rank->Abort(header.transaction).IgnoreError();
    return staged;
  }
  prepared_ = std::move(target);
  return true;
}

absl::Status Follower::Stage(Target* target) {
  const UpdateHeader& header = target->header;
  ASSIGN_OR_RETURN(const VersionInfo to, store_.version(header.to));
  ASSIGN_OR_RETURN(const std::unique_ptr<PatchSource> difference,
                   store_.Difference(header.from.version, header.to));
  ASSIGN_OR_RETURN(DifferenceInfo info, store_.DescribeDifference(header.from.version, header.to));
  target->summary.to_chain_digest = to.chain_digest;
  target->summary.declared = std::move(info.touched);
  for (size_t i = 0; i < ranks_.size(); ++i) {
    RETURN_IF_ERROR(OfRank(ranks_[i]->BeginUpdate(header).status(), i));
    absl::StatusOr<ContributorContent> content = ranks_[i]->StageAll(*difference);
    RETURN_IF_ERROR(OfRank(content.status(), i));
    content->digest = info.patch_digest;
    target->summary.contents.clear();
    if (info.elements > 0) target->summary.contents.push_back(*content);
  }
  std::vector<StagedReport> reports;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    absl::StatusOr<StagedReport> report = ranks_[i]->FinishStaging(target->summary);
    RETURN_IF_ERROR(OfRank(report.status(), i));
    reports.push_back(*std::move(report));
  }
  std::vector<absl::Span<const CellSums>> cells;
  for (const StagedReport& report : reports) cells.push_back(report.cells);
  RETURN_IF_ERROR(Prefixed(
      JudgeTouched(*ranks_[0]->regions(), store_.manifest(), cells, *target->summary.declared),
      absl::StrCat("from ", ToString(header.from), " to ", ToString(header.to))));
  for (size_t i = 0; i < ranks_.size(); ++i) {
    RETURN_IF_ERROR(OfRank(ranks_[i]->Approve(header.transaction), i));
  }
  return absl::OkStatus();
}

absl::Status Follower::Apply() {
  if (!prepared_.has_value()) return absl::OkStatus();
  const UpdateHeader header = prepared_->header;
  const HeadInfo head = store_.head();
  if (head.move != header.move) {
    Drop();
    return absl::AbortedError(absl::StrCat("head has moved from ", ToString(header.to), " to ",
                                           ToString(head.version), " since; prepare again"));
  }
  absl::Status status;
  for (size_t i = 0; status.ok() && i < ranks_.size(); ++i) {
    status = OfRank(ranks_[i]->Apply(header.transaction), i);
  }
  if (!status.ok()) {
    Drop();  // takes back the ranks that had applied it
    return status;
  }
  prepared_.reset();
  for (size_t i = 0; i < ranks_.size(); ++i) {
    status.Update(OfRank(ranks_[i]->Commit(header.transaction), i));
  }
  return status;
}

absl::StatusOr<VersionId> Follower::Follow() {
  while (true) {
    ASSIGN_OR_RETURN(const bool is_due, Prepare());
    if (!is_due) return ranks_[0]->status().version->version;
    const MoveNumber move = prepared_->header.move;
    const absl::Status applied = Apply();
    if (!applied.ok() && store_.head().move == move) return applied;
  }
}

void Follower::Drop() {
  if (!prepared_.has_value()) return;
  const TransactionNumber transaction = prepared_->header.transaction;
  prepared_.reset();
  for (Replica* const rank : ranks_) rank->Abort(transaction).IgnoreError();
}

}  // namespace wstore
