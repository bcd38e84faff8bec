// An update from its announcement to its approval, all of it while the engine serves.
#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/parallel.h"
#include "common/status_macros.h"
#include "common/strings.h"
#include "transfer/replica/read_units.h"
#include "transfer/replica/replica_impl.h"

namespace wstore {
namespace {

// Each holds a chunk of up to 4 MiB and the piece that is made of it.
constexpr int kStagingThreads = 8;

constexpr uint64_t kDeviceChunkAlignment = 16;

absl::Status CheckDeviceChunks(absl::Span<const DeviceChunk> chunks) {
  for (size_t i = 0; i < chunks.size(); ++i) {
    // Whatever is longer is not read at all.
    if (chunks[i].size_bytes > kChunkMaxBytes) {
      return absl::InvalidArgumentError(absl::StrCat("chunk ", i, " of ", chunks.size(), " has ",
                                                     chunks[i].size_bytes, " bytes; the limit is ",
                                                     kChunkMaxBytes));
    }
    const auto address = reinterpret_cast<uintptr_t>(chunks[i].data);
    if (address != 0 && address % kDeviceChunkAlignment == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "chunk ", i, " of ", chunks.size(), " is at address ", absl::Hex(address),
        "; one in the backend's memory lies at a multiple of ", kDeviceChunkAlignment));
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<UpdateHeader> Replica::Impl::pending() const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (pending_ == nullptr) return std::nullopt;
  return pending_->header;
}

absl::Status Replica::Impl::Refuse(std::string_view what) const {
  return absl::FailedPreconditionError(absl::StrCat(ToAbsl(what), " is refused: the replica is ",
                                                    ToAbsl(ReplicaStateName(status_.state)),
                                                    detail_.empty() ? "" : ": ", detail_));
}

bool Replica::Impl::IsCommitted(TransactionNumber transaction) const {
  return committed_.has_value() && committed_->transaction == transaction && Serves() &&
         *status_.version == committed_->to;
}

bool Replica::Impl::IsPending(TransactionNumber transaction) const {
  return pending_ != nullptr && pending_->header.transaction == transaction;
}

absl::Status Replica::Impl::RefuseTransaction(TransactionNumber transaction) const {
  const std::string there =
      pending_ == nullptr
          ? "no update is pending"
          : absl::StrCat("transaction ", pending_->header.transaction.value(), " is pending");
  return absl::FailedPreconditionError(
      absl::StrCat("transaction ", transaction.value(), " is refused: ", there, ", the replica is ",
                   ToAbsl(ReplicaStateName(status_.state)), detail_.empty() ? "" : ": ", detail_));
}

absl::StatusOr<std::shared_ptr<Replica::Impl::Pending>> Replica::Impl::FindPending(
    TransactionNumber transaction) const {
  if (!IsPending(transaction)) {
    return RefuseTransaction(transaction);
  }
  return pending_;
}

absl::Status Replica::Impl::CheckHeader(const UpdateHeader& header) const {
  const auto refuse = [&](std::string_view what, const auto& needs, const auto& has) {
    return absl::FailedPreconditionError(absl::StrCat("transaction ", header.transaction.value(),
                                                      " is refused: it needs ", ToAbsl(what), " ",
                                                      needs, ", the replica has ", has));
  };
  if (!Serves()) return Refuse(absl::StrCat("transaction ", header.transaction.value()));
  if (header.base_digest != plan_->key().base_digest()) {
    return refuse("base", ToHex(header.base_digest), ToHex(plan_->key().base_digest()));
  }
  if (header.layout_generation != status_.layout_generation) {
    return refuse("layout generation", header.layout_generation, status_.layout_generation);
  }
  if (header.from != *held_) return refuse("version", ToString(header.from), ToString(*held_));
  if (header.parent_move != status_.move) {
    return refuse("head move", header.parent_move.value(), status_.move.value());
  }
  if (header.move <= header.parent_move || header.contributors == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "transaction ", header.transaction.value(), " would be head move ", header.move.value(),
        " after ", header.parent_move.value(), ", of ", header.contributors, " contributors"));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Replica::Impl::BeginUpdate(const UpdateHeader& header) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (IsCommitted(header.transaction)) {
    if (header.move == committed_->move && header.to == committed_->to.version) return false;
    return absl::FailedPreconditionError(
        absl::StrCat("transaction ", header.transaction.value(), " is committed here as head move ",
                     committed_->move.value(), " to ", ToString(committed_->to),
                     "; it is not move ", header.move.value(), " to ", ToString(header.to)));
  }
  if (pending_ != nullptr) {
    if (pending_->header == header) return true;
    return RefuseTransaction(header.transaction);
  }
  RETURN_IF_ERROR(CheckHeader(header));
  auto pending = std::make_shared<Pending>();
  pending->header = header;
  pending->staging = std::make_shared<Staging>(
      plan_, header, Staging::Options{options_.stage_budget_bytes, options_.read_ahead_groups},
      Staging::Backend{
          [this](StagedPiece* piece) { return backend_->AcceptPiece(piece); },
          [this](StagedPiece* piece) { return backend_->FetchColumns(piece); },
          [this](const MemoryPass& pass, absl::Span<Unit> units, std::vector<CellSums>* cells) {
            return ReadUnits(*backend_, pass, units, cells);
          }},
      MemoryPass(&gate_));
  pending_ = std::move(pending);
  SetState(ReplicaState::kStaging);
  return true;
}

absl::Status Replica::Impl::EndStaging(const std::shared_ptr<Staging>& staging,
                                       const absl::Status& status) {
  const TransactionNumber transaction = staging->header().transaction;
  std::lock_guard<std::mutex> lock(mutex_);
  if (pending_ != nullptr && pending_->staging == staging) return status;
  // A copy that was late by a moment.
  if (IsPending(transaction) && pending_->patch != nullptr) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat("transaction ", transaction.value(), " was aborted meanwhile"));
}

absl::StatusOr<std::shared_ptr<Staging>> Replica::Impl::FindStaging(
    TransactionNumber transaction) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (IsCommitted(transaction)) return nullptr;
  if (!IsPending(transaction)) return RefuseTransaction(transaction);
  // Proved to be whole without it: this is a late copy.
  if (pending_->patch != nullptr) return nullptr;
  return pending_->staging;
}

absl::Status Replica::Impl::StageChunk(std::string_view bytes) {
  std::shared_ptr<const Plan> plan;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    plan = plan_;
  }
  ASSIGN_OR_RETURN(const ChunkView view, ChunkView::Parse(bytes, plan->manifest()));
  ASSIGN_OR_RETURN(const std::shared_ptr<Staging> staging, FindStaging(view.header().transaction));
  if (staging == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(EndStaging(staging, staging->Add(view, view.header().key)));
  staging->WorkAhead();
  return absl::OkStatus();
}

int Replica::Impl::threads() const {
  return std::min(options_.threads > 0 ? options_.threads : DefaultParallelism(), kStagingThreads);
}

absl::Status Replica::Impl::StageDeviceChunks(absl::Span<const DeviceChunk> chunks) {
  std::shared_ptr<Staging> staging;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (pending_ != nullptr && pending_->patch == nullptr) staging = pending_->staging;
  }
  RETURN_IF_ERROR(CheckDeviceChunks(chunks));
  // Where nothing is collected the host reads them, to say what they are refused for.
  std::vector<std::optional<DecodedChunk>> decoded(chunks.size());
  if (staging != nullptr) {
    RETURN_IF_ERROR(backend_->DecodeChunks(staging->plan(), staging->allow_dense(), chunks,
                                           absl::MakeSpan(decoded)));
  }
  std::string room;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (!decoded[i].has_value()) {
      ASSIGN_OR_RETURN(const std::string_view bytes, backend_->ReadChunk(chunks[i], &room));
      RETURN_IF_ERROR(StageChunk(bytes));
      continue;
    }
    ASSIGN_OR_RETURN(const std::shared_ptr<Staging> found,
                     FindStaging(decoded[i]->header.transaction));
    if (found == nullptr) continue;
    // Decoded for the plan and the contributors of this one.
    if (found != staging) return absl::AbortedError("another update began meanwhile");
    RETURN_IF_ERROR(EndStaging(staging, staging->AddDecoded(*std::move(decoded[i]))));
  }
  if (staging != nullptr) WorkAhead(staging);
  return absl::OkStatus();
}

void Replica::Impl::WorkAhead(const std::shared_ptr<Staging>& staging) {
  try {
    std::call_once(ahead_made_, [this] {
      digests_ahead_ = std::make_unique<JobThread>("wr-digests", nullptr);
      reads_ahead_ = std::make_unique<JobThread>("wr-reads", nullptr);
    });
  } catch (const std::exception&) {
    // No thread, or no memory.
    return staging->WorkAhead();
  }
  Staging::WorkAheadBeside(staging, threads(), *digests_ahead_, *reads_ahead_);
}

absl::StatusOr<ContributorContent> Replica::Impl::StageAll(const PatchSource& patches) {
  std::shared_ptr<Staging> staging;
  std::shared_ptr<const Plan> plan;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (pending_ == nullptr || pending_->patch != nullptr) return Refuse("staging a patch set");
    staging = pending_->staging;
    plan = plan_;
  }
  const auto stage_span = [&](uint64_t span) {
    ChunkKey key{0, static_cast<uint32_t>(span), 0};
    return patches.ReadSpan(key.span, [&](const ChunkView& view) {
      RETURN_IF_ERROR(EndStaging(staging, staging->Add(view, key)));
      staging->WorkAhead();
      ++key.part;
      return absl::OkStatus();
    });
  };
  RETURN_IF_ERROR(ParallelFor(plan->manifest().spans(), threads(), [&](uint64_t span) {
    return Guard([&] { return stage_span(span); });
  }));
  return staging->Content(0);
}

absl::Status Replica::Impl::StageFromHistory(TransactionNumber transaction) {
  std::lock_guard<std::mutex> lock(mutex_);
  ASSIGN_OR_RETURN(const std::shared_ptr<Pending> pending, FindPending(transaction));
  if (!pending->back.empty()) return absl::OkStatus();
  if (pending->patch != nullptr || pending->is_finishing) return Refuse("staging from the history");
  const std::optional<size_t> steps = history_.StepsTo(pending->header.to);
  if (!steps.has_value()) {
    return absl::NotFoundError(absl::StrCat(ToString(pending->header.to), " is not among the ",
                                            history_.entries().size(),
                                            " versions that can be gone back to"));
  }
  const auto entries = history_.entries().last(*steps);
  pending->back.assign(entries.begin(), entries.end());
  return absl::OkStatus();
}

// The number of the version was announced with the update; its chain digest comes with the summary.
absl::Status Replica::Impl::CheckTarget(const Pending& pending,
                                        const UpdateSummary& summary) const {
  const UpdateHeader& header = pending.header;
  const VersionName to{header.to, summary.to_chain_digest};
  if (!pending.back.empty() && to != pending.back.front().from) {
    return absl::FailedPreconditionError(absl::StrCat("the history leads to ",
                                                      ToString(pending.back.front().from),
                                                      ", the summary to ", ToString(to)));
  }
  if (header.to == header.from.version && to != header.from) {
    return absl::FailedPreconditionError(
        absl::StrCat("an update from ", ToString(header.from), " cannot lead to ", ToString(to)));
  }
  return absl::OkStatus();
}

absl::Status Replica::Impl::FetchColumns(absl::Span<const UndoHistory::Entry> entries) {
  for (const UndoHistory::Entry& entry : entries) {
    for (const auto& piece : entry.patch->pieces) {
      if (!piece->has_columns()) RETURN_IF_ERROR(backend_->FetchColumns(piece.get()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Replica::Impl::Completed> Replica::Impl::Complete(const Plan& plan,
                                                                 const MemoryPass& pass,
                                                                 const Pending& pending,
                                                                 const UpdateSummary& summary) {
  RETURN_IF_ERROR(CheckTarget(pending, summary));
  Completed completed;
  StagedReport& report = completed.report;
  size_t read_units = 0;
  if (pending.back.empty()) {
    RETURN_IF_ERROR(pending.staging->Verify(summary));
    Staging::Collected collected = pending.staging->Take();
    completed.patch = std::make_shared<StagedPatch>(std::move(collected.patch));
    read_units = collected.read_units;
    report.cells = std::move(collected.cells);
  } else if (pending.back.size() == 1) {
    completed.patch = pending.back.front().patch;
  } else {
    RETURN_IF_ERROR(FetchColumns(pending.back));
    completed.patch = ComposeStaged(plan, pending.back);
    for (const auto& piece : completed.patch->pieces) {
      RETURN_IF_ERROR(backend_->AcceptPiece(piece.get()));
    }
  }
  const absl::Span<Unit> units = absl::MakeSpan(completed.patch->units);
  RETURN_IF_ERROR(ReadUnits(*backend_, pass, units.subspan(read_units), &report.cells));
  // What was read ahead was read before this pass.
  if (pass.is_over()) return absl::AbortedError("memory was written or given away meanwhile");
  for (const CellSums& cell : report.cells) report.total += cell.sums;
  report.elements = completed.patch->changed;
  report.size_bytes = completed.patch->size_bytes;
  completed.room.Reserve(units.size());
  if (plan.is_whole() && summary.declared.has_value()) {
    const absl::Span<const CellSums> cells = report.cells;
    RETURN_IF_ERROR(JudgeTouched(plan.regions(), plan.manifest(), {cells}, *summary.declared));
    report.approved = true;
  }
  return completed;
}

absl::StatusOr<StagedReport> Replica::Impl::FinishStaging(const UpdateSummary& summary) {
  std::shared_ptr<Pending> pending;
  std::shared_ptr<const Plan> plan;
  std::optional<MemoryPass> pass;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (pending_ == nullptr || pending_->is_finishing) return Refuse("finishing the staging");
    pending = pending_;
    if (pending->patch != nullptr) return pending->report;
    if (pending->back.empty()) RETURN_IF_ERROR(pending->staging->Seal(summary));
    pending->is_finishing = true;
    plan = plan_;
    pass.emplace(&gate_);
  }
  absl::StatusOr<Completed> completed =
      Guard([&] { return Complete(*plan, *pass, *pending, summary); });
  std::lock_guard<std::mutex> lock(mutex_);
  if (pending_ != pending) {
    return absl::AbortedError(absl::StrCat("transaction ", pending->header.transaction.value(),
                                           " was aborted meanwhile"));
  }
  StagedReport report;
  absl::Status status = completed.status();
  if (status.ok()) {
    // The last that needs memory.
    status = Guard([&] {
      history_.Reserve();
      report = completed->report;
      return backend_->Prepare(completed->patch->units);
    });
  }
  if (!status.ok()) {
    DropPending(ReplicaState::kReady);
    return Prefixed(status, absl::StrCat("transaction ", pending->header.transaction.value(),
                                         " is dropped, ", ToString(*held_), " stays"));
  }
  pending->staging = nullptr;
  pending->is_finishing = false;
  pending->patch = std::move(completed->patch);
  pending->report = std::move(completed->report);
  pending->room = std::move(completed->room);
  pending->to = {pending->header.to, summary.to_chain_digest};
  SetState(report.approved ? ReplicaState::kApproved : ReplicaState::kStaged);
  return report;
}

absl::Status Replica::Impl::Approve(TransactionNumber transaction) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (IsCommitted(transaction)) return absl::OkStatus();
  RETURN_IF_ERROR(FindPending(transaction).status());
  if (status_.state == ReplicaState::kStaged) SetState(ReplicaState::kApproved);
  if (status_.state == ReplicaState::kStaging) return Refuse("approval");
  return absl::OkStatus();
}

}  // namespace wstore
