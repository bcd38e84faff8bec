// What became of a commit whose outcome was not known when it returned. Opening the store again
// settles it: the journal rolls an intact record forward and drops any other.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "wstore/store.h"

namespace wstore::cli {

// Looks for the publish `number` in the store, as it was opened again after `unknown`.
//   kUnavailable: it was not committed, everything is as before
//   kUnknown: the store could not be opened again; says how to ask
absl::StatusOr<CommitResult> SettlePublish(const absl::StatusOr<std::unique_ptr<Store>>& reopened,
                                           TransactionNumber number, const absl::Status& unknown);

// The same for a rollback that was asked for when head was `before`.
absl::StatusOr<CommitResult> SettleRollback(const absl::StatusOr<std::unique_ptr<Store>>& reopened,
                                            const HeadInfo& before, const RollbackOptions& options,
                                            const absl::Status& unknown);

}  // namespace wstore::cli
