// wstore::Store: a versioned store of one model's weights, embedded in this process.
//
// A store is a directory. It holds a journal, and refers to a dense base checkpoint that stays
// where it is (v0). Every later version is its parent plus one patch set. Head is the version that
// should be served; publishing moves it forward, a rollback moves it to any committed version and
// deletes nothing.
//
//   ASSIGN_OR_RETURN(auto store, wstore::Store::Open(directory, {}));
//   ASSIGN_OR_RETURN(auto tx, store->Begin({.message = "step 1200"}));
//   RETURN_IF_ERROR(tx->Add(patches));             // or tx->SetCheckpoint("/models/step-1200")
//   ASSIGN_OR_RETURN(auto result, tx->Commit());   // durable when it returns
//
// Threads: every method may be called from any thread. Methods that change the store are
// serialized. Processes: one process has a store open for writing; others may look at it with
// read_only. Memory: what its records say, about a kilobyte a version; from the first publish on
// what the next one needs of head, at most 32 MiB of tiles and 80 MiB of where sets lie, both
// mostly much less (docs/design/store.md); and what a method says. Durability: what a method that
// changes the store returned OK for survives kill -9 and power loss. On failure nothing has
// changed, unless a method says otherwise.
//
// Errors, for all methods:
//   kInvalidArgument, kOutOfRange: bad input; everything wrong of one kind is listed
//   kFailedPrecondition: the store's state forbids it (another head, publishing on hold, base
//   changed) kNotFound: no such store, version or tag kDataLoss: corruption: digests or sums do not
//   match kResourceExhausted, kUnavailable: disk full, I/O error, another process writes kUnknown:
//   the outcome of a commit cannot be known before the store is reopened; ask by id
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "wstore/manifest.h"
#include "wstore/patch_source.h"
#include "wstore/progress.h"
#include "wstore/transaction.h"
#include "wstore/version.h"

namespace wstore {

struct CreateOptions {
  std::string actor;  // who does it; empty: user@host
  // Reports bytes of the base read (twice: for its digest and for its sums).
  ProgressFn progress;
  int threads = 0;  // 0: one per processor
};

struct OpenOptions {
  // Looks only: takes no lock and changes no file, beside a live writer too. What is committed
  // after the opening is not seen. Methods that change the store return kFailedPrecondition.
  bool read_only = false;
  std::string actor;  // who does what is done through this object; empty: user@host
  int threads = 0;    // 0: one per processor
  // Keeps head's bits in host memory if the model has at most this many bytes, so that publishing
  // does not take longer as the chain of versions grows. A thread builds them in the background and
  // moves them after head; until they are there, and where memory is lacking, publishes read the
  // base and the chain. For processes that publish often. 0: never.
  uint64_t head_image_bytes = 0;
};

struct RollbackOptions {
  VersionId to;
  // Retrying with the same id and target gives the first outcome; with another target it is
  // refused.
  std::string transaction_id;
  std::string message;
  bool force = false;  // accepts a target that is marked bad
};

struct ExportOptions {
  std::string directory;
  uint64_t shard_size_bytes = 5'000'000'000;
  ProgressFn progress;
};

struct VerifyOptions {
  // Versions to check: their patch digests, chain digests and sums. Empty: head.
  std::vector<VersionId> versions;
  bool all = false;   // every version
  bool base = false;  // the base's files are read and digested again
  ProgressFn progress;
};

struct VerifyProblem {
  std::optional<VersionId> version;
  std::string tensor;  // may be empty
  std::string what;
};

struct VerifyReport {
  std::vector<std::string> checked;  // "v3", "base"
  std::vector<VerifyProblem> problems;
  bool ok() const { return problems.empty(); }
};

struct BaseInfo {
  Digest digest;
  std::string path;
  uint64_t tensors = 0;
  uint64_t elements = 0;
  uint64_t size_bytes = 0;
};

struct StoreStatus {
  HeadInfo head;
  BaseInfo base;
  std::string state;   // "ok", "hold", "read-only" or "damaged"
  std::string detail;  // why, where it is not "ok"
  std::optional<HoldInfo> hold;
  uint64_t journal_bytes = 0;
  uint64_t versions = 0;
  std::optional<VersionId> image;  // the version whose bits are in memory (head_image_bytes)
};

class Store {
 public:
  virtual ~Store() = default;

  // Makes a store in `directory` (created if missing, otherwise empty) on a dense checkpoint: a
  // safetensors file, or a directory of them. Reads all of it. The checkpoint is not copied: keep
  // it.
  //   kAlreadyExists: there is a store, or something else, in `directory`
  //   kInvalidArgument, kNotFound: not a sound checkpoint
  static absl::StatusOr<std::unique_ptr<Store>> Create(const std::string& directory,
                                                       const std::string& base_checkpoint,
                                                       const CreateOptions& options);

  //   kNotFound: no store there
  //   kUnavailable: another process has it open for writing (it is named)
  //   kDataLoss: the journal is damaged; nothing on disk was changed
  static absl::StatusOr<std::unique_ptr<Store>> Open(const std::string& directory,
                                                     const OpenOptions& options);

  // Looking. All see one consistent state; none blocks on I/O unless said.
  virtual const Manifest& manifest() const = 0;
  virtual StoreStatus status() const = 0;
  virtual HeadInfo head() const = 0;
  virtual std::vector<VersionInfo> versions() const = 0;  // ascending
  virtual absl::StatusOr<VersionInfo> version(VersionId version) const = 0;
  // Head moves and refused attempts, in order of time. A refusal that only repeats the one before
  // it (the same caller, id and reason) is not recorded again.
  virtual std::vector<MoveInfo> moves() const = 0;
  virtual std::vector<TagInfo> tags() const = 0;  // by name
  // "v42", "head", or a tag.
  //   kNotFound: none of these; the versions and tags that there are, are named
  virtual absl::StatusOr<VersionId> Resolve(std::string_view name) const = 0;

  // Starts a publish on top of head. Several may be open; the first to commit wins, the others are
  // refused at their commit. See transaction.h.
  virtual absl::StatusOr<std::unique_ptr<Transaction>> Begin(const BeginOptions& options) = 0;

  // Moves head to a committed version and puts publishing on hold until Resume, so that a trainer
  // that knows nothing of it does not publish over the operator. Rolling back to head changes
  // nothing (and holds nothing).
  //   kNotFound: no such version
  //   kAlreadyExists: the id was used for something else
  //   kFailedPrecondition: the version is marked bad, and `force` is not set
  virtual absl::StatusOr<CommitResult> Rollback(const RollbackOptions& options) = 0;

  // Makes a candidate head. Promoting it again changes nothing.
  //   kNotFound: no such version
  //   kFailedPrecondition: not a candidate, or marked bad, or head is no longer its parent (both
  //   are
  //     named), or publishing is on hold
  virtual absl::StatusOr<CommitResult> Promote(VersionId version) = 0;

  // Marks a version bad, for a reason, or good again. Marking changes neither head nor any bits.
  virtual absl::Status Mark(VersionId version, bool bad, const std::string& reason) = 0;

  // Stops and allows publishing. Doing it twice changes nothing.
  virtual absl::Status Hold(const std::string& reason) = 0;
  virtual absl::Status Resume() = 0;

  // Names a version, or moves the name. Names are 1 to 128 of letters, digits and "._-/", begin
  // with a letter or digit, and are not "head" or of the form v42.
  virtual absl::Status Tag(const std::string& name, VersionId version) = 0;

  // The composed difference between two versions, each element once; the same in both directions.
  // The store must outlive it.
  virtual absl::StatusOr<std::unique_ptr<PatchSource>> Difference(VersionId from,
                                                                  VersionId to) const = 0;

  // The digest and the sums of that difference. Of a version and its parent they are recorded.
  // Otherwise reads the touched tensors' bits, all cores, in bounded memory.
  //   kFailedPrecondition: as for Materialise
  //   kDataLoss: the sums are not those that lead from one version to the other
  virtual absl::StatusOr<DifferenceInfo> DescribeDifference(VersionId from, VersionId to) const = 0;

  // The recorded fingerprint of every tensor of a version.
  virtual absl::StatusOr<std::vector<Fingerprint>> TensorFingerprints(VersionId version) const = 0;

  // A version's dense bytes. The store must outlive it. Opens the base's files.
  //   kFailedPrecondition: the base's files are not what they were (each is named)
  virtual absl::StatusOr<std::unique_ptr<DenseSource>> Materialise(VersionId version) const = 0;

  // Writes a version as a dense checkpoint: tensors bit for bit, metadata, config and tokenizer
  // files of the base carried over. The same version gives the same bytes. Files appear under their
  // final names only when whole and synced, the index last. The sums are checked on the way: what
  // is written is what was committed.
  //   kDataLoss: the sums do not match; nothing is left under a final name
  //   kFailedPrecondition: the directory holds the base's files, or other safetensors files
  //   kResourceExhausted: no space; the temporary files are removed
  virtual absl::Status Export(VersionId version, const ExportOptions& options) const = 0;

  // Re-computes digests and sums. Finding problems is no error: they are in the report. Where base
  // files have new times but still the base's content, and the store is open for writing, the new
  // times are recorded.
  virtual absl::StatusOr<VerifyReport> Verify(const VerifyOptions& options) = 0;
};

}  // namespace wstore
