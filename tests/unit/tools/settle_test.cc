// What becomes of a commit with unknown outcome, over a store that only knows its history.
#include "tools/wstore/settle.h"

#include <utility>

#include "tests/support/catch.h"

namespace wstore::cli {
namespace {

class HistoryOnly final : public Store {
 public:
  HistoryOnly(std::vector<VersionInfo> versions, std::vector<MoveInfo> moves)
      : versions_(std::move(versions)), moves_(std::move(moves)) {}

  HeadInfo head() const override {
    HeadInfo head;
    head.version = VersionId(77);
    return head;
  }
  std::vector<MoveInfo> moves() const override { return moves_; }

  const Manifest& manifest() const override { return manifest_; }
  StoreStatus status() const override { return {}; }
  std::vector<VersionInfo> versions() const override { return versions_; }
  absl::StatusOr<VersionInfo> version(VersionId) const override { return Unused(); }
  std::vector<TagInfo> tags() const override { return {}; }
  absl::StatusOr<VersionId> Resolve(std::string_view) const override { return Unused(); }
  absl::StatusOr<std::unique_ptr<Transaction>> Begin(const BeginOptions&) override {
    return Unused();
  }
  absl::StatusOr<CommitResult> Rollback(const RollbackOptions&) override { return Unused(); }
  absl::StatusOr<CommitResult> Promote(VersionId) override { return Unused(); }
  absl::Status Mark(VersionId, bool, const std::string&) override { return Unused(); }
  absl::Status Hold(const std::string&) override { return Unused(); }
  absl::Status Resume() override { return Unused(); }
  absl::Status Tag(const std::string&, VersionId) override { return Unused(); }
  absl::StatusOr<std::unique_ptr<PatchSource>> Difference(VersionId, VersionId) const override {
    return Unused();
  }
  absl::StatusOr<DifferenceInfo> DescribeDifference(VersionId, VersionId) const override {
    return Unused();
  }
  absl::StatusOr<std::vector<Fingerprint>> TensorFingerprints(VersionId) const override {
    return Unused();
  }
  absl::StatusOr<std::unique_ptr<DenseSource>> Materialise(VersionId) const override {
    return Unused();
  }
  absl::Status Export(VersionId, const ExportOptions&) const override { return Unused(); }
  absl::StatusOr<VerifyReport> Verify(const VerifyOptions&) override { return Unused(); }

 private:
  static absl::Status Unused() { return absl::UnimplementedError("not used"); }

  const std::vector<VersionInfo> versions_;
  const std::vector<MoveInfo> moves_;
  const Manifest manifest_;
};

VersionInfo Version(uint64_t version, uint64_t transaction) {
  VersionInfo info;
  info.version = VersionId(version);
  if (version > 0) info.parent = VersionId(version - 1);
  info.transaction = TransactionNumber(transaction);
  return info;
}

MoveInfo Move(uint64_t number, uint64_t to, const char* why, const char* id) {
  MoveInfo move;
  move.move = MoveNumber(number);
  move.to = VersionId(to);
  move.why = why;
  move.transaction = TransactionNumber(10 + number);
  move.transaction_id = id;
  move.outcome = number == 0 ? "refused" : "committed";
  move.duration_micros = 5;
  return move;
}

using Reopened = absl::StatusOr<std::unique_ptr<Store>>;
const absl::Status kUnknownOutcome = absl::UnknownError("sync failed");

TEST_CASE("A publish that is found after reopening was committed") {
  const Reopened store = std::make_unique<HistoryOnly>(
      std::vector<VersionInfo>{Version(0, 0), Version(1, 11), Version(2, 12)},
      std::vector<MoveInfo>());
  const auto found = SettlePublish(store, TransactionNumber(12), kUnknownOutcome);
  REQUIRE_OK(found);
  REQUIRE(found->outcome == CommitResult::Outcome::kCommitted);
  REQUIRE(found->version == VersionId(2));
  REQUIRE(found->head == VersionId(77));
  REQUIRE(found->transaction == TransactionNumber(12));
  REQUIRE_ERROR(SettlePublish(store, TransactionNumber(13), kUnknownOutcome),
                absl::StatusCode::kUnavailable, "not committed, everything is as before: sync");
  REQUIRE_ERROR(SettlePublish(store, TransactionNumber(0), kUnknownOutcome),
                absl::StatusCode::kUnavailable, "as before");
}

TEST_CASE("A move is found by what was wanted, among later moves only") {
  const Reopened store = std::make_unique<HistoryOnly>(
      std::vector<VersionInfo>(),
      std::vector<MoveInfo>{Move(1, 1, "publish", ""), Move(2, 5, "rollback", "a"),
                            Move(3, 2, "promote", ""), Move(0, 4, "rollback", "")});
  const auto settle = [&](const WantedMove& wanted) {
    return SettleMove(store, wanted, kUnknownOutcome);
  };
  const auto found = settle({"rollback", MoveNumber(1), VersionId(5), "a"});
  REQUIRE_OK(found);
  REQUIRE(found->version == VersionId(5));
  REQUIRE(found->head == VersionId(77));
  REQUIRE(found->transaction == TransactionNumber(12));
  REQUIRE_OK(settle({"promote", MoveNumber(2), VersionId(2), ""}));

  const std::vector<WantedMove> absent = {
      {"rollback", MoveNumber(1), VersionId(5), "b"},
      {"rollback", MoveNumber(1), VersionId(6), "a"},
      {"rollback", MoveNumber(2), VersionId(5), "a"},
      {"promote", MoveNumber(1), VersionId(5), "a"},
      {"rollback", MoveNumber(0), VersionId(4), ""},  // refused
  };
  for (const WantedMove& wanted : absent) {
    REQUIRE_ERROR(settle(wanted), absl::StatusCode::kUnavailable, "as before");
  }
}

TEST_CASE("Where the store does not open again the outcome stays unknown") {
  const Reopened store = absl::UnavailableError("disk is gone");
  REQUIRE_ERROR(SettlePublish(store, TransactionNumber(12), kUnknownOutcome),
                absl::StatusCode::kUnknown, "disk is gone");
  REQUIRE_ERROR(SettleMove(store, {}, kUnknownOutcome), absl::StatusCode::kUnknown, "disk is gone");
}

}  // namespace
}  // namespace wstore::cli
