#include "journal/journal_impl.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "journal/keys.h"
#include "journal/payload_reader.h"
#include "journal/status.h"

namespace wstore::journal {

// One commit, ready to be written.
struct JournalImpl::Batch {
  rocksdb::WriteBatch writes;
  std::vector<StoredRecord> records;
  Payloads payloads;
};

JournalImpl::JournalImpl(Paths paths, Parts parts)
    : paths_(std::move(paths)),
      file_system_(std::move(parts.file_system)),
      lock_(std::move(parts.lock)),
      witness_(std::move(parts.witness)),
      records_(std::move(parts.contents.records)),
      synced_records_(records_.size()),
      database_(std::move(parts.database)),
      payloads_(std::move(parts.contents.payloads)),
      marks_(parts.marks) {}

JournalImpl::~JournalImpl() {
  // A payload writer that is still there would keep the database open without the lock.
  WSTORE_CHECK(read_only() || database_.use_count() == 1);
}

std::shared_ptr<Database> JournalImpl::database() const {
  std::lock_guard lock(state_mutex_);
  return database_;
}

HighWaterMarks JournalImpl::high_water_marks() const {
  std::lock_guard lock(state_mutex_);
  return marks_;
}

uint64_t JournalImpl::size_bytes() const { return database()->SizeBytes(); }

absl::Status JournalImpl::CheckWritable() {
  if (read_only()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the journal ", paths_.directory, " was opened read-only"));
  }
  if (const absl::Status stopped = database()->Stopped(); !stopped.ok() && !failed_) {
    failed_ = true;
    return Prefixed(stopped, absl::StrCat("the journal ", paths_.directory,
                                          " takes no more writes until it is reopened"));
  }
  if (failed_) {
    return absl::UnavailableError(
        absl::StrCat("the journal ", paths_.directory,
                     " takes no more writes since one failed; reopening it settles what is there"));
  }
  return absl::OkStatus();
}

absl::Status JournalImpl::RaiseHighWaterMarks(const HighWaterMarks& marks) {
  std::lock_guard lock(write_mutex_);
  RETURN_IF_ERROR(CheckWritable());
  const HighWaterMarks old = high_water_marks();
  const HighWaterMarks raised = {std::max(old.transaction, marks.transaction),
                                 std::max(old.version, marks.version),
                                 std::max(old.move, marks.move)};
  if (raised == old) return absl::OkStatus();
  const Digest last = synced_records_ == 0 ? Digest() : records_[synced_records_ - 1].digest;
  RETURN_IF_ERROR(witness_->Write({synced_records_, last, raised}));
  std::lock_guard state_lock(state_mutex_);
  marks_ = raised;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PayloadWriter>> JournalImpl::Stage(TransactionNumber transaction) {
  if (read_only()) return CheckWritable();
  const std::string file =
      absl::StrCat(paths_.stage, "/", transaction.value(), "-", stage_files_.fetch_add(1), ".sst");
  return std::make_unique<StagedPayload>(database(), file_system_, file, transaction);
}

absl::Status JournalImpl::CheckRecords(const std::vector<NewRecord>& records) const {
  WSTORE_CHECK(!records.empty());
  uint64_t bytes = 0;
  std::set<TransactionNumber> transactions;
  for (const NewRecord& record : records) {
    if (record.body.size() > kMaxBodyBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("a record of ", record.body.size(), " bytes; the limit is ", kMaxBodyBytes));
    }
    bytes += record.body.size();
    if (record.payload == nullptr) continue;
    const TransactionNumber transaction = record.payload->transaction();
    std::lock_guard lock(state_mutex_);
    if (payloads_.count(transaction) > 0 || !transactions.insert(transaction).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("transaction ", transaction.value(), " has committed a payload already"));
    }
    bytes += std::min(record.payload->size_bytes(), kSmallPayloadBytes);
  }
  // Everything is written twice: to the WAL, and to an SST file when its buffer is emptied.
  return CheckSpace(*file_system_, paths_.database, 2 * bytes);
}

absl::StatusOr<JournalImpl::Batch> JournalImpl::Prepare(std::vector<NewRecord>& records) const {
  RETURN_IF_ERROR(CheckRecords(records));
  Batch batch;
  Digest previous = records_.empty() ? Digest() : records_.back().digest;
  for (NewRecord& record : records) {
    // Stage makes no other kind.
    auto* const payload = static_cast<StagedPayload*>(record.payload.get());
    if (payload != nullptr) {
      RETURN_IF_ERROR(payload->Finish());
      RETURN_IF_ERROR(payload->AppendTo(batch.writes));
      batch.payloads.emplace(payload->transaction(), payload->summary());
    }
    StoredRecord stored;
    stored.sequence = records_.size() + batch.records.size();
    if (payload != nullptr) stored.payload = payload->transaction();
    const std::string encoded = EncodeRecord(
        stored.sequence, previous, payload != nullptr ? &payload->summary() : nullptr, record.body);
    RETURN_IF_ERROR(
        ToStatus(batch.writes.Put(database_->records(), RecordKey(stored.sequence), encoded),
                 "building a batch"));
    stored.digest = RecordDigest(encoded);
    stored.body = std::move(record.body);
    previous = stored.digest;
    batch.records.push_back(std::move(stored));
  }
  return batch;
}

absl::Status JournalImpl::Fail(const absl::Status& error, uint64_t first_record) {
  failed_ = true;
  return absl::UnknownError(absl::StrCat(
      "whether record ", first_record,
      " was committed cannot be known until the journal is reopened: ", error.message()));
}

absl::Status JournalImpl::Commit(std::vector<NewRecord> records) {
  std::lock_guard lock(write_mutex_);
  return Write(std::move(records), /*sync=*/true);
}

absl::Status JournalImpl::Append(std::vector<NewRecord> records) {
  std::lock_guard lock(write_mutex_);
  return Write(std::move(records), /*sync=*/false);
}

absl::Status JournalImpl::Sync() {
  std::lock_guard lock(write_mutex_);
  RETURN_IF_ERROR(CheckWritable());
  if (synced_records_ == records_.size()) return absl::OkStatus();
  const uint64_t first_record = synced_records_;
  absl::Status status = database_->SyncWal();
  if (status.ok()) status = WriteWitness();
  return status.ok() ? status : Fail(status, first_record);
}

absl::Status JournalImpl::Write(std::vector<NewRecord> records, bool sync) {
  RETURN_IF_ERROR(CheckWritable());
  ASSIGN_OR_RETURN(Batch batch, Prepare(records));
  // An error of an ingest may have stopped the database.
  RETURN_IF_ERROR(CheckWritable());

  // From here on the records may be there after reopening, so their payloads must stay.
  for (NewRecord& record : records) {
    if (record.payload != nullptr) static_cast<StagedPayload*>(record.payload.get())->Keep();
  }
  const uint64_t first_record = synced_records_;
  const absl::Status status = database_->Write(batch.writes, sync);
  if (!status.ok()) return Fail(status, first_record);
  std::move(batch.records.begin(), batch.records.end(), std::back_inserter(records_));
  if (sync) {
    const absl::Status witnessed = WriteWitness();
    if (!witnessed.ok()) {
      records_.resize(records_.size() - batch.records.size());
      return Fail(witnessed, first_record);
    }
  }
  std::lock_guard state_lock(state_mutex_);
  payloads_.merge(batch.payloads);
  return absl::OkStatus();
}

// The database has synced all of records_.
absl::Status JournalImpl::WriteWitness() {
  RETURN_IF_ERROR(witness_->Write({records_.size(), records_.back().digest, high_water_marks()}));
  synced_records_ = records_.size();
  return absl::OkStatus();
}

absl::Status JournalImpl::ReadPayload(
    TransactionNumber transaction, const ChunkKey& first,
    const std::function<absl::StatusOr<bool>(const ChunkKey&, std::string_view)>& visit) const {
  v1::PayloadSummary payload;
  {
    std::lock_guard lock(state_mutex_);
    const auto found = payloads_.find(transaction);
    if (found == payloads_.end()) {
      return absl::NotFoundError(
          absl::StrCat("transaction ", transaction.value(), " has no payload in this journal"));
    }
    payload = found->second;
  }
  PayloadReader reader(payload, ChunkKeyBytes(transaction, first));
  constexpr int kAttempts = 5;
  for (int attempt = 1;; ++attempt) {
    const absl::Status status = reader.Read(*database(), visit);
    if (!reader.file_vanished() || !read_only()) return status;
    if (attempt == kAttempts) return absl::UnavailableError(status.message());
    RETURN_IF_ERROR(ReopenDatabase());
  }
}

absl::Status JournalImpl::ReopenDatabase() const {
  ASSIGN_OR_RETURN(std::shared_ptr<Database> reopened,
                   Database::Open(paths_.database, OpenMode::kReadOnly, file_system_));
  std::lock_guard lock(state_mutex_);
  database_ = std::move(reopened);
  return absl::OkStatus();
}

}  // namespace wstore::journal
