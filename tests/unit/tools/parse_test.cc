#include "tools/wstore/parse.h"

#include <vector>

#include "tests/support/catch.h"

namespace wstore::cli {
namespace {

TEST_CASE("Sizes with decimal and binary units, exactly") {
  const std::vector<std::pair<std::string, uint64_t>> good = {
      {"1", 1},
      {"4096", 4096},
      {"5GB", 5'000'000'000},
      {"5gb", 5'000'000'000},
      {"5 GB", 5'000'000'000},
      {"512MiB", 512ull << 20},
      {"1.5kB", 1500},
      {"0.25KiB", 256},
      {"2TB", 2'000'000'000'000},
      {"1TiB", 1ull << 40},
      {"7B", 7},
      {"9223372036854775807", 9223372036854775807ull},
  };
  for (const auto& [text, bytes] : good) {
    INFO(text);
    REQUIRE(ParseSize(text).value() == bytes);
  }
}

TEST_CASE("Nonsense is no size") {
  for (const char* text : {"",
                           "0",
                           "0GB",
                           "-5GB",
                           "+5",
                           "GB",
                           "5G",
                           "5 parsecs",
                           "1.5",
                           "1.0001kB",
                           "1..5kB",
                           ".",
                           "1.",
                           ".GB",
                           "0x10",
                           "1e9",
                           "5GBB",
                           " 5GB",
                           "5GB ",
                           "9223372036854775808",
                           "9223373TB",
                           "99999999999999999999999999999999999999999999",
                           "0.00000000000000000000001TB"}) {
    INFO(text);
    REQUIRE_ERROR(ParseSize(text), absl::StatusCode::kInvalidArgument, text);
  }
}

TEST_CASE("Durations need a unit") {
  REQUIRE(ParseDurationMs("0").value() == 0);
  REQUIRE(ParseDurationMs("500ms").value() == 500);
  REQUIRE(ParseDurationMs("1.5s").value() == 1500);
  REQUIRE(ParseDurationMs("2m").value() == 120'000);
  REQUIRE(ParseDurationMs("24h").value() == 86'400'000);
  for (const char* text : {"", "5", "-1s", "s", "soon", "25h", "0.1ms", "1d"}) {
    INFO(text);
    REQUIRE_ERROR(ParseDurationMs(text), absl::StatusCode::kInvalidArgument, text);
  }
}

TEST_CASE("Pairs split at the first equals sign") {
  REQUIRE(ParsePair("a=b").value() == std::pair<std::string, std::string>("a", "b"));
  REQUIRE(ParsePair("a=").value() == std::pair<std::string, std::string>("a", ""));
  REQUIRE(ParsePair("a=b=c").value() == std::pair<std::string, std::string>("a", "b=c"));
  REQUIRE_ERROR(ParsePair("a"), absl::StatusCode::kInvalidArgument, "KEY=VALUE");
  REQUIRE_ERROR(ParsePair("=b"), absl::StatusCode::kInvalidArgument, "KEY=VALUE");
}

}  // namespace
}  // namespace wstore::cli
