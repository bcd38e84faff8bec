// Catch2, whichever version the system has.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#define WSTORE_CONTAINS ::Catch::Matchers::ContainsSubstring
#else
#include <catch2/catch.hpp>
#define WSTORE_CONTAINS ::Catch::Matchers::Contains
#endif

#include <iostream>

#include "absl/status/status.h"

namespace wstore::testing {
inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const T& status_or) {
  return status_or.status();
}
}  // namespace wstore::testing

// The status, or the StatusOr, is OK; if not, its message is shown.
#define REQUIRE_OK(expression)                                   \
  do {                                                           \
    const auto& wstore_result = (expression);                    \
    INFO(::wstore::testing::StatusOf(wstore_result).ToString()); \
    REQUIRE(wstore_result.ok());                                 \
  } while (false)

// The status has this code and its message contains this text.
#define REQUIRE_ERROR(expression, expected_code, text)                         \
  do {                                                                         \
    const absl::Status wstore_error = ::wstore::testing::StatusOf(expression); \
    INFO(wstore_error.ToString());                                             \
    REQUIRE(wstore_error.code() == (expected_code));                           \
    REQUIRE_THAT(std::string(wstore_error.message()), WSTORE_CONTAINS(text));  \
  } while (false)

// Ends the test case. CTest shows it as skipped, which Catch2 2.x cannot say by itself.
#define SKIP_TEST(reason)                                   \
  do {                                                      \
    std::cout << "test-skipped: " << (reason) << std::endl; \
    SUCCEED();                                              \
    return;                                                 \
  } while (false)
