#include "tools/wstore/embedded_access.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tools/wstore/settle.h"
#include "wstore/interchange.h"

namespace wstore::cli {
namespace {

// The last `limit` of a list, newest first.
template <typename T>
std::vector<T> Newest(std::vector<T> list, size_t limit) {
  std::reverse(list.begin(), list.end());
  if (list.size() > limit) list.resize(limit);
  return list;
}

class EmbeddedAccess final : public StoreAccess {
 public:
  using Reopen = std::function<absl::StatusOr<std::unique_ptr<Store>>()>;

  EmbeddedAccess(std::unique_ptr<Store> store, Reopen reopen)
      : store_(std::move(store)), reopen_(std::move(reopen)) {}

  absl::StatusOr<std::shared_ptr<const Manifest>> manifest() override {
    return std::shared_ptr<const Manifest>(store_, &store_->manifest());
  }
  absl::StatusOr<AccessStatus> Status() override {
    AccessStatus status;
    status.store = store_->status();
    // An embedded store acknowledges nothing that is not durable.
    status.durable = status.store.head.version;
    return status;
  }
  absl::StatusOr<HeadInfo> Head() override { return store_->head(); }
  absl::StatusOr<VersionInfo> Version(const std::string& name) override {
    ASSIGN_OR_RETURN(const VersionId version, store_->Resolve(name));
    return store_->version(version);
  }
  absl::StatusOr<std::vector<VersionInfo>> Versions(size_t limit) override {
    return Newest(store_->versions(), limit);
  }
  absl::StatusOr<std::vector<MoveInfo>> Moves(size_t limit) override {
    return Newest(store_->moves(), limit);
  }
  absl::StatusOr<std::vector<TagInfo>> Tags() override { return store_->tags(); }
  absl::StatusOr<std::unique_ptr<PatchSource>> Difference(VersionId from, VersionId to) override {
    return store_->Difference(from, to);
  }

  absl::StatusOr<CommitResult> Publish(const PublishRequest& request) override {
    if (request.policy != PublishPolicy::kAll || request.durability != PublishDurability::kSync) {
      return absl::FailedPreconditionError(
          "--policy and --durability need a server (`wstore serve`): an embedded publish has no "
          "fleet, and is durable when it returns");
    }
    ASSIGN_OR_RETURN(std::unique_ptr<Transaction> transaction, BeginWithContent(request));
    const TransactionNumber number = transaction->number();
    absl::StatusOr<CommitResult> result = transaction->Commit(request.progress);
    transaction.reset();
    if (!absl::IsUnknown(result.status())) return result;
    return Reopened([&](const absl::StatusOr<std::unique_ptr<Store>>& reopened) {
      return SettlePublish(reopened, number, result.status());
    });
  }

  absl::StatusOr<CommitResult> Rollback(const RollbackRequest& request) override {
    RollbackOptions options;
    options.to = request.to;
    options.transaction_id = request.transaction_id;
    options.message = request.message;
    options.force = request.force;
    const HeadInfo before = store_->head();
    const absl::StatusOr<CommitResult> result = store_->Rollback(options);
    if (!absl::IsUnknown(result.status())) return result;
    return Reopened([&](const absl::StatusOr<std::unique_ptr<Store>>& reopened) {
      return SettleMove(reopened, {"rollback", before.move, request.to, request.transaction_id},
                        result.status());
    });
  }

  absl::StatusOr<CommitResult> Promote(VersionId version) override {
    const HeadInfo before = store_->head();
    const absl::StatusOr<CommitResult> result = store_->Promote(version);
    if (!absl::IsUnknown(result.status())) return result;
    return Reopened([&](const absl::StatusOr<std::unique_ptr<Store>>& reopened) {
      return SettleMove(reopened, {"promote", before.move, version, ""}, result.status());
    });
  }

  absl::Status Mark(VersionId version, bool bad, const std::string& reason) override {
    return store_->Mark(version, bad, reason);
  }
  absl::Status SetHold(bool hold, const std::string& reason) override {
    return hold ? store_->Hold(reason) : store_->Resume();
  }
  absl::Status Tag(const std::string& name, VersionId version) override {
    return store_->Tag(name, version);
  }
  absl::Status Export(VersionId version, const ExportOptions& options) override {
    return store_->Export(version, options);
  }
  absl::StatusOr<VerifyReport> Verify(const VerifyOptions& options) override {
    return store_->Verify(options);
  }

  absl::StatusOr<Client*> Server() override {
    return absl::FailedPreconditionError(
        "this needs a server, and the store is not served: start `wstore serve`, or name one with "
        "--server ADDR");
  }
  Deadline NextDeadline() const override { return Deadline::After(0); }
  void RestartTimeout() override {}

 private:
  absl::StatusOr<std::unique_ptr<Transaction>> BeginWithContent(const PublishRequest& request) {
    BeginOptions options = request.begin;
    if (!request.parent.empty()) {
      ASSIGN_OR_RETURN(options.parent, store_->Resolve(request.parent));
    }
    if (request.patch_file.empty()) {
      ASSIGN_OR_RETURN(std::unique_ptr<Transaction> transaction, store_->Begin(options));
      RETURN_IF_ERROR(transaction->SetCheckpoint(request.checkpoint));
      return transaction;
    }
    ASSIGN_OR_RETURN(const InterchangeFile file, InterchangeFile::Read(request.patch_file));
    RETURN_IF_ERROR(TakeExpectations(file, request.patch_file, &options));
    ASSIGN_OR_RETURN(std::unique_ptr<Transaction> transaction, store_->Begin(options));
    RETURN_IF_ERROR(transaction->Add(file.patches()));
    return transaction;
  }

  template <typename Settle>
  absl::StatusOr<CommitResult> Reopened(const Settle& settle) {
    store_.reset();
    absl::StatusOr<std::unique_ptr<Store>> reopened = reopen_();
    absl::StatusOr<CommitResult> result = settle(reopened);
    if (reopened.ok()) store_ = *std::move(reopened);
    return result;
  }

  std::shared_ptr<Store> store_;
  const Reopen reopen_;
};

}  // namespace

std::unique_ptr<StoreAccess> MakeEmbeddedAccess(
    std::unique_ptr<Store> store, std::function<absl::StatusOr<std::unique_ptr<Store>>()> reopen) {
  return std::make_unique<EmbeddedAccess>(std::move(store), std::move(reopen));
}

}  // namespace wstore::cli
