#include "tools/wstore/exit_code.h"

#include "absl/strings/cord.h"
#include "common/strings.h"

namespace wstore::cli {
namespace {

// Marks a status as an error of the command line: there is no status code for it.
constexpr char kUsagePayload[] = "wstore.cli/usage";

}  // namespace

ExitCode ExitCodeOf(const absl::Status& status) {
  if (IsUsageError(status)) return ExitCode::kUsage;
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return ExitCode::kDone;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
      return ExitCode::kRefused;
    case absl::StatusCode::kNotFound:
      return ExitCode::kNotFound;
    case absl::StatusCode::kDataLoss:
      return ExitCode::kCorrupt;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnknown:
      return ExitCode::kUnavailable;
    case absl::StatusCode::kAborted:
      return ExitCode::kAborted;
    default:
      return ExitCode::kFailed;
  }
}

absl::Status UsageError(std::string_view message) {
  absl::Status status = absl::InvalidArgumentError(ToAbsl(message));
  status.SetPayload(kUsagePayload, absl::Cord());
  return status;
}

bool IsUsageError(const absl::Status& status) {
  return status.GetPayload(kUsagePayload).has_value();
}

std::string ErrorName(const absl::Status& status) {
  return IsUsageError(status) ? "USAGE" : absl::StatusCodeToString(status.code());
}

}  // namespace wstore::cli
