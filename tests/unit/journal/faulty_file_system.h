// A file system under the journal's tests that fails when told to, and can forget what was never
// synced.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "rocksdb/file_system.h"

namespace wstore::testing {

enum class Fault {
  kNone,
  kErrorOnce,    // one operation fails with an I/O error
  kNoSpaceOnce,  // one operation fails for lack of space
  kErrors,       // this one and all later ones fail: as if the process had been killed before it
};

// Counts every operation that changes something: creations, writes, syncs, renames, links,
// removals, and fails those it is told to. Nothing is really synced; instead it keeps track of what
// would be on the disk, so that LosePower can take the rest away. Thread-safe.
class FaultyFileSystem : public rocksdb::FileSystemWrapper {
 public:
  // `graveyard`: a directory on the same file system, for files that are removed but not durably.
  FaultyFileSystem(Fault fault, uint64_t at_operation, std::string graveyard);

  // Puts the files into a state that they might have after a power failure now: of what was not
  // synced, any part is gone. Nothing may be open. Uses `seed` to choose.
  void LosePower(uint64_t seed);

  bool fired() const;
  uint64_t operations() const;

  const char* Name() const override { return "WstoreFaultyFileSystem"; }
  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* result,
                                    rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus ReopenWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                       std::unique_ptr<rocksdb::FSWritableFile>* result,
                                       rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewRandomRWFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSRandomRWFile>* result,
                                    rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewDirectory(const std::string& name, const rocksdb::IOOptions& options,
                                 std::unique_ptr<rocksdb::FSDirectory>* result,
                                 rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus DeleteFile(const std::string& name, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus CreateDirIfMissing(const std::string& name, const rocksdb::IOOptions& options,
                                       rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus LinkFile(const std::string& from, const std::string& to,
                             const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus GetFreeSpace(const std::string& path, const rocksdb::IOOptions& options,
                                 uint64_t* free_bytes, rocksdb::IODebugContext* debug) override;

  // What GetFreeSpace says instead of the truth.
  void set_free_space(uint64_t bytes) { free_space_ = bytes; }

  // For the files that it hands out. Counts an operation; an error if it shall fail.
  rocksdb::IOStatus Operation(const std::string& what);

  struct FileState {
    uint64_t size = 0;
    uint64_t synced_size = 0;
    bool sync_failed = false;  // what was not on the disk then never gets there
    // Writes in place since the last sync: offset and what was there before.
    std::vector<std::pair<uint64_t, std::string>> overwritten;
  };
  void OnAppend(FileState& file, uint64_t bytes);
  void OnOverwrite(FileState& file, uint64_t offset, std::string before);
  void OnTruncate(FileState& file, uint64_t size);
  void OnSync(FileState& file, bool ok);
  void OnDirectorySync(const std::string& directory);

 private:
  // A change of a directory that is not synced yet, and how it is undone.
  struct NameChange {
    enum class Kind { kCreate, kRename, kDelete } kind;
    std::string name;
    std::string from;   // kRename
    std::string saved;  // in the graveyard: what was at `name` before; empty if nothing
    std::shared_ptr<FileState> saved_state;
  };

  std::string Bury(const std::string& name);
  std::shared_ptr<FileState> StateOf(const std::string& name);
  void Undo(const NameChange& change);

  const Fault fault_;
  const uint64_t at_operation_;
  const std::string graveyard_;
  uint64_t free_space_ = UINT64_MAX;

  mutable std::mutex mutex_;
  uint64_t operations_ = 0;
  bool fired_ = false;
  uint64_t buried_ = 0;
  std::map<std::string, std::shared_ptr<FileState>> files_;
  std::map<std::string, std::vector<NameChange>> changes_;  // by directory
};

}  // namespace wstore::testing
