// The store that a verb works on: opened in this process, or served by another one. Verbs do not
// know which.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "wstore/client.h"
#include "wstore/interchange.h"
#include "wstore/store.h"

namespace wstore::cli {

struct PublishRequest {
  std::string checkpoint;  // one of the two
  std::string patch_file;
  std::string parent;  // "v42" or a tag; empty: head
  BeginOptions begin;  // its parent is filled in
  PublishPolicy policy = PublishPolicy::kAll;
  PublishDurability durability = PublishDurability::kSync;
  ProgressFn progress;
};

struct RollbackRequest {
  VersionId to;
  std::string transaction_id;
  std::string message;
  bool force = false;
};

// Head, health and size, and who follows.
struct AccessStatus {
  StoreStatus store;
  VersionId durable;
  std::string address;  // of the server; empty: none
  std::vector<WorkerInfo> workers;
};

// One thread at a time. Errors are those of Store and Client.
class StoreAccess {
 public:
  virtual ~StoreAccess() = default;

  // Looking. Lists come newest first, at most `limit` entries.
  virtual absl::StatusOr<std::shared_ptr<const Manifest>> manifest() = 0;
  virtual absl::StatusOr<AccessStatus> Status() = 0;
  virtual absl::StatusOr<HeadInfo> Head() = 0;
  // "v42", "head" or a tag.
  virtual absl::StatusOr<VersionInfo> Version(const std::string& name) = 0;
  virtual absl::StatusOr<std::vector<VersionInfo>> Versions(size_t limit) = 0;
  virtual absl::StatusOr<std::vector<MoveInfo>> Moves(size_t limit) = 0;
  virtual absl::StatusOr<std::vector<TagInfo>> Tags() = 0;
  virtual absl::StatusOr<std::unique_ptr<PatchSource>> Difference(VersionId from, VersionId to) = 0;

  // Changing. An unknown outcome has been asked for as long as there was time.
  virtual absl::StatusOr<CommitResult> Publish(const PublishRequest& request) = 0;
  virtual absl::StatusOr<CommitResult> Rollback(const RollbackRequest& request) = 0;
  virtual absl::StatusOr<CommitResult> Promote(VersionId version) = 0;
  virtual absl::Status Mark(VersionId version, bool bad, const std::string& reason) = 0;
  virtual absl::Status SetHold(bool hold, const std::string& reason) = 0;
  virtual absl::Status Tag(const std::string& name, VersionId version) = 0;

  // Of the store's files: where the store is served, by looking beside the server, which has to run
  // on this machine.
  virtual absl::Status Export(VersionId version, const ExportOptions& options) = 0;
  virtual absl::StatusOr<VerifyReport> Verify(const VerifyOptions& options) = 0;

  // The server, for what only a server has.
  //   kFailedPrecondition: the store is not served
  virtual absl::StatusOr<Client*> Server() = 0;
  // A moment by which one more call to it must have been answered.
  virtual Deadline NextDeadline() const = 0;
  // What follows has all of --timeout again: somebody has been thinking.
  virtual void RestartTimeout() = 0;
};

// What a patch file says that it was made for. `options` may have a parent already: another one is
// kFailedPrecondition.
absl::Status TakeExpectations(const InterchangeFile& file, const std::string& path,
                              BeginOptions* options);

}  // namespace wstore::cli
