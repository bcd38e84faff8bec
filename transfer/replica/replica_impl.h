// The state machine behind wstore::Replica.
#pragma once

#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transfer/replica/backend.h"
#include "transfer/replica/exchange.h"
#include "transfer/replica/memory_gate.h"
#include "transfer/replica/plan.h"
#include "transfer/replica/reaper.h"
#include "transfer/replica/staging.h"
#include "transfer/replica/status_cell.h"
#include "transfer/replica/undo_history.h"
#include "wstore/replica.h"

namespace wstore {

class Replica::Impl {
 public:
  Impl(std::shared_ptr<const Plan> plan, ReplicaOptions options);

  // See Replica for all of these.
  ReplicaStatus status() const { return status_cell_.Load(); }
  std::string detail() const;
  std::optional<UpdateHeader> pending() const;
  std::vector<VersionName> history() const;
  std::shared_ptr<const RegionMap> regions() const;

  absl::StatusOr<AuditReport> Audit();
  absl::Status Adopt(const AuditReport& proof, const VersionName& version, MoveNumber move);
  absl::Status ProveAlone(const VersionName& version, MoveNumber move,
                          absl::Span<const Fingerprint> tensor_sums);
  absl::Status Bind(absl::Span<const LocalBuffer> buffers);
  absl::Status Invalidate(std::string reason);
  absl::Status Poison(std::string reason);
  absl::Status Suspend();
  absl::Status Resume(absl::Span<const LocalBuffer> buffers);
  absl::Status Relayout(ReplicaPlacement placement, absl::Span<const LocalBuffer> buffers);
  absl::Status Load(const DenseSource& source);

  absl::StatusOr<bool> BeginUpdate(const UpdateHeader& header);
  absl::Status StageChunk(std::string_view bytes);
  absl::Status StageDeviceChunks(absl::Span<const DeviceChunk> chunks);
  int threads() const;
  absl::StatusOr<ContributorContent> StageAll(const PatchSource& patches);
  absl::Status StageFromHistory(TransactionNumber transaction);
  absl::StatusOr<StagedReport> FinishStaging(const UpdateSummary& summary);
  absl::Status Approve(TransactionNumber transaction);

  absl::Status Apply(TransactionNumber transaction);
  absl::Status Commit(TransactionNumber transaction);
  absl::Status Abort(TransactionNumber transaction);

  // Calls a method; where memory runs out in it, returns an error that needs none.
  template <typename Function>
  auto Guard(Function&& function) -> decltype(function()) {
    try {
      return function();
    } catch (const std::bad_alloc&) {
      return out_of_memory_;
    }
  }

 private:
  struct Pending {
    UpdateHeader header;
    std::shared_ptr<Staging> staging;      // until the update is staged
    std::shared_ptr<StagedPatch> patch;    // afterwards
    std::vector<UndoHistory::Entry> back;  // what is taken back out of the history; empty: chunks
    bool is_finishing = false;             // FinishStaging is at work
    VersionName to;
    StagedReport report;
    ExchangeRoom room;
  };
  // What FinishStaging adds to it.
  struct Completed {
    std::shared_ptr<StagedPatch> patch;
    StagedReport report;
    ExchangeRoom room;
  };
  struct Committed {
    TransactionNumber transaction;
    MoveNumber move;
    VersionName to;
  };

  // The rest needs mutex_ held, unless it says otherwise.
  void SetState(ReplicaState state);
  void DropPending(ReplicaState next);
  void BecomeUnproven(std::string why);
  bool Serves() const { return status_.version.has_value(); }
  bool IsCommitted(TransactionNumber transaction) const;
  bool IsPending(TransactionNumber transaction) const;
  absl::Status Refuse(std::string_view what) const;
  absl::Status CheckHeader(const UpdateHeader& header) const;
  // The pending update of this transaction, if it is being collected.
  absl::StatusOr<std::shared_ptr<Pending>> FindPending(TransactionNumber transaction) const;
  absl::Status CheckTarget(const Pending& pending, const UpdateSummary& summary) const;
  absl::Status RefuseTransaction(TransactionNumber transaction) const;
  absl::Status EndExchange(const ExchangeResult& result, std::string_view what);

  // Without mutex_.
  // Where chunks of this transaction are collected; null: there is nothing to do with them.
  absl::StatusOr<std::shared_ptr<Staging>> FindStaging(TransactionNumber transaction) const;
  // What staging a chunk comes to, given what `staging` said to it.
  absl::Status EndStaging(const std::shared_ptr<Staging>& staging, const absl::Status& status);
  // Hashes and reads what was staged, beside the caller.
  void WorkAhead(const std::shared_ptr<Staging>& staging);
  absl::Status FetchColumns(absl::Span<const UndoHistory::Entry> entries);
  absl::StatusOr<Completed> Complete(const Plan& plan, const MemoryPass& pass,
                                     const Pending& pending, const UpdateSummary& summary);

  const absl::Status out_of_memory_;
  const ReplicaOptions options_;
  const std::shared_ptr<MemoryBackend> backend_;
  MemoryGate gate_;
  Reaper reaper_;
  StatusCell status_cell_;

  mutable std::mutex mutex_;
  std::shared_ptr<const Plan> plan_;
  ReplicaStatus status_;
  std::string detail_;
  std::optional<VersionName> held_;  // the version last held, by proof or by commit
  uint64_t epoch_ = 0;               // counts whatever may have changed the memory
  std::shared_ptr<Pending> pending_;
  std::optional<Committed> committed_;  // the last one
  UndoHistory history_;

  // From the first chunks on that were staged where they lie. Last: they use the others.
  std::once_flag ahead_made_;
  std::unique_ptr<JobThread> digests_ahead_;
  std::unique_ptr<JobThread> reads_ahead_;
};

// Whether there is a buffer for each of the layout, of its size, aligned, and apart from all
// others.
absl::Status CheckBuffers(const Layout& layout, absl::Span<const LocalBuffer> buffers);

}  // namespace wstore
