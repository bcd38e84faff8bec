#include "tools/wstore/exit_code.h"

#include <map>

#include "tests/support/catch.h"

namespace wstore::cli {
namespace {

TEST_CASE("Every status code has the exit status of the contract") {
  const std::map<absl::StatusCode, int> expected = {
      {absl::StatusCode::kOk, 0},
      {absl::StatusCode::kCancelled, 1},
      {absl::StatusCode::kUnknown, 6},
      {absl::StatusCode::kInvalidArgument, 3},
      {absl::StatusCode::kDeadlineExceeded, 6},
      {absl::StatusCode::kNotFound, 4},
      {absl::StatusCode::kAlreadyExists, 3},
      {absl::StatusCode::kPermissionDenied, 3},
      {absl::StatusCode::kResourceExhausted, 1},
      {absl::StatusCode::kFailedPrecondition, 3},
      {absl::StatusCode::kAborted, 7},
      {absl::StatusCode::kOutOfRange, 3},
      {absl::StatusCode::kUnimplemented, 1},
      {absl::StatusCode::kInternal, 1},
      {absl::StatusCode::kUnavailable, 6},
      {absl::StatusCode::kDataLoss, 5},
      {absl::StatusCode::kUnauthenticated, 1},
  };
  for (const auto& [code, exit_status] : expected) {
    INFO(absl::StatusCodeToString(code));
    REQUIRE(static_cast<int>(ExitCodeOf(absl::Status(code, "x"))) == exit_status);
  }
}

TEST_CASE("A usage error is one whatever its status code") {
  const absl::Status status = UsageError("give --store");
  REQUIRE(IsUsageError(status));
  REQUIRE(ExitCodeOf(status) == ExitCode::kUsage);
  REQUIRE(ErrorName(status) == "USAGE");
  REQUIRE(status.message() == "give --store");
  REQUIRE_FALSE(IsUsageError(absl::InvalidArgumentError("give --store")));
  REQUIRE(ErrorName(absl::DataLossError("")) == "DATA_LOSS");
}

}  // namespace
}  // namespace wstore::cli
