// A file system that keeps the file of a failed ingest.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "rocksdb/file_system.h"

namespace wstore::journal {

// When the manifest cannot be synced, RocksDB 7.8 reports that the ingest failed and removes the
// file that it had linked into the database. The manifest may name it nevertheless, and then the
// database could never be opened again. This layer keeps that file, and from then on every file of
// the database: the next open finds out whether the manifest names it, and removes whatever is not
// named.
class IngestGuard : public rocksdb::FileSystemWrapper {
 public:
  IngestGuard(std::shared_ptr<rocksdb::FileSystem> target, std::string database_directory);

  // Lives on the thread that calls IngestExternalFile, during that call.
  class Scope {
   public:
    explicit Scope(const IngestGuard& guard);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };

  // An ingest has failed in that way: the database must be opened anew.
  bool holds_files() const { return holds_files_; }

  const char* Name() const override { return "WstoreIngestGuard"; }
  rocksdb::IOStatus DeleteFile(const std::string& name, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;

 private:
  const std::string prefix_;
  std::atomic<bool> holds_files_ = false;
};

}  // namespace wstore::journal
