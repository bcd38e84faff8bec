// The RocksDB database of a journal: its options, its three families and the operations that need
// RocksDB's types. docs/design/journal.md says why each option is as it is.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "journal/ingest_guard.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/file_system.h"
#include "rocksdb/options.h"
#include "rocksdb/write_batch.h"
#include "wstore/types.h"

namespace wstore::journal {

enum class OpenMode {
  kCreate,    // there must be none
  kWrite,     // after the checks have passed: a writable open of a damaged database deletes files
  kReadOnly,  // changes no file
};

class Database {
 public:
  //   kDataLoss: the database cannot be opened as it is, or files are missing
  //   kResourceExhausted, kUnavailable: an I/O error
  static absl::StatusOr<std::shared_ptr<Database>> Open(
      const std::string& path, OpenMode mode, std::shared_ptr<rocksdb::FileSystem> file_system);

  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  rocksdb::DB& db() { return *db_; }
  // Records by sequence number.
  rocksdb::ColumnFamilyHandle* records() const { return families_[0]; }
  // Chunks that came in SST files of their own.
  rocksdb::ColumnFamilyHandle* payload() const { return families_[1]; }
  // Chunks that came in the same batch as their record.
  rocksdb::ColumnFamilyHandle* small_payload() const { return families_[2]; }

  // What an SST file for `payload()` must be written with.
  rocksdb::Options PayloadFileOptions() const;

  // Moves a finished SST file into `payload()`; durable when it returns. On an error nothing of it
  // is visible, and the file may still be there.
  absl::Status Ingest(const std::string& file);

  // With `sync`, durable when it returns, all earlier writes included. After an error the outcome
  // is unknown.
  absl::Status Write(rocksdb::WriteBatch& batch, bool sync);

  // Makes all writes durable. After an error it is unknown which are.
  absl::Status SyncWal();

  // Removes the SST files of a transaction from `payload()`.
  absl::Status DropPayload(TransactionNumber transaction);

  // Not OK once RocksDB has stopped itself after an error of a write in the background. Only
  // reopening helps.
  absl::Status Stopped() const;

  // Bytes of live SST files, WAL and manifest.
  uint64_t SizeBytes() const;

 private:
  class StopListener;

  Database(std::string path, std::shared_ptr<rocksdb::FileSystem> file_system);
  rocksdb::DBOptions DatabaseOptions(OpenMode mode) const;

  const std::string path_;
  const std::shared_ptr<IngestGuard> file_system_;
  const std::unique_ptr<rocksdb::Env> env_;
  const std::shared_ptr<StopListener> stop_listener_;
  std::unique_ptr<rocksdb::DB> db_;
  std::vector<rocksdb::ColumnFamilyHandle*> families_;
};

}  // namespace wstore::journal
