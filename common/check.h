// Checks that stay on in release builds. For broken invariants only: an operating error (bad input,
// a full disk) is an absl::Status, never a check.
#pragma once

namespace wstore::internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);
}  // namespace wstore::internal

#define WSTORE_CHECK(condition)                        \
  (static_cast<bool>(condition) ? static_cast<void>(0) \
                                : ::wstore::internal::CheckFailed(__FILE__, __LINE__, #condition))
