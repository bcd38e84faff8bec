#include "journal/database.h"

#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "journal/files.h"
#include "journal/keys.h"
#include "journal/status.h"
#include "rocksdb/cache.h"
#include "rocksdb/convenience.h"
#include "rocksdb/listener.h"
#include "rocksdb/table.h"

namespace wstore::journal {
namespace {

constexpr uint64_t kMebibyte = 1 << 20;

// RocksDB's own log would add about 26 KB of files an open; errors reach the caller as statuses.
class NoLog : public rocksdb::Logger {
 public:
  NoLog() : Logger(rocksdb::InfoLogLevel::FATAL_LEVEL) {}
  using Logger::Logv;
  void Logv(const char*, va_list) override {}
};

rocksdb::ColumnFamilyOptions FamilyOptions(std::shared_ptr<rocksdb::Cache> cache) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = std::move(cache);
  // Else every open file would hold its index outside of any bound.
  table.cache_index_and_filter_blocks = true;
  table.max_auto_readahead_size = 2 * kMebibyte;
  table.checksum = rocksdb::kXXH3;
  table.format_version = 5;
  rocksdb::ColumnFamilyOptions options;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  // Chunks are compressed already, and records hold mostly digests.
  options.compression = rocksdb::kNoCompression;
  return options;
}

std::vector<rocksdb::ColumnFamilyDescriptor> Families() {
  const std::shared_ptr<rocksdb::Cache> cache =
      rocksdb::NewLRUCache(16 * kMebibyte, /*num_shard_bits=*/0);
  rocksdb::ColumnFamilyOptions records = FamilyOptions(cache);
  records.write_buffer_size = 2 * kMebibyte;
  rocksdb::ColumnFamilyOptions payload = FamilyOptions(cache);
  payload.write_buffer_size = kMebibyte;  // nothing is ever written to it but whole files
  payload.disable_auto_compactions = true;
  rocksdb::ColumnFamilyOptions small_payload = FamilyOptions(cache);
  small_payload.write_buffer_size = 4 * kMebibyte;
  return {{rocksdb::kDefaultColumnFamilyName, records},
          {"payload", payload},
          {"small_payload", small_payload}};
}

absl::Status OpenError(const rocksdb::Status& status, const std::string& path) {
  const std::string what = absl::StrCat("opening the database ", path);
  // A family that the manifest no longer names is an invalid argument to RocksDB.
  if (IsMissingFile(status) || status.IsInvalidArgument()) {
    return absl::DataLossError(absl::StrCat(what, ": ", status.ToString()));
  }
  return ToStatus(status, what);
}

}  // namespace

// Remembers the first error after which RocksDB takes no more writes.
class Database::StopListener : public rocksdb::EventListener {
 public:
  void OnBackgroundError(rocksdb::BackgroundErrorReason, rocksdb::Status* error) override {
    Stop(ToStatus(*error, "the database stopped after an error"));
  }

  void Stop(const absl::Status& error) {
    std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = error;
  }

  absl::Status status() const {
    std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  mutable std::mutex mutex_;
  absl::Status status_;
};

Database::Database(std::string path, std::shared_ptr<rocksdb::FileSystem> file_system)
    : path_(std::move(path)),
      file_system_(std::make_shared<IngestGuard>(std::move(file_system), path_)),
      env_(rocksdb::NewCompositeEnv(file_system_)),
      stop_listener_(std::make_shared<StopListener>()) {}

Database::~Database() {
  // Destroying a database while a handle is open aborts the process.
  for (rocksdb::ColumnFamilyHandle* family : families_) db_->DestroyColumnFamilyHandle(family);
}

rocksdb::DBOptions Database::DatabaseOptions(OpenMode mode) const {
  rocksdb::DBOptions options;
  options.env = env_.get();
  options.info_log = std::make_shared<NoLog>();
  options.listeners.push_back(stop_listener_);
  options.create_if_missing = mode == OpenMode::kCreate;
  options.create_missing_column_families = mode == OpenMode::kCreate;
  options.error_if_exists = mode == OpenMode::kCreate;
  // What an unfinished write of a crash left at the end of the WAL is dropped, and so is everything
  // after damage in its middle: the witness tells the two apart, before anything is deleted.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  options.track_and_verify_wals_in_manifest = true;
  // Every open rewrites what the WAL holds into a synced SST file: of a WAL whose sync failed, the
  // page cache can show what is not on disk.
  options.avoid_flush_during_recovery = false;
  options.atomic_flush = true;  // a record and its chunks leave the WAL together
  options.max_total_wal_size = 16 * kMebibyte;
  options.max_manifest_file_size = 16 * kMebibyte;
  options.max_open_files = 256;
  options.max_background_jobs = 2;
  options.max_bgerror_resume_count = 0;  // reopening decides, not a thread
  options.skip_stats_update_on_db_open = true;
  // The read-only open just before has looked at every file.
  options.skip_checking_sst_file_sizes_on_db_open = mode == OpenMode::kWrite;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  return options;
}

absl::StatusOr<std::shared_ptr<Database>> Database::Open(
    const std::string& path, OpenMode mode, std::shared_ptr<rocksdb::FileSystem> file_system) {
  if (mode == OpenMode::kReadOnly) file_system = MakeReadOnly(std::move(file_system));
  std::shared_ptr<Database> database(new Database(path, std::move(file_system)));
  const rocksdb::DBOptions options = database->DatabaseOptions(mode);
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status =
      mode == OpenMode::kReadOnly
          ? rocksdb::DB::OpenForReadOnly(options, path, Families(), &database->families_, &db)
          : rocksdb::DB::Open(options, path, Families(), &database->families_, &db);
  if (!status.ok()) {
    database->families_.clear();
    return OpenError(status, path);
  }
  database->db_.reset(db);
  return database;
}

rocksdb::Options Database::PayloadFileOptions() const {
  rocksdb::Options options = db_->GetOptions(payload());
  options.env = env_.get();
  return options;
}

absl::Status Database::Ingest(const std::string& file) {
  rocksdb::IngestExternalFileOptions options;
  options.move_files = true;
  options.failed_move_fall_back_to_copy = false;
  options.snapshot_consistency = false;
  options.allow_global_seqno = false;  // it would be another transaction's chunks that it covers
  options.allow_blocking_flush = false;
  options.write_global_seqno = false;
  options.fail_if_not_bottommost_level = true;
  const IngestGuard::Scope scope(*file_system_);
  const absl::Status status = ToStatus(db_->IngestExternalFile(payload(), {file}, options),
                                       absl::StrCat("ingesting ", file));
  if (file_system_->holds_files()) stop_listener_->Stop(status);
  return status;
}

absl::Status Database::Write(rocksdb::WriteBatch& batch, bool sync) {
  rocksdb::WriteOptions options;
  options.sync = sync;
  return ToStatus(db_->Write(options, &batch), absl::StrCat("writing to ", path_));
}

absl::Status Database::SyncWal() {
  return ToStatus(db_->FlushWAL(/*sync=*/true), absl::StrCat("syncing ", path_));
}

absl::Status Database::DropPayload(TransactionNumber transaction) {
  const std::string first = FirstChunkKey(transaction);
  const std::string last = LastChunkKey(transaction);
  const rocksdb::Slice begin = first;
  const rocksdb::Slice end = last;
  return ToStatus(rocksdb::DeleteFilesInRange(db_.get(), payload(), &begin, &end),
                  absl::StrCat("removing the payload of transaction ", transaction.value()));
}

absl::Status Database::Stopped() const { return stop_listener_->status(); }

uint64_t Database::SizeBytes() const {
  uint64_t total = 0;
  for (rocksdb::ColumnFamilyHandle* family : families_) {
    uint64_t bytes = 0;
    if (db_->GetIntProperty(family, rocksdb::DB::Properties::kLiveSstFilesSize, &bytes)) {
      total += bytes;
    }
  }
  const absl::StatusOr<std::vector<std::string>> names = List(*file_system_, path_);
  if (!names.ok()) return total;
  for (const std::string& name : *names) {
    if (!absl::EndsWith(name, ".log") && !absl::StartsWith(name, "MANIFEST-")) continue;
    uint64_t bytes = 0;
    // A WAL may go at any moment, once all that it holds is in SST files.
    if (file_system_->GetFileSize(path_ + "/" + name, rocksdb::IOOptions(), &bytes, nullptr).ok()) {
      total += bytes;
    }
  }
  return total;
}

}  // namespace wstore::journal
