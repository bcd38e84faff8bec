// What a replica knows of its memory: proof, loss and return.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/strings.h"
#include "transfer/replica/replica_impl.h"

namespace wstore {

Replica::Impl::Impl(std::shared_ptr<const Plan> plan, ReplicaOptions options)
    : out_of_memory_(absl::ResourceExhaustedError("out of memory")),
      options_(std::move(options)),
      backend_(options_.backend),
      plan_(std::move(plan)),
      detail_("no audit has proved its version"),
      history_(options_.undo_budget_bytes, &reaper_) {
  status_.layout_generation = plan_->layout().generation();
  SetState(ReplicaState::kUnproven);
}

absl::Status Replica::Impl::Bind(absl::Span<const LocalBuffer> buffers) {
  return backend_->Bind(plan_, buffers);
}

std::string Replica::Impl::detail() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return detail_;
}

std::shared_ptr<const RegionMap> Replica::Impl::regions() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return plan_->shared_regions();
}

std::vector<VersionName> Replica::Impl::history() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<VersionName> versions;
  for (const UndoHistory::Entry& entry : history_.entries()) versions.push_back(entry.from);
  std::reverse(versions.begin(), versions.end());
  return versions;
}

// A version is shown in exactly the states in which an engine may serve.
void Replica::Impl::SetState(ReplicaState state) {
  status_.state = state;
  const bool serves = state == ReplicaState::kReady || state == ReplicaState::kStaging ||
                      state == ReplicaState::kStaged || state == ReplicaState::kApproved;
  status_.version = serves ? held_ : std::nullopt;
  if (serves) detail_.clear();
  status_cell_.Store(status_);
}

void Replica::Impl::DropPending(ReplicaState next) {
  reaper_.Take(std::move(pending_));
  pending_ = nullptr;
  SetState(next);
}

void Replica::Impl::BecomeUnproven(std::string why) {
  ++epoch_;
  DropPending(ReplicaState::kUnproven);
  detail_ = std::move(why);
}

absl::StatusOr<AuditReport> Replica::Impl::Audit() {
  AuditReport report;
  std::optional<MemoryPass> pass;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (status_.state == ReplicaState::kSuspended) return Refuse("an audit");
    report.cells.resize(plan_->cells().size());
    report.epoch = epoch_;
    pass.emplace(&gate_);
  }
  RETURN_IF_ERROR(backend_->Audit(*pass, absl::MakeSpan(report.cells)));
  for (const Fingerprint& cell : report.cells) report.total += cell;
  return report;
}

absl::Status Replica::Impl::Adopt(const AuditReport& proof, const VersionName& version,
                                  MoveNumber move) {
  ChangeEvent event;
  bool changed;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (status_.state != ReplicaState::kUnproven) return Refuse("adopting a proved version");
    if (proof.epoch != epoch_) {
      return absl::AbortedError("memory was changed since the audit; audit it again");
    }
    changed = held_.has_value() && *held_ != version;
    if (changed) {
      event = {*held_, version, ChangeReason::kRebuilt, move, plan_->manifest().elements()};
    }
    if (held_ != version) history_.Clear();
    held_ = version;
    status_.move = move;
    SetState(ReplicaState::kReady);
  }
  if (changed && options_.on_change) options_.on_change(event);
  return absl::OkStatus();
}

absl::Status Replica::Impl::ProveAlone(const VersionName& version, MoveNumber move,
                                       absl::Span<const Fingerprint> tensor_sums) {
  std::shared_ptr<const Plan> plan;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    plan = plan_;
    if (Serves() && *status_.version != version) {
      return absl::FailedPreconditionError(absl::StrCat("the replica holds ", ToString(*held_),
                                                        " and cannot prove ", ToString(version)));
    }
    if (!Serves() && status_.state != ReplicaState::kUnproven) return Refuse("a proof");
  }
  if (!plan->is_whole()) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", plan->rank(), " is one of ", plan->regions().ranks(),
                     ", which must report their sums to be judged together"));
  }
  if (tensor_sums.size() != plan->manifest().size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sums of ", tensor_sums.size(), " tensors for a base of ", plan->manifest().size()));
  }
  ASSIGN_OR_RETURN(const AuditReport report, Audit());
  const std::vector<SumFault> faults =
      JudgeSums(plan->regions(), absl::MakeConstSpan(&report.cells, 1), tensor_sums);
  if (!faults.empty()) {
    const std::string what = absl::StrCat("the memory does not hold ", ToString(version), ": ",
                                          ToString(faults, plan->manifest()));
    std::lock_guard<std::mutex> lock(mutex_);
    if (Serves() && report.epoch == epoch_) {
      ++epoch_;
      DropPending(ReplicaState::kPoisoned);
      detail_ = what;
    }
    return absl::DataLossError(what);
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (Serves() && report.epoch == epoch_) return absl::OkStatus();
  }
  return Adopt(report, version, move);
}

absl::Status Replica::Impl::Invalidate(std::string reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (status_.state == ReplicaState::kSuspended) return absl::OkStatus();
  BecomeUnproven(std::move(reason));
  return absl::OkStatus();
}

absl::Status Replica::Impl::Poison(std::string reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (status_.state == ReplicaState::kSuspended) return Refuse("poisoning");
  ++epoch_;
  DropPending(ReplicaState::kPoisoned);
  detail_ = std::move(reason);
  return absl::OkStatus();
}

absl::Status Replica::Impl::Suspend() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (status_.state == ReplicaState::kSuspended) return absl::OkStatus();
  std::string detail = "its memory is given away until it is resumed";
  ++epoch_;
  DropPending(ReplicaState::kSuspended);
  detail_ = std::move(detail);
  gate_.Close();
  backend_->Unbind();
  return absl::OkStatus();
}

absl::Status Replica::Impl::Resume(absl::Span<const LocalBuffer> buffers) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (status_.state != ReplicaState::kSuspended) return Refuse("resuming");
  RETURN_IF_ERROR(CheckBuffers(plan_->layout(), buffers));
  RETURN_IF_ERROR(backend_->Bind(plan_, buffers));
  gate_.Open();
  BecomeUnproven("resumed; no audit has proved its version since");
  return absl::OkStatus();
}

absl::Status Replica::Impl::Relayout(ReplicaPlacement placement,
                                     absl::Span<const LocalBuffer> buffers) {
  std::lock_guard<std::mutex> lock(mutex_);
  ASSIGN_OR_RETURN(std::shared_ptr<const Plan> plan,
                   Plan::Create(plan_->manifest(), plan_->key(), std::move(placement)));
  if (plan->layout().generation() <= status_.layout_generation) {
    return absl::FailedPreconditionError(
        absl::StrCat("the new layout has generation ", plan->layout().generation(),
                     ", the present one ", status_.layout_generation, "; it must grow"));
  }
  RETURN_IF_ERROR(CheckBuffers(plan->layout(), buffers));
  gate_.Close();
  const absl::Status bound = backend_->Bind(plan, buffers);
  if (bound.ok() || status_.state != ReplicaState::kSuspended) gate_.Open();
  RETURN_IF_ERROR(bound);
  plan_ = std::move(plan);
  status_.layout_generation = plan_->layout().generation();
  history_.Clear();
  BecomeUnproven("places changed; no audit has proved its version since");
  return absl::OkStatus();
}

absl::Status Replica::Impl::Load(const DenseSource& source) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (status_.state == ReplicaState::kSuspended) return Refuse("loading");
  history_.Clear();
  BecomeUnproven("being loaded");
  gate_.Close();
  absl::Status status;
  try {
    status = backend_->Load(source);
  } catch (const std::bad_alloc&) {
    status = out_of_memory_;
  }
  gate_.Open();
  ++epoch_;
  detail_ = status.ok() ? "loaded; no audit has proved its version since"
                        : absl::StrCat("loading failed: ", status.message());
  return status;
}

}  // namespace wstore
