// RocksDB's statuses as absl ones, translated in this one place.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "rocksdb/status.h"

namespace wstore::journal {

// No space left on the device, or a quota is used up.
bool IsNoSpace(const rocksdb::Status& status);

// A file that the database names is not there: damage, or a live writer has just removed it.
bool IsMissingFile(const rocksdb::Status& status);

// `what` says what was attempted and on which file.
//   kResourceExhausted: no space    kDataLoss: a checksum or structure is wrong
//   kUnavailable: anything else
absl::Status ToStatus(const rocksdb::Status& status, absl::string_view what);

}  // namespace wstore::journal
