// What became of a commit whose outcome was not known when it returned. Opening the store again
// settles it: the journal rolls an intact record forward and drops any other.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "wstore/store.h"

namespace wstore::cli {

// Looks for the publish `number` in the store, as it was opened again after `unknown`.
//   kUnavailable: it was not committed, everything is as before
//   kUnknown: the store could not be opened again; says how to ask
absl::StatusOr<CommitResult> SettlePublish(const absl::StatusOr<std::unique_ptr<Store>>& reopened,
                                           TransactionNumber number, const absl::Status& unknown);

// A rollback or a promotion.
struct WantedMove {
  std::string why;   // "rollback" or "promote"
  MoveNumber after;  // the last move before it
  VersionId to;
  std::string transaction_id;
};

// The same for a move of head alone.
absl::StatusOr<CommitResult> SettleMove(const absl::StatusOr<std::unique_ptr<Store>>& reopened,
                                        const WantedMove& wanted, const absl::Status& unknown);

}  // namespace wstore::cli
