#include "tools/wstore/table.h"

#include "tests/support/catch.h"

namespace wstore::cli {
namespace {

TEST_CASE("Columns are as wide as what is in them, and lines have no trailing blanks") {
  Table table({{"NAME"}, {"COUNT", Table::Align::kRight}, {"NOTE"}});
  table.AddRow({"a", "1,000,000", ""});
  table.AddRow({"\xc3\xa9t\xc3\xa9-long", "2", "x"});
  REQUIRE(table.Render(0) ==
          "NAME          COUNT  NOTE\n"
          "a         1,000,000\n"
          "\xc3\xa9t\xc3\xa9-long          2  x\n");
}

TEST_CASE("Only the last column is cut, and never to nothing") {
  Table table({{"ID"}, {"MESSAGE"}});
  table.AddRow({"v1", "a message that is too long"});
  REQUIRE(table.Render(20) == "ID  MESSAGE\nv1  a message tha...\n");
  REQUIRE(table.Render(5) == "ID  MESSAGE\nv1  a message...\n");
  REQUIRE(table.Render(200) == "ID  MESSAGE\nv1  a message that is too long\n");
}

TEST_CASE("Facts line up") {
  REQUIRE(RenderFacts({{"head", "v1"}, {"", "more"}, {"journal", "1 kB"}}) ==
          "head     v1\n         more\njournal  1 kB\n");
}

}  // namespace
}  // namespace wstore::cli
