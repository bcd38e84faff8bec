// wstore::Transaction: one publish, from begin to commit or abort.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/commit.h"
#include "wstore/patch_set.h"
#include "wstore/progress.h"
#include "wstore/version.h"

namespace wstore {

// Holds what is added in memory (patches) or as a path (a checkpoint) until Commit. Destroying it
// without a commit aborts it. One thread at a time. The store must outlive it.
class Transaction {
 public:
  virtual ~Transaction() = default;

  virtual TransactionNumber number() const = 0;
  // What it is made against.
  virtual const HeadInfo& parent() const = 0;

  // Adds patches of single elements; all of them or none. May be called repeatedly, for other
  // tensors. Errors: see PatchSetBuilder::Add. New values are resolved against the parent at
  // commit.
  //   kFailedPrecondition: a checkpoint was set, or the transaction has ended
  virtual absl::Status Add(absl::Span<const TensorPatch> patches) = 0;

  // The new version is this dense checkpoint: a safetensors file or a directory. It is compared
  // with the parent at commit, and must not change until then.
  //   kInvalidArgument: not a sound checkpoint, or tensors missing, added, or of another dtype or
  //   shape
  //     (all of them are listed)
  //   kFailedPrecondition: patches were added, or the transaction has ended
  virtual absl::Status SetCheckpoint(const std::string& path) = 0;

  // Makes the version durable and moves head to it. Ends the transaction, whatever it returns.
  //   kFailedPrecondition: head moved or publishing was put on hold meanwhile (the new head is in
  //   the
  //     message), or the base's files changed
  //   kAlreadyExists: the id was committed with other content
  //   kDataLoss: the parent's bits do not have the recorded sums
  //   kResourceExhausted, kUnavailable: disk full or I/O error; nothing was committed
  //   kUnknown: reopen the store and ask by id
  // `progress` reports bytes read.
  virtual absl::StatusOr<CommitResult> Commit(const ProgressFn& progress = {}) = 0;

  // Drops everything. No effect after the end.
  virtual void Abort() = 0;
};

}  // namespace wstore
