// Creating and opening a journal: Journal::Create and Journal::Open over a given file system.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "rocksdb/file_system.h"
#include "wstore/journal.h"

namespace wstore::journal {

// Everything but the lock file goes through `file_system`, so that a test can make any operation
// fail.
absl::StatusOr<std::unique_ptr<Journal>> CreateOn(std::shared_ptr<rocksdb::FileSystem> file_system,
                                                  const std::string& directory, NewRecord first);
absl::StatusOr<std::unique_ptr<Journal>> OpenOn(std::shared_ptr<rocksdb::FileSystem> file_system,
                                                const std::string& directory,
                                                const JournalOptions& options);

}  // namespace wstore::journal
