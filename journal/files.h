// The few file operations of the journal that do not go through the database, over the same file
// system object as the database's own, so that a test can make any of them fail. Errors as ToStatus
// gives them.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rocksdb/file_system.h"

namespace wstore::journal {

// Where the parts of a journal are; see docs/formats/journal.md.
struct Paths {
  explicit Paths(const std::string& journal_directory);

  std::string directory;
  std::string lock;      // LOCK
  std::string creating;  // there while Create is not finished
  std::string database;  // db/
  std::string stage;     // stage/
  std::string witness;
  std::string new_witness;  // in stage/, on its way to become `witness`
};

absl::StatusOr<bool> Exists(rocksdb::FileSystem& fs, const std::string& path);

// Names without "." and "..". No entries where `directory` does not exist.
absl::StatusOr<std::vector<std::string>> List(rocksdb::FileSystem& fs,
                                              const std::string& directory);

// At most `limit_bytes` from the start of the file.
absl::StatusOr<std::string> ReadFile(rocksdb::FileSystem& fs, const std::string& path,
                                     size_t limit_bytes);

// Creates or replaces the file. Its content is durable when this returns; its name is only after
// SyncDirectory.
absl::Status WriteFile(rocksdb::FileSystem& fs, const std::string& path, std::string_view content);

// Removes the files in `directory`, not the directory.
absl::Status RemoveFilesIn(rocksdb::FileSystem& fs, const std::string& directory);

// Refuses a write of about `bytes` to the file system of `path` where it would leave less than what
// RocksDB needs to empty its buffers: running out of space there stops the database until it is
// reopened, running out here does not.
//   kResourceExhausted
absl::Status CheckSpace(rocksdb::FileSystem& fs, const std::string& path, uint64_t bytes);

absl::Status SyncDirectory(rocksdb::FileSystem& fs, const std::string& directory);

// A file system that refuses everything that would change a file. Read-only opens go through it, so
// that no change in RocksDB can make a reader touch the files of a live writer.
std::shared_ptr<rocksdb::FileSystem> MakeReadOnly(std::shared_ptr<rocksdb::FileSystem> target);

}  // namespace wstore::journal
