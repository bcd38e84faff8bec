// RETURN_IF_ERROR(expression): returns the absl::Status of `expression` if it is an error.
// ASSIGN_OR_RETURN(lhs, expression): assigns the value of an absl::StatusOr, or returns its status.
// Prefixed(status, context): the same error with "context: " before its message.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#define WSTORE_CONCAT_INNER(a, b) a##b
#define WSTORE_CONCAT(a, b) WSTORE_CONCAT_INNER(a, b)

#define RETURN_IF_ERROR(expression)                                       \
  do {                                                                    \
    if (absl::Status wstore_status = (expression); !wstore_status.ok()) { \
      return wstore_status;                                               \
    }                                                                     \
  } while (false)

#define ASSIGN_OR_RETURN(lhs, expression) \
  WSTORE_ASSIGN_OR_RETURN(WSTORE_CONCAT(wstore_status_or_, __LINE__), lhs, expression)
#define WSTORE_ASSIGN_OR_RETURN(temporary, lhs, expression)  \
  auto temporary = (expression);                             \
  if (!temporary.ok()) return std::move(temporary).status(); \
  lhs = *std::move(temporary)

namespace wstore {

inline absl::Status Prefixed(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(context, ": ", status.message()));
}

}  // namespace wstore
