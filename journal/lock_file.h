// The journal's own lock. RocksDB's is not enough: it is taken after the database has been touched,
// and the checks before a writable open must have the directory to themselves.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace wstore::journal {

// Held while the object lives. The kernel lets go of it when the process ends, however it ends.
class LockFile {
 public:
  // Creates the file where there is none; it is never removed. Does not wait.
  //   kUnavailable: held by another open of the same directory, in this process or another; the
  //     message names it. Or the file cannot be opened.
  static absl::StatusOr<std::unique_ptr<LockFile>> Acquire(const std::string& path);

  ~LockFile();
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;

 private:
  explicit LockFile(int descriptor) : descriptor_(descriptor) {}

  const int descriptor_;
};

}  // namespace wstore::journal
