#include "tools/wstore/settle.h"

#include <functional>
#include <string>

#include "absl/strings/str_cat.h"

namespace wstore::cli {
namespace {

absl::StatusOr<CommitResult> Settle(const absl::StatusOr<std::unique_ptr<Store>>& reopened,
                                    const std::function<bool(const MoveInfo&)>& is_ours,
                                    const absl::Status& unknown) {
  if (!reopened.ok()) {
    return absl::UnknownError(
        absl::StrCat(unknown.message(),
                     "; opening the store again to ask failed too: ", reopened.status().message(),
                     ". Once it opens, `wstore log --moves` tells whether it was committed"));
  }
  const Store& store = **reopened;
  for (const MoveInfo& move : store.moves()) {
    if (!is_ours(move)) continue;
    CommitResult result;
    result.version = move.to;
    result.head = store.head().version;
    result.transaction = move.transaction;
    result.duration_micros = move.duration_micros;
    return result;
  }
  return absl::UnavailableError(
      absl::StrCat("not committed, everything is as before: ", unknown.message()));
}

}  // namespace

absl::StatusOr<CommitResult> SettlePublish(const absl::StatusOr<std::unique_ptr<Store>>& reopened,
                                           TransactionNumber number, const absl::Status& unknown) {
  return Settle(
      reopened, [&](const MoveInfo& move) { return move.transaction == number; }, unknown);
}

absl::StatusOr<CommitResult> SettleRollback(const absl::StatusOr<std::unique_ptr<Store>>& reopened,
                                            const HeadInfo& before, const RollbackOptions& options,
                                            const absl::Status& unknown) {
  const auto is_ours = [&](const MoveInfo& move) {
    return move.move > before.move && move.why == "rollback" && move.to == options.to &&
           move.transaction_id == options.transaction_id;
  };
  return Settle(reopened, is_ours, unknown);
}

}  // namespace wstore::cli
