#include "tools/wstore/settle.h"

#include "absl/strings/str_cat.h"
#include "tools/wstore/version_context.h"

namespace wstore::cli {
namespace {

absl::Status StillUnknown(const absl::Status& unknown, const absl::Status& reopening) {
  return absl::UnknownError(absl::StrCat(
      unknown.message(), "; opening the store again to ask failed too: ", reopening.message(),
      ". Once it opens, `wstore log` and `wstore log --moves` tell whether it was committed"));
}

absl::Status NotCommitted(const absl::Status& unknown) {
  return absl::UnavailableError(
      absl::StrCat("not committed, everything is as before: ", unknown.message()));
}

}  // namespace

absl::StatusOr<CommitResult> SettlePublish(const absl::StatusOr<std::unique_ptr<Store>>& reopened,
                                           TransactionNumber number, const absl::Status& unknown) {
  if (!reopened.ok()) return StillUnknown(unknown, reopened.status());
  // Among the versions, since a candidate moves nothing.
  for (const VersionInfo& version : (*reopened)->versions()) {
    if (!version.parent.has_value() || version.transaction != number) continue;
    CommitResult result;
    result.version = version.version;
    result.head = (*reopened)->head().version;
    result.transaction = number;
    return result;
  }
  return NotCommitted(unknown);
}

absl::StatusOr<CommitResult> SettleMove(const absl::StatusOr<std::unique_ptr<Store>>& reopened,
                                        const WantedMove& wanted, const absl::Status& unknown) {
  if (!reopened.ok()) return StillUnknown(unknown, reopened.status());
  for (const MoveInfo& move : (*reopened)->moves()) {
    if (IsRefused(move) || move.move <= wanted.after || move.why != wanted.why ||
        move.to != wanted.to || move.transaction_id != wanted.transaction_id) {
      continue;
    }
    CommitResult result;
    result.version = move.to;
    result.head = (*reopened)->head().version;
    result.transaction = move.transaction;
    result.duration_micros = move.duration_micros;
    return result;
  }
  return NotCommitted(unknown);
}

}  // namespace wstore::cli
