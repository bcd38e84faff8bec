// wstore::Replica: the live weights of one rank, in memory that the engine owns.
//
// A replica knows which version its memory holds, because an audit proved it, and moves it to other
// versions in place, all or nothing:
//
//   ASSIGN_OR_RETURN(auto replica, wstore::Replica::Attach(manifest, key, placement, buffers, {}));
//   RETURN_IF_ERROR(replica->ProveAlone(version, move, sums));
//   ...
//   ASSIGN_OR_RETURN(bool begun, replica->BeginUpdate(header));   // the engine goes on serving
//   RETURN_IF_ERROR(replica->StageChunk(bytes));                  // each chunk, in any order
//   ASSIGN_OR_RETURN(auto report, replica->FinishStaging(summary));
//   RETURN_IF_ERROR(replica->Apply(header.transaction));          // at a safe point
//   RETURN_IF_ERROR(replica->Commit(header.transaction));         // or Abort
//
// A patch is old XOR new bits, so the staged update takes the memory back as it took it there. It
// is written only behind the gate: content whole and of the declared digest, old sums as declared,
// and again as found when they are overwritten.
//
// After Apply or Abort returns, the memory is the old version or the new one, bit for bit, or the
// replica is poisoned and says so. docs/replica.md draws the states and says what each failure
// leaves.
//
// Threads: status() may be called from any thread at any time and takes no lock. StageChunk and
// StageDeviceChunks may be called by several threads at once. All others may be called from any
// thread and are serialized, but Apply, Abort, Load, Suspend and Resume write or give away memory:
// call them where the engine does not read it, at a safe point. FinishStaging and Audit read memory
// for long, in the background; when one of those five comes they end within about a millisecond,
// with kAborted.
//
// Memory beyond the engine's: the staged update, the undo history, and at most 64 MiB. Apply,
// Commit and Abort allocate nothing that they need to succeed. Where memory runs out, functions
// return kResourceExhausted and have changed nothing.
//
// Errors, for all methods, with what stood against what in the message:
//   kFailedPrecondition: the replica's state, version, move, base, layout or transaction forbids it
//   kDataLoss: content or sums are not what was declared
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/device_chunk.h"
#include "wstore/fingerprint.h"
#include "wstore/layout.h"
#include "wstore/patch_source.h"
#include "wstore/regions.h"
#include "wstore/update.h"

namespace wstore {

class MemoryBackend;  // transfer/replica/backend.h

// Memory of one LayoutBuffer: all of it, aligned to its elements, in the backend's address space.
struct LocalBuffer {
  void* data = nullptr;
  uint64_t size_bytes = 0;
};

// Where a rank's weights lie, and what it reports sums of.
struct ReplicaPlacement {
  std::shared_ptr<const Layout> layout;
  // Of the instance. Empty: this rank is the whole instance and holds every tensor.
  std::shared_ptr<const RegionMap> regions;
  uint32_t rank = 0;  // within `regions`
};

struct ReplicaOptions {
  int threads = 0;  // 0: one per processor, but no more than 32
  // Bytes of staged chunks; a chunk past it is refused.
  uint64_t stage_budget_bytes = UINT64_MAX;
  // Memory is read for an update as it is staged, for so many groups of changes (those of one tile
  // in one cell) or more at a time, so that FinishStaging has little left to read. UINT64_MAX: it
  // reads all.
  uint64_t read_ahead_groups = 2048;
  // Bytes of committed updates kept for StageFromHistory, the oldest dropped first.
  uint64_t undo_budget_bytes = 0;
  // Called once after every change of version, by the thread that committed it; may ask the replica
  // for its status, and nothing else of it. Must not throw.
  std::function<void(const ChangeEvent&)> on_change;
  // Empty: host memory.
  std::shared_ptr<MemoryBackend> backend;
};

class Replica {
 public:
  // `manifest` and the buffers' memory must outlive the replica. Unproven at first. The memory is
  // not read.
  //   kInvalidArgument: buffers other than the layout's (all of them are listed) or that overlap; a
  //   layout of another rank than regions'; no regions, but tensors that are not held whole
  static absl::StatusOr<std::unique_ptr<Replica>> Attach(const Manifest& manifest,
                                                         const FingerprintKey& key,
                                                         ReplicaPlacement placement,
                                                         absl::Span<const LocalBuffer> buffers,
                                                         ReplicaOptions options);
  ~Replica();

  ReplicaStatus status() const;
  // Why it is unproven, suspended or poisoned; empty otherwise.
  std::string detail() const;
  // The update being staged, or applied and not decided.
  std::optional<UpdateHeader> pending() const;
  // The versions that StageFromHistory can go to, latest first.
  std::vector<VersionName> history() const;
  std::shared_ptr<const RegionMap> regions() const;

  // Sums all cells. While the engine serves, too. Reads all of the weights.
  //   kAborted: memory was about to be written or given away
  absl::StatusOr<AuditReport> Audit();
  // From unproven to ready: the caller judged the sums of all ranks of the instance (JudgeSums),
  // and they are those of `version`. `move` is the last decided head move.
  //   kAborted: memory was changed since the audit
  absl::Status Adopt(const AuditReport& proof, const VersionName& version, MoveNumber move);
  // Both in one, for a rank that is the whole instance: `tensor_sums` are the recorded fingerprints
  // of all tensors of `version`. A ready replica must hold `version`, and is audited again.
  //   kDataLoss: other sums; each tensor is named. A ready replica is poisoned by it
  absl::Status ProveAlone(const VersionName& version, MoveNumber move,
                          absl::Span<const Fingerprint> tensor_sums);

  // Starts to collect an update. True: yes (also if it was started before). False: this transaction
  // is already committed here, under the same move; there is nothing to do.
  //   kFailedPrecondition: see above; or another update is pending
  absl::StatusOr<bool> BeginUpdate(const UpdateHeader& header);
  // Checks a chunk, keeps what is local. The same chunk again changes nothing. `bytes` are not
  // kept.
  //   kInvalidArgument, kDataLoss: see ChunkView::Parse
  //   kFailedPrecondition: of another transaction, or of a contributor that is not announced
  //   kAlreadyExists: the same key with other content
  //   kResourceExhausted: past the budget, or no memory
  absl::Status StageChunk(std::string_view bytes);
  // Stages chunks where they lie, in order. On a GPU they are checked and decoded there, many at a
  // time. What wrote them is done; they must stay as they are until the call returns. Those before
  // the first that is refused are staged, and none where room for all of them is wanting.
  //   As StageChunk. kInvalidArgument also, with nothing staged: a chunk at no address or not at a
  //   multiple of 16 bytes, of more than kChunkMaxBytes, or in memory out of the backend's reach
  absl::Status StageDeviceChunks(absl::Span<const DeviceChunk> chunks);
  // Stages a whole patch set of one contributor, on all cores. Returns its content.
  absl::StatusOr<ContributorContent> StageAll(const PatchSource& patches);
  // Stages the way to header.to out of the undo history, in place of chunks.
  //   kNotFound: the version is not in the history
  absl::Status StageFromHistory(TransactionNumber transaction);
  // Proves that the update is whole and what was declared, and sums old and new bits of all touched
  // elements, as they are now or were when their chunk was staged, without writing. Approves it, if
  // the rank is the whole instance and sums are declared. On failure the update is dropped, unless
  // chunks are missing.
  //   kDataLoss: chunks missing (stage them and call it again) or too many; another digest than
  //     declared; old or new bits other than declared
  //   kInvalidArgument: an element claimed by two contributors, a tile twice by one, or unequal
  //     patches of an alias group
  //   kAborted: the update was aborted meanwhile
  absl::StatusOr<StagedReport> FinishStaging(const UpdateSummary& summary);
  // The caller compared the reported sums of all ranks with the declared ones.
  absl::Status Approve(TransactionNumber transaction);

  // Writes the update, re-reads it and compares. Again, or after the commit: nothing is done.
  // On failure the old version is back and re-read, and the update dropped, or the replica is
  // poisoned: because a write's progress is unknown, undoing failed, or the old bits are not those
  // that FinishStaging saw (what was found is put back). The message says which.
  absl::Status Apply(TransactionNumber transaction);
  // Makes the applied update the replica's version, and tells it to on_change. Again: nothing is
  // done.
  absl::Status Commit(TransactionNumber transaction);
  // Drops the update; if it is applied, takes it back, re-reads and compares. If it is not there:
  // nothing is done.
  //   kFailedPrecondition: it is committed
  //   kDataLoss: the old bits did not come back; the replica is poisoned
  absl::Status Abort(TransactionNumber transaction);

  // Something else changed the weights, or may have (LoRA merge, requantisation, reload). Unproven.
  absl::Status Invalidate(std::string reason);
  // The weights are known to be wrong.
  absl::Status Poison(std::string reason);
  // Memory goes away (the engine sleeps), and comes back at other addresses, unproven.
  absl::Status Suspend();
  absl::Status Resume(absl::Span<const LocalBuffer> buffers);
  // Places changed: another layout, of a higher generation. Unproven. The history is dropped.
  absl::Status Relayout(ReplicaPlacement placement, absl::Span<const LocalBuffer> buffers);
  // Writes all placements from dense bytes, on all cores. Unproven afterwards, whatever it returns.
  // The history is dropped.
  absl::Status Load(const DenseSource& source);

 private:
  class Impl;
  explicit Replica(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace wstore
