#include "tools/wstore/format.h"

#include <limits>

#include "tests/support/catch.h"

namespace wstore::cli {
namespace {

TEST_CASE("Counts have separators") {
  REQUIRE(FormatCount(0) == "0");
  REQUIRE(FormatCount(999) == "999");
  REQUIRE(FormatCount(1000) == "1,000");
  REQUIRE(FormatCount(30532122624) == "30,532,122,624");
  REQUIRE(FormatCountOf(1, "tensor") == "1 tensor");
  REQUIRE(FormatCountOf(0, "tensor") == "0 tensors");
}

TEST_CASE("Bytes have three digits, also where rounding carries") {
  REQUIRE(FormatBytes(0) == "0 B");
  REQUIRE(FormatBytes(999) == "999 B");
  REQUIRE(FormatBytes(1000) == "1.00 kB");
  REQUIRE(FormatBytes(9994) == "9.99 kB");
  REQUIRE(FormatBytes(9996) == "10.0 kB");
  REQUIRE(FormatBytes(41234) == "41.2 kB");
  REQUIRE(FormatBytes(99960) == "100 kB");
  REQUIRE(FormatBytes(999499) == "999 kB");
  REQUIRE(FormatBytes(999500) == "1.00 MB");
  REQUIRE(FormatBytes(61'100'000'000) == "61.1 GB");
  REQUIRE(FormatBytes(std::numeric_limits<uint64_t>::max()) == "18.4 EB");
}

TEST_CASE("Rates, durations and times") {
  REQUIRE(FormatRate(1'000'000, 1'000'000) == "1.00 MB/s");
  REQUIRE(FormatRate(1'000'000, 0).empty());
  REQUIRE(FormatDuration(0) == "0.0 ms");
  REQUIRE(FormatDuration(412) == "0.4 ms");
  REQUIRE(FormatDuration(9960) == "10 ms");
  REQUIRE(FormatDuration(31'200) == "31 ms");
  REQUIRE(FormatDuration(999'700) == "1.0 s");
  REQUIRE(FormatDuration(59'600'000) == "1 min 0 s");
  REQUIRE(FormatDuration(125'000'000) == "2 min 5 s");
  REQUIRE(FormatDuration(4'320'000'000) == "1 h 12 min");
  REQUIRE(FormatTime(0) == "1970-01-01 00:00:00");
}

TEST_CASE("Shares are never rounded to nothing or to all") {
  REQUIRE(FormatPercent(0, 10) == "0%");
  REQUIRE(FormatPercent(0, 0) == "0%");
  REQUIRE(FormatPercent(10, 10) == "100%");
  REQUIRE(FormatPercent(24797, 422912) == "5.86%");
  REQUIRE(FormatPercent(5, 10) == "50.0%");
  REQUIRE(FormatPercent(213, 1'000'000) == "0.0213%");
  REQUIRE(FormatPercent(1, 4'000'000'000) == "<0.0001%");
  REQUIRE(FormatPercent(999'999'999, 1'000'000'000) == "99.9%");
}

TEST_CASE("Text from elsewhere cannot command a terminal") {
  REQUIRE(Printable("step 1200, \xc3\xa9t\xc3\xa9 \xe2\x82\xac") ==
          "step 1200, \xc3\xa9t\xc3\xa9 \xe2\x82\xac");
  REQUIRE(Printable("a\nb\tc\x1b[31md\x7f") == "a\\nb\\tc\\x1b[31md\\x7f");
  REQUIRE(Printable("\xc2\x9b"
                    "31m") == "\\xc2\\x9b31m");             // a control character in two bytes
  REQUIRE(Printable("\xff\xe2\x82") == "\\xff\\xe2\\x82");  // not UTF-8
  REQUIRE(Printable(std::string_view("\0", 1)) == "\\x00");
}

TEST_CASE("Cut text counts characters, not bytes") {
  REQUIRE(DisplayWidth("\xc3\xa9t\xc3\xa9") == 3);
  REQUIRE(Ellipsize("abcdef", 6) == "abcdef");
  REQUIRE(Ellipsize("abcdefg", 6) == "abc...");
  REQUIRE(Ellipsize("\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9", 4) == "\xc3\xa9...");
  REQUIRE(Ellipsize("abcdef", 2) == "..");
}

}  // namespace
}  // namespace wstore::cli
