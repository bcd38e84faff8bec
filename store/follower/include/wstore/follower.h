// wstore::Follower: keeps the replicas of one instance at the head of a store, in one process.
//
// For an engine that embeds both: no server, no network. Publishes and rollbacks move the store's
// head; the follower takes all ranks' memory there, or none of them:
//
//   wstore::Follower follower(*store, {replica.get()});
//   RETURN_IF_ERROR(follower.Load());               // or Identify(), if the engine has loaded them
//   ...
//   ASSIGN_OR_RETURN(bool is_due, follower.Prepare());  // beside the engine, which serves
//   if (is_due) RETURN_IF_ERROR(follower.Apply());       // at a safe point
//
// Threads: one at a time. Prepare may run beside the engine; Load and Apply write weights, and must
// be called where no rank reads them. Memory: that of the replicas' staged updates.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "wstore/replica.h"
#include "wstore/store.h"

namespace wstore {

class Follower {
 public:
  // `ranks`: the replicas of all ranks of the instance, in the order of its regions, attached with
  // the store's manifest and FingerprintKey(store.head().base_digest). At least one. All must
  // outlive the follower, and only the follower may begin updates on them.
  Follower(Store& store, std::vector<Replica*> ranks);

  // Writes head's bits into all ranks and proves them by an audit.
  //   kFailedPrecondition: the base's files are not what they were
  //   kDataLoss: what was written is not head; ranks and tensors are named
  // On failure the replicas are unproven: load again.
  absl::Status Load();

  // Audits all ranks and finds out which version they hold, the newest first. For weights that the
  // engine loaded itself, and after Replica::Invalidate, Resume or Relayout.
  //   kDataLoss: no version of the store; what differs from head is named. The replicas stay
  //     unproven
  absl::StatusOr<VersionId> Identify();

  // Stages the way from what the ranks hold to head, checks it against the store and against the
  // bits in memory. True: Apply has something to do. False: the ranks are at head. Preparing again
  // when head has moved drops what was staged and stages anew.
  //   kFailedPrecondition: a rank holds no proven version
  //   kDataLoss: old bits are not what was recorded; rank and tensor are named
  //   kResourceExhausted: out of memory, or past a rank's budget
  // On failure every rank is as before.
  absl::StatusOr<bool> Prepare();

  // Takes all ranks to what was prepared; afterwards all hold it, or all hold what they held. Does
  // nothing where nothing is prepared.
  //   kAborted: head has moved since; prepare again
  //   else, what Replica::Apply returned; the rank is named. Ranks whose undoing failed are
  //   poisoned
  absl::Status Apply();

  // Prepare and Apply, until the ranks are at head. For a caller that is at a safe point anyway.
  absl::StatusOr<VersionId> Follow();

  // Drops what was prepared.
  void Drop();

 private:
  struct Target {
    UpdateHeader header;
    UpdateSummary summary;
  };

  // Head, its move, and why it moved there.
  UpdateHeader NextHeader() const;
  absl::Status Stage(Target* target);
  absl::Status ProveAs(const std::vector<AuditReport>& proofs, VersionId version);
  absl::StatusOr<std::vector<AuditReport>> AuditAll();

  Store& store_;
  const std::vector<Replica*> ranks_;
  std::optional<Target> prepared_;
};

}  // namespace wstore
