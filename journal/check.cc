#include "journal/check.h"

#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/strings.h"
#include "journal/keys.h"
#include "journal/status.h"
#include "rocksdb/iterator.h"
#include "rocksdb/metadata.h"

namespace wstore::journal {
namespace {

// How every report of damage ends: what is still good, and what was acknowledged.
std::string State(uint64_t good_records, const WitnessState& witness) {
  const std::string good = good_records == 0
                               ? "no record is good"
                               : absl::StrCat("the last good record is ", good_records - 1);
  return absl::StrCat("; ", good, ", the witness names ", witness.records,
                      " records. Nothing was changed. Restore a backup, or the missing files.");
}

absl::Status CheckSummary(const v1::PayloadSummary& payload) {
  if (payload.chunks() == 0 && payload.first_key().empty() && payload.last_key().empty()) {
    return absl::OkStatus();
  }
  const std::optional<PlacedChunk> first = ParseChunkKey(payload.first_key());
  const std::optional<PlacedChunk> last = ParseChunkKey(payload.last_key());
  if (payload.chunks() == 0 || !first.has_value() || !last.has_value() ||
      first->transaction.value() != payload.transaction() ||
      last->transaction.value() != payload.transaction() || last->key < first->key) {
    return absl::DataLossError("its description of its payload does not hold together");
  }
  return absl::OkStatus();
}

// Appends the record stored as `value`, which must be the next one.
absl::Status AppendRecord(std::string_view value, Contents& contents) {
  v1::JournalRecord record;
  if (value.size() > std::numeric_limits<int>::max() ||
      !record.ParseFromArray(value.data(), static_cast<int>(value.size()))) {
    return absl::DataLossError("it is not a record");
  }
  const uint64_t sequence = contents.records.size();
  if (record.sequence() != sequence) {
    return absl::DataLossError(absl::StrCat("it says that it is record ", record.sequence()));
  }
  const Digest previous = sequence == 0 ? Digest() : contents.records.back().digest;
  if (record.previous_digest() != ToBytes(previous)) {
    return absl::DataLossError("it does not follow the record before it: the digests differ");
  }
  StoredRecord stored;
  stored.sequence = sequence;
  stored.digest = RecordDigest(value);
  stored.body = std::move(*record.mutable_body());
  if (record.has_payload()) {
    RETURN_IF_ERROR(CheckSummary(record.payload()));
    stored.payload = TransactionNumber(record.payload().transaction());
    if (!contents.payloads.try_emplace(*stored.payload, record.payload()).second) {
      return absl::DataLossError(absl::StrCat("transaction ", record.payload().transaction(),
                                              " has committed a payload before"));
    }
  }
  contents.records.push_back(std::move(stored));
  return absl::OkStatus();
}

absl::Status ReadRecords(Database& database, const WitnessState& witness, Contents& contents) {
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  const std::unique_ptr<rocksdb::Iterator> it(
      database.db().NewIterator(options, database.records()));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    const uint64_t expected = contents.records.size();
    const std::optional<uint64_t> sequence =
        ParseRecordKey(ToStd({it->key().data(), it->key().size()}));
    if (sequence != expected) {
      const std::string found =
          sequence.has_value() ? absl::StrCat("record ", *sequence) : "a key that is no record's";
      return absl::DataLossError(absl::StrCat("record ", expected, " is missing: ", found,
                                              " follows", State(expected, witness)));
    }
    const absl::Status status =
        AppendRecord(ToStd({it->value().data(), it->value().size()}), contents);
    if (!status.ok()) {
      return absl::DataLossError(absl::StrCat(
          "record ", expected, " is damaged: ", status.message(), State(expected, witness)));
    }
  }
  if (IsMissingFile(it->status()) || it->status().IsCorruption()) {
    return absl::DataLossError(absl::StrCat("reading records: ", it->status().ToString(),
                                            State(contents.records.size(), witness)));
  }
  return ToStatus(it->status(), "reading records");
}

absl::Status CheckWitness(const WitnessState& witness, const Contents& contents) {
  const uint64_t records = contents.records.size();
  if (records < witness.records) {
    return absl::DataLossError(absl::StrCat("acknowledged records ", records, " to ",
                                            witness.records - 1, " are missing from the end",
                                            State(records, witness)));
  }
  if (witness.records == 0) return absl::OkStatus();
  const StoredRecord& last = contents.records[witness.records - 1];
  if (last.digest != witness.last_digest) {
    return absl::DataLossError(absl::StrCat(
        "record ", last.sequence, " has digest ", ToHex(last.digest),
        ", but the one that was acknowledged had ", ToHex(witness.last_digest),
        ": the witness and the database are not of one journal, or one of them is older. "
        "Nothing was changed."));
  }
  return absl::OkStatus();
}

// The ranges of the files in the payload family: first key to last key. In the normal state each is
// the whole payload of one transaction.
std::map<std::string, std::string> FileRanges(Database& database) {
  rocksdb::ColumnFamilyMetaData family;
  database.db().GetColumnFamilyMetaData(database.payload(), &family);
  std::map<std::string, std::string> ranges;
  for (const rocksdb::LevelMetaData& level : family.levels) {
    for (const rocksdb::SstFileMetaData& file : level.files) {
      ranges[file.smallestkey] = file.largestkey;
    }
  }
  return ranges;
}

absl::StatusOr<bool> HasKey(rocksdb::Iterator& it, const std::string& key) {
  it.Seek(key);
  if (it.Valid()) return it.key() == rocksdb::Slice(key);
  if (IsMissingFile(it.status())) return false;
  RETURN_IF_ERROR(ToStatus(it.status(), "looking for a chunk"));
  return false;
}

// The transactions of all payloads that lack their first or last chunk.
absl::StatusOr<std::set<uint64_t>> IncompletePayloads(Database& database,
                                                      const Payloads& payloads) {
  const std::map<std::string, std::string> files = FileRanges(database);
  rocksdb::ReadOptions options;
  const std::unique_ptr<rocksdb::Iterator> small(
      database.db().NewIterator(options, database.small_payload()));
  const std::unique_ptr<rocksdb::Iterator> large(
      database.db().NewIterator(options, database.payload()));
  std::set<uint64_t> incomplete;
  for (const auto& [transaction, payload] : payloads) {
    if (payload.chunks() == 0) continue;
    if (!payload.small()) {
      // The manifest's word is enough, since RocksDB has just found all its files at their sizes;
      // it spares the reading of two blocks a version.
      const auto file = files.find(payload.first_key());
      if (file != files.end() && file->second == payload.last_key()) continue;
    }
    rocksdb::Iterator& it = payload.small() ? *small : *large;
    ASSIGN_OR_RETURN(const bool has_first, HasKey(it, payload.first_key()));
    bool has_last = has_first;
    if (payload.chunks() > 1) {
      ASSIGN_OR_RETURN(has_last, HasKey(it, payload.last_key()));
    }
    if (!has_first || !has_last) incomplete.insert(transaction.value());
  }
  return incomplete;
}

}  // namespace

absl::StatusOr<Contents> CheckContents(Database& database, const WitnessState& witness) {
  Contents contents;
  RETURN_IF_ERROR(ReadRecords(database, witness, contents));
  RETURN_IF_ERROR(CheckWitness(witness, contents));
  ASSIGN_OR_RETURN(const std::set<uint64_t> incomplete,
                   IncompletePayloads(database, contents.payloads));
  if (incomplete.empty()) return contents;
  uint64_t good = 0;
  for (const StoredRecord& record : contents.records) {
    if (record.payload.has_value() && incomplete.count(record.payload->value()) > 0) break;
    ++good;
  }
  return absl::DataLossError(absl::StrCat("chunks are missing from the payload of transaction(s) ",
                                          absl::StrJoin(incomplete, ", "), State(good, witness)));
}

absl::Status SweepPayloads(Database& database, const Payloads& payloads) {
  for (const auto& [first_key, last_key] : FileRanges(database)) {
    const std::optional<PlacedChunk> first = ParseChunkKey(first_key);
    const std::optional<PlacedChunk> last = ParseChunkKey(last_key);
    if (!first.has_value() || !last.has_value() || first->transaction != last->transaction)
      continue;
    if (payloads.count(first->transaction) == 0) {
      RETURN_IF_ERROR(database.DropPayload(first->transaction));
    }
  }
  return absl::OkStatus();
}

std::string EncodeRecord(uint64_t sequence, const Digest& previous,
                         const v1::PayloadSummary* payload, std::string_view body) {
  v1::JournalRecord record;
  record.set_sequence(sequence);
  record.set_previous_digest(ToBytes(previous));
  if (payload != nullptr) *record.mutable_payload() = *payload;
  record.set_body(body.data(), body.size());
  return record.SerializeAsString();
}

Digest RecordDigest(std::string_view encoded) { return Sha256().Update(encoded).Finish(); }

}  // namespace wstore::journal
