#include "journal/staged_payload.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "journal/keys.h"
#include "journal/status.h"

namespace wstore::journal {
namespace {

std::string Describe(const ChunkKey& key) {
  return absl::StrCat("(contributor ", key.contributor, ", span ", key.span, ", part ", key.part,
                      ")");
}

}  // namespace

StagedPayload::StagedPayload(std::shared_ptr<Database> database,
                             std::shared_ptr<rocksdb::FileSystem> file_system, std::string file,
                             TransactionNumber transaction)
    : database_(std::move(database)),
      file_system_(std::move(file_system)),
      file_(std::move(file)),
      transaction_(transaction) {
  summary_.set_transaction(transaction.value());
  summary_.set_small(true);
}

StagedPayload::~StagedPayload() {
  writer_.reset();
  // Best effort: the next open for writing sweeps what stays.
  if (file_exists_) {
    [[maybe_unused]] const rocksdb::IOStatus removed =
        file_system_->DeleteFile(file_, rocksdb::IOOptions(), nullptr);
  }
  if (ingested_ && !keep_) {
    [[maybe_unused]] const absl::Status dropped = database_->DropPayload(transaction_);
  }
}

absl::Status StagedPayload::CheckUsable(const char* call) const {
  if (state_ == State::kFailed) {
    return absl::FailedPreconditionError(
        absl::StrCat(call, " after an error: this payload can only be destroyed"));
  }
  return absl::OkStatus();
}

absl::Status StagedPayload::Add(const ChunkKey& key, std::string_view chunk) {
  RETURN_IF_ERROR(CheckUsable("Add"));
  if (state_ == State::kFinished) return absl::FailedPreconditionError("Add after Finish");
  std::string bytes = ChunkKeyBytes(transaction_, key);
  if (summary_.chunks() > 0 && bytes <= summary_.last_key()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "chunk ", Describe(key), " of transaction ", transaction_.value(), " does not come after ",
        Describe(ParseChunkKey(summary_.last_key())->key), "; keys must ascend"));
  }
  if (chunk.size() > kMaxChunkBytes) {
    return absl::InvalidArgumentError(absl::StrCat("chunk ", Describe(key), " has ", chunk.size(),
                                                   " bytes; the limit is ", kMaxChunkBytes));
  }
  if (const absl::Status status = AddUnchecked(bytes, chunk); !status.ok()) {
    state_ = State::kFailed;
    return status;
  }
  if (summary_.chunks() == 0) summary_.set_first_key(bytes);
  summary_.set_last_key(std::move(bytes));
  summary_.set_chunks(summary_.chunks() + 1);
  summary_.set_bytes(summary_.bytes() + chunk.size());
  return absl::OkStatus();
}

absl::Status StagedPayload::AddUnchecked(const std::string& key, std::string_view chunk) {
  if (state_ == State::kInMemory) {
    if (summary_.bytes() + chunk.size() <= kSmallPayloadBytes &&
        summary_.chunks() < kSmallPayloadChunks) {
      buffer_.emplace_back(key, chunk);
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(Spill());
  }
  RETURN_IF_ERROR(CheckSpace(*file_system_, file_, chunk.size()));
  return ToStatus(writer_->Put(key, rocksdb::Slice(chunk.data(), chunk.size())),
                  absl::StrCat("writing ", file_));
}

absl::Status StagedPayload::Spill() {
  rocksdb::EnvOptions env_options;
  env_options.bytes_per_sync = 4 << 20;  // else Finish waits for the whole file at once
  writer_ = std::make_unique<rocksdb::SstFileWriter>(env_options, database_->PayloadFileOptions(),
                                                     database_->payload(),
                                                     /*invalidate_page_cache=*/false);
  file_exists_ = true;
  RETURN_IF_ERROR(ToStatus(writer_->Open(file_), absl::StrCat("creating ", file_)));
  for (const auto& [key, chunk] : buffer_) {
    RETURN_IF_ERROR(ToStatus(writer_->Put(key, chunk), absl::StrCat("writing ", file_)));
  }
  buffer_ = {};
  state_ = State::kInFile;
  summary_.set_small(false);
  return absl::OkStatus();
}

absl::Status StagedPayload::Finish() {
  RETURN_IF_ERROR(CheckUsable("Finish"));
  if (state_ == State::kInFile) {
    if (const absl::Status status = FinishFile(); !status.ok()) {
      state_ = State::kFailed;
      return status;
    }
  }
  state_ = State::kFinished;
  return absl::OkStatus();
}

absl::Status StagedPayload::FinishFile() {
  RETURN_IF_ERROR(ToStatus(writer_->Finish(), absl::StrCat("finishing ", file_)));
  writer_.reset();
  RETURN_IF_ERROR(database_->Ingest(file_));
  ingested_ = true;
  file_exists_ = false;
  return absl::OkStatus();
}

absl::Status StagedPayload::AppendTo(rocksdb::WriteBatch& batch) const {
  for (const auto& [key, chunk] : buffer_) {
    RETURN_IF_ERROR(
        ToStatus(batch.Put(database_->small_payload(), key, chunk), "building a batch"));
  }
  return absl::OkStatus();
}

}  // namespace wstore::journal
