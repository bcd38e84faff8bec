// What an open finds in the database, and whether it is all that was acknowledged.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "journal/database.h"
#include "journal/witness.h"
#include "wstore/journal.h"
#include "wstore/types.h"
#include "wstore/v1/journal.pb.h"

namespace wstore::journal {

using Payloads = std::map<TransactionNumber, v1::PayloadSummary>;

struct Contents {
  std::vector<StoredRecord> records;
  Payloads payloads;
};

// Reads all records and checks
//   - that their sequence numbers have no gap, and each names the digest of the one before;
//   - that the witnessed record is there and is the one that was acknowledged. Records behind it
//   are
//     in order: a crash between a record and its witness leaves them;
//   - that the first and the last chunk of every payload are there. What lies between is checked
//   when
//     it is read.
//   kDataLoss: one of these does not hold. The message names the last good sequence number.
//   kUnavailable: an I/O error
absl::StatusOr<Contents> CheckContents(Database& database, const WitnessState& witness);

// Removes the SST files of transactions that `payloads` does not name: a crash between the ingest
// and the record leaves them.
absl::Status SweepPayloads(Database& database, const Payloads& payloads);

// The record as it is stored, and its digest.
std::string EncodeRecord(uint64_t sequence, const Digest& previous,
                         const v1::PayloadSummary* payload, std::string_view body);
Digest RecordDigest(std::string_view encoded);

}  // namespace wstore::journal
