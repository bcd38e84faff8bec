#include "journal/status.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace wstore::journal {

bool IsNoSpace(const rocksdb::Status& status) {
  // RocksDB has no subcode for EDQUOT; only the system's text tells.
  return status.IsNoSpace() ||
         (status.IsIOError() && absl::StrContains(status.ToString(), "quota exceeded"));
}

bool IsMissingFile(const rocksdb::Status& status) {
  return status.IsPathNotFound() || status.IsNotFound() ||
         absl::StrContains(status.ToString(), "No such file or directory");
}

absl::Status ToStatus(const rocksdb::Status& status, absl::string_view what) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = absl::StrCat(what, ": ", status.ToString());
  if (IsNoSpace(status)) return absl::ResourceExhaustedError(message);
  if (status.IsCorruption()) return absl::DataLossError(message);
  return absl::UnavailableError(message);
}

}  // namespace wstore::journal
