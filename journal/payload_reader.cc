#include "journal/payload_reader.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "journal/keys.h"
#include "journal/status.h"
#include "rocksdb/iterator.h"

namespace wstore::journal {

PayloadReader::PayloadReader(const v1::PayloadSummary& payload, std::string first_key)
    : payload_(payload), first_key_(std::move(first_key)) {}

absl::Status PayloadReader::Read(
    Database& database,
    const std::function<absl::StatusOr<bool>(const ChunkKey&, std::string_view)>& visit) {
  file_vanished_ = false;
  // The lowest key behind the last one, and behind all keys of the transaction.
  const std::string lower = last_key_.empty() ? first_key_ : last_key_ + '\0';
  const std::string upper = LastChunkKey(TransactionNumber(payload_.transaction())) + '\0';
  const rocksdb::Slice lower_bound = lower;
  const rocksdb::Slice upper_bound = upper;
  rocksdb::ReadOptions options;
  options.iterate_lower_bound = &lower_bound;
  options.iterate_upper_bound = &upper_bound;
  options.verify_checksums = true;
  // Small payloads share blocks: who reads a chain of them needs each block often. Others would
  // only push those out.
  options.fill_cache = payload_.small();
  const std::unique_ptr<rocksdb::Iterator> it(database.db().NewIterator(
      options, payload_.small() ? database.small_payload() : database.payload()));
  for (it->Seek(lower_bound); it->Valid(); it->Next()) {
    const std::string_view key(it->key().data(), it->key().size());
    const std::optional<PlacedChunk> chunk = ParseChunkKey(key);
    if (!chunk.has_value()) {
      return absl::DataLossError(absl::StrCat("a key of ", key.size(), " bytes in the payload of ",
                                              "transaction ", payload_.transaction()));
    }
    const std::string_view value(it->value().data(), it->value().size());
    ASSIGN_OR_RETURN(const bool go_on, visit(chunk->key, value));
    if (!go_on) return absl::OkStatus();
    last_key_ = key;
    ++chunks_;
    bytes_ += value.size();
  }
  if (!it->status().ok()) {
    const std::string what =
        absl::StrCat("reading the payload of transaction ", payload_.transaction());
    file_vanished_ = IsMissingFile(it->status());
    if (!file_vanished_) return ToStatus(it->status(), what);
    return absl::DataLossError(absl::StrCat(what, ": ", it->status().ToString()));
  }
  return CheckComplete();
}

absl::Status PayloadReader::CheckComplete() const {
  if (first_key_ > payload_.last_key()) return absl::OkStatus();
  if (last_key_ != payload_.last_key()) {
    return absl::DataLossError(absl::StrCat("the payload of transaction ", payload_.transaction(),
                                            " lacks its last chunk"));
  }
  if (first_key_ > payload_.first_key() ||
      (chunks_ == payload_.chunks() && bytes_ == payload_.bytes())) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(
      "the payload of transaction ", payload_.transaction(), " has ", chunks_, " chunks with ",
      bytes_, " bytes; ", payload_.chunks(), " with ", payload_.bytes(), " were committed"));
}

}  // namespace wstore::journal
