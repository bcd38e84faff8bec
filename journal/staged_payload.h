// The chunks of one transaction before their record is written: in memory while they are few, then
// in an SST file in the stage directory, then ingested.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "journal/database.h"
#include "journal/files.h"
#include "rocksdb/sst_file_writer.h"
#include "rocksdb/write_batch.h"
#include "wstore/journal.h"
#include "wstore/v1/journal.pb.h"

namespace wstore::journal {

// A payload up to these limits goes into the WAL with its record, one sync for both; a larger one
// goes into a file, where it is written once and not twice.
constexpr uint64_t kSmallPayloadBytes = 1 << 20;
constexpr uint64_t kSmallPayloadChunks = 4096;
constexpr uint64_t kMaxChunkBytes = 1 << 30;

class StagedPayload : public PayloadWriter {
 public:
  // `file` is where an SST file goes if one is needed.
  StagedPayload(std::shared_ptr<Database> database,
                std::shared_ptr<rocksdb::FileSystem> file_system, std::string file,
                TransactionNumber transaction);
  ~StagedPayload() override;

  absl::Status Add(const ChunkKey& key, std::string_view chunk) override;
  absl::Status Finish() override;
  TransactionNumber transaction() const override { return transaction_; }
  uint64_t chunks() const override { return summary_.chunks(); }
  uint64_t size_bytes() const override { return summary_.bytes(); }

  // The rest is for Commit, after Finish.
  const v1::PayloadSummary& summary() const { return summary_; }
  // Adds the chunks of a small payload.
  absl::Status AppendTo(rocksdb::WriteBatch& batch) const;
  // The payload belongs to a record from now on, or may: the destructor leaves it where it is.
  void Keep() { keep_ = true; }

 private:
  enum class State { kInMemory, kInFile, kFinished, kFailed };

  absl::Status CheckUsable(const char* call) const;
  absl::Status AddUnchecked(const std::string& key, std::string_view chunk);
  absl::Status Spill();
  absl::Status FinishFile();

  const std::shared_ptr<Database> database_;
  const std::shared_ptr<rocksdb::FileSystem> file_system_;
  const std::string file_;
  const TransactionNumber transaction_;
  v1::PayloadSummary summary_;
  State state_ = State::kInMemory;
  bool file_exists_ = false;
  bool ingested_ = false;
  bool keep_ = false;
  std::vector<std::pair<std::string, std::string>> buffer_;
  std::unique_ptr<rocksdb::SstFileWriter> writer_;
};

}  // namespace wstore::journal
