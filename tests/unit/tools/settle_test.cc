// What becomes of a commit with unknown outcome, over a store that only knows its moves.
#include "tools/wstore/settle.h"

#include <utility>

#include "tests/support/catch.h"

namespace wstore::cli {
namespace {

class MovesOnly final : public Store {
 public:
  explicit MovesOnly(std::vector<MoveInfo> moves) : moves_(std::move(moves)) {}

  HeadInfo head() const override {
    HeadInfo head;
    if (!moves_.empty()) head.version = moves_.back().to;
    return head;
  }
  std::vector<MoveInfo> moves() const override { return moves_; }

  const Manifest& manifest() const override { return manifest_; }
  StoreStatus status() const override { return {}; }
  std::vector<VersionInfo> versions() const override { return {}; }
  absl::StatusOr<VersionInfo> version(VersionId) const override { return Unused(); }
  std::vector<TagInfo> tags() const override { return {}; }
  absl::StatusOr<VersionId> Resolve(std::string_view) const override { return Unused(); }
  absl::StatusOr<std::unique_ptr<Transaction>> Begin(const BeginOptions&) override {
    return Unused();
  }
  absl::StatusOr<CommitResult> Rollback(const RollbackOptions&) override { return Unused(); }
  absl::Status Hold(const std::string&) override { return Unused(); }
  absl::Status Resume() override { return Unused(); }
  absl::Status Tag(const std::string&, VersionId) override { return Unused(); }
  absl::StatusOr<std::unique_ptr<PatchSource>> Difference(VersionId, VersionId) const override {
    return Unused();
  }
  absl::StatusOr<std::unique_ptr<DenseSource>> Materialise(VersionId) const override {
    return Unused();
  }
  absl::Status Export(VersionId, const ExportOptions&) const override { return Unused(); }
  absl::StatusOr<VerifyReport> Verify(const VerifyOptions&) override { return Unused(); }

 private:
  static absl::Status Unused() { return absl::UnimplementedError("not used"); }

  const std::vector<MoveInfo> moves_;
  const Manifest manifest_;
};

MoveInfo Move(uint64_t number, uint64_t to, const char* why, const char* id) {
  MoveInfo move;
  move.move = MoveNumber(number);
  move.to = VersionId(to);
  move.why = why;
  move.transaction = TransactionNumber(10 + number);
  move.transaction_id = id;
  move.duration_micros = 5;
  return move;
}

using Reopened = absl::StatusOr<std::unique_ptr<Store>>;
const absl::Status kUnknownOutcome = absl::UnknownError("sync failed");

TEST_CASE("A publish that is found after reopening was committed") {
  const Reopened store = std::make_unique<MovesOnly>(
      std::vector<MoveInfo>{Move(1, 1, "publish", ""), Move(2, 2, "publish", "")});
  const auto found = SettlePublish(store, TransactionNumber(12), kUnknownOutcome);
  REQUIRE_OK(found);
  REQUIRE(found->outcome == CommitResult::Outcome::kCommitted);
  REQUIRE(found->version == VersionId(2));
  REQUIRE(found->transaction == TransactionNumber(12));
  REQUIRE_ERROR(SettlePublish(store, TransactionNumber(13), kUnknownOutcome),
                absl::StatusCode::kUnavailable, "not committed, everything is as before: sync");
}

TEST_CASE("A rollback is found by its target and id, among later moves only") {
  const Reopened store = std::make_unique<MovesOnly>(std::vector<MoveInfo>{
      Move(1, 1, "publish", ""), Move(2, 0, "rollback", "a"), Move(3, 2, "publish", "")});
  HeadInfo before;
  before.move = MoveNumber(1);
  RollbackOptions options;
  options.transaction_id = "a";
  const auto found = SettleRollback(store, before, options, kUnknownOutcome);
  REQUIRE_OK(found);
  REQUIRE(found->version == VersionId(0));
  REQUIRE(found->head == VersionId(2));

  options.transaction_id = "b";
  REQUIRE_ERROR(SettleRollback(store, before, options, kUnknownOutcome),
                absl::StatusCode::kUnavailable, "as before");
  options.transaction_id = "a";
  before.move = MoveNumber(2);
  REQUIRE_ERROR(SettleRollback(store, before, options, kUnknownOutcome),
                absl::StatusCode::kUnavailable, "as before");
}

TEST_CASE("Where the store does not open again the outcome stays unknown") {
  const Reopened store = absl::UnavailableError("disk is gone");
  REQUIRE_ERROR(SettlePublish(store, TransactionNumber(12), kUnknownOutcome),
                absl::StatusCode::kUnknown, "disk is gone");
}

}  // namespace
}  // namespace wstore::cli
