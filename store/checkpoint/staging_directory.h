// Files that appear in a directory under their names only when all of them are complete.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "store/checkpoint/posix_file.h"

namespace wstore {

// A hidden folder ".wstore-export-XXXXXX" in the target directory, hence on its file system, in
// which files are written before they are renamed into place. The target is locked (flock)
// meanwhile, so whatever else of that name is in it was left by a process that died, and is
// removed. Not thread-safe.
class StagingDirectory {
 public:
  // Creates `target` if it is not there (its parent must be).
  //   kNotFound: the parent is not there; kFailedPrecondition: not a directory, or another process
  //   stages files in it; others as the system says
  static absl::StatusOr<std::unique_ptr<StagingDirectory>> Create(const std::string& target);

  // Removes what was not published, and the target if Create made it and nothing was published.
  ~StagingDirectory();
  StagingDirectory(const StagingDirectory&) = delete;
  StagingDirectory& operator=(const StagingDirectory&) = delete;

  const std::string& target() const { return target_; }

  // Names in the target directory, sorted.
  absl::StatusOr<std::vector<std::string>> ListTarget() const;

  // Creates a file of this size with its space reserved, where the file system can do that.
  //   kResourceExhausted: no space for it
  absl::StatusOr<PosixFile> AddFile(const std::string& name, uint64_t size_bytes);

  // Renames files, which must be synced, into place: `names` in order, then `last`. With
  // `retract_last`, what is at `last` is removed first: no reader finds it beside a mixture of old
  // and new files. Durable on return. On failure some may be in place.
  absl::Status Publish(const std::vector<std::string>& names, const std::string& last,
                       bool retract_last);

 private:
  StagingDirectory() = default;
  absl::Status Lock();
  void RemoveLeftovers();
  absl::Status RenameIntoPlace(const std::string& name);

  std::string target_;  // absolute
  bool created_target_ = false;
  bool is_published_ = false;
  PosixFile directory_;       // of target_, holds the lock
  std::string staging_path_;  // of the hidden folder
};

}  // namespace wstore
