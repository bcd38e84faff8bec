// The journal over one open database. Opening and creating one is in journal/open.h.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "journal/check.h"
#include "journal/database.h"
#include "journal/files.h"
#include "journal/lock_file.h"
#include "journal/staged_payload.h"
#include "journal/witness.h"
#include "wstore/journal.h"

namespace wstore::journal {

constexpr size_t kMaxBodyBytes = 256 << 20;

class JournalImpl : public Journal {
 public:
  struct Parts {
    std::shared_ptr<rocksdb::FileSystem> file_system;
    std::unique_ptr<LockFile> lock;    // null: read-only
    std::unique_ptr<Witness> witness;  // null: read-only
    std::shared_ptr<Database> database;
    Contents contents;
    HighWaterMarks marks;
  };

  JournalImpl(Paths paths, Parts parts);
  ~JournalImpl() override;

  const std::vector<StoredRecord>& records() const override { return records_; }
  HighWaterMarks high_water_marks() const override;
  absl::Status RaiseHighWaterMarks(const HighWaterMarks& marks) override;
  absl::StatusOr<std::unique_ptr<PayloadWriter>> Stage(TransactionNumber transaction) override;
  absl::Status Commit(std::vector<NewRecord> records) override;
  absl::Status Append(std::vector<NewRecord> records) override;
  absl::Status Sync() override;
  absl::Status ReadPayload(
      TransactionNumber transaction, const ChunkKey& first,
      const std::function<absl::StatusOr<bool>(const ChunkKey&, std::string_view)>& visit)
      const override;
  bool failed() const override { return failed_; }
  uint64_t size_bytes() const override;

 private:
  struct Batch;

  bool read_only() const { return witness_ == nullptr; }
  absl::Status CheckWritable();
  absl::Status CheckRecords(const std::vector<NewRecord>& records) const;
  // Everything of a commit that can fail without consequences.
  absl::StatusOr<Batch> Prepare(std::vector<NewRecord>& records) const;
  // Needs write_mutex_, as the two that follow.
  absl::Status Write(std::vector<NewRecord> records, bool sync);
  absl::Status WriteWitness();
  absl::Status Fail(const absl::Status& error, uint64_t first_record);

  std::shared_ptr<Database> database() const;
  // For readers beside a live writer, which may have merged the files of this snapshot away.
  absl::Status ReopenDatabase() const;

  const Paths paths_;
  const std::shared_ptr<rocksdb::FileSystem> file_system_;
  const std::unique_ptr<LockFile> lock_;  // let go of after the database is closed
  const std::unique_ptr<Witness> witness_;

  std::mutex write_mutex_;  // held through Commit, Append, Sync and RaiseHighWaterMarks
  std::vector<StoredRecord> records_;
  size_t synced_records_ = 0;  // of records_; the witness names the last of these
  std::atomic<bool> failed_ = false;
  std::atomic<uint64_t> stage_files_ = 0;

  mutable std::mutex state_mutex_;  // guards what follows; held for moments only
  mutable std::shared_ptr<Database> database_;
  Payloads payloads_;
  HighWaterMarks marks_;
};

}  // namespace wstore::journal
