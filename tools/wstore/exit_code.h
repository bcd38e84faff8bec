// Exit statuses of the command: part of its contract, see docs/cli.md.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace wstore::cli {

enum class ExitCode : int {
  kDone = 0,
  kFailed = 1,       // any other failure
  kUsage = 2,        // the command line is wrong
  kRefused = 3,      // wrong parent or base, conflict, hold, bad input
  kNotFound = 4,     // no such store, version, tag or file
  kCorrupt = 5,      // corruption, or bad health
  kUnavailable = 6,  // another process writes, deadline passed, outcome unknown
  kAborted = 7,      // a worker failed; everything is as before
};

ExitCode ExitCodeOf(const absl::Status& status);

// An error of the command line itself that is found after parsing. It exits with kUsage.
absl::Status UsageError(std::string_view message);
bool IsUsageError(const absl::Status& status);

// The name of the status code as JSON shows it, such as "FAILED_PRECONDITION"; "USAGE" for a
// UsageError.
std::string ErrorName(const absl::Status& status);

}  // namespace wstore::cli
