// What people do with the command, from the first store to an export.
#include "absl/strings/match.h"
#include "tests/cli/cli_fixture.h"

namespace wstore::testing {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("From init to an export, by way of a rollback") {
  CliFixture cli;
  cli.Init();
  const NaiveTensors first = cli.Changed(cli.model(), "embed.weight", 40);
  const NaiveTensors second = cli.Changed(first, "layer.0.codes", 500);
  const NaiveTensors third = cli.Changed(second, "layer.0.packed", 3);
  cli.Checkpoint("one", first);
  cli.Checkpoint("two", second);
  cli.Checkpoint("three", third);

  REQUIRE_THAT(cli.Must({"publish", "--from", "one", "-m", "first", "--meta", "step=1"}),
               Contains("v1 committed on v0") && Contains("in 1 of 7 tensors"));
  REQUIRE_THAT(cli.Must({"publish", "--from", "two", "--parent", "v1"}),
               Contains("500 of ") && Contains("bytes per element") && Contains("/s"));
  REQUIRE_THAT(cli.Must({"publish", "--from", "three"}), Contains("v3 committed on v2"));
  REQUIRE_THAT(cli.Must({"tag", "good", "v2"}), Contains("good is v2"));

  const std::string log = cli.Must({"log"});
  INFO(log);
  REQUIRE(log.find("v3") < log.find("v2"));
  REQUIRE_THAT(log, Contains("(head)") && Contains("(good)") && Contains("first"));

  // By hand, the difference of v3 and v1 is 503 bytes, each a storage element.
  REQUIRE_THAT(cli.Must({"rollback", "--to", "v1", "--dry-run"}),
               Contains("503 of ") && Contains("layer.0.packed"));
  REQUIRE_THAT(cli.Must({"rollback", "--to", "v1", "--yes", "-m", "looks bad"}),
               Contains("Head moved from v3 to v1") && Contains("on hold"));
  REQUIRE_THAT(cli.MustFail({"publish", "--from", "three"}, 3, "FAILED_PRECONDITION"),
               Contains("hold"));
  REQUIRE(cli.MustJson({"status"})["state"] == "hold");
  cli.Must({"status", "--check"});
  REQUIRE_THAT(cli.Must({"resume"}), Contains("allowed again"));
  REQUIRE_THAT(cli.Must({"publish", "--from", "three", "-m", "again"}),
               Contains("v4 committed on v1"));

  cli.Must({"verify", "--all", "--base"});
  cli.Must({"export", "v4", "--out", "out"});
  REQUIRE((cli.ReadCheckpoint("out/model.safetensors") == third));
  REQUIRE(ReadFile(cli.path("out/config.json")) == ReadFile(cli.path("base/config.json")));
  cli.Must({"export", "good", "--out", "shards", "--shard-size", "40kB"});
  REQUIRE(std::filesystem::exists(cli.path("shards/model.safetensors.index.json")));
  cli.Must({"export", "v0", "--out", "v0"});
  REQUIRE((cli.ReadCheckpoint("v0/model.safetensors") == cli.model()));
}

TEST_CASE("A checkpoint that changes nothing makes no version") {
  CliFixture cli;
  cli.Init();
  cli.Checkpoint("same", cli.model());
  REQUIRE_THAT(cli.Must({"publish", "--from", "same"}), Contains("No change"));
  const Json result = cli.MustJson({"publish", "--from", "same"});
  REQUIRE(result["outcome"] == "unchanged");
  REQUIRE(result["version"] == "v0");
  REQUIRE(result["elements"] == 0);
  REQUIRE(cli.MustJson({"log"}).size() == 1);
}

// A patch file that sets elements of "layer.0.codes" (I8).
std::string PatchFile(const std::vector<int64_t>& indices, const std::string& values,
                      const std::map<std::string, std::string>& metadata = {}) {
  NaiveTensors tensors;
  std::string index_bytes;
  for (const int64_t index : indices) {
    for (int i = 0; i < 8; ++i) index_bytes += static_cast<char>(index >> (8 * i));
  }
  tensors["indices:layer.0.codes"] = {"I64", {indices.size()}, index_bytes};
  tensors["values:layer.0.codes"] = {"I8", {values.size()}, values};
  std::map<std::string, std::string> all = {{"format", "wstore-patch-1"},
                                            {"shapes", R"({"layer.0.codes": [70000]})"}};
  all.insert(metadata.begin(), metadata.end());
  return NaiveWrite(tensors, NamesOf(tensors), all);
}

TEST_CASE("A patch file is published like a checkpoint") {
  CliFixture cli;
  cli.Init();
  const std::string& codes = cli.model().at("layer.0.codes").bytes;
  // Unsorted; the middle one stays as it is.
  const std::string values = {static_cast<char>(codes[69999] ^ 1), codes[7],
                              static_cast<char>(codes[0] ^ 0x80)};
  WriteFile(cli.path("patch"), PatchFile({69999, 7, 0}, values));
  REQUIRE(cli.MustJson({"publish", "--patch", "patch"})["elements"] == 2);
  cli.Must({"export", "v1", "--out", "out"});
  NaiveTensors expected = cli.model();
  expected["layer.0.codes"].bytes[69999] ^= 1;
  expected["layer.0.codes"].bytes[0] ^= static_cast<char>(0x80);
  REQUIRE((cli.ReadCheckpoint("out/model.safetensors") == expected));
  REQUIRE_THAT(cli.Must({"publish", "--patch", "patch"}), Contains("No change"));

  WriteFile(cli.path("stale"), PatchFile({1}, "x", {{"parent", "v0"}}));
  REQUIRE_THAT(cli.MustFail({"publish", "--patch", "stale"}, 3, "FAILED_PRECONDITION"),
               Contains("v0") && Contains("v1"));
  REQUIRE_THAT(
      cli.MustFail({"publish", "--patch", "stale", "--parent", "v1"}, 3, "FAILED_PRECONDITION"),
      Contains("was made for v0"));
  WriteFile(cli.path("outside"), PatchFile({70000}, "x"));
  REQUIRE_THAT(cli.MustFail({"publish", "--patch", "outside"}, 3, "OUT_OF_RANGE"),
               Contains("70000"));
  REQUIRE(cli.MustJson({"log"}).size() == 2);
}

TEST_CASE("The same id and content gives the first outcome, also after a rollback") {
  CliFixture cli;
  cli.Init();
  cli.CheckpointWithChanges("one", 9);
  cli.CheckpointWithChanges("two", 11);
  const std::vector<std::string> publish = {"publish", "--from",   "one", "--id",
                                            "step-1",  "--parent", "v0"};
  REQUIRE(cli.MustJson(publish)["outcome"] == "committed");
  cli.Must({"publish", "--from", "two"});
  const std::vector<std::string> rollback = {"rollback", "--to", "v0", "--yes", "--id", "back-1"};
  REQUIRE(cli.MustJson(rollback)["outcome"] == "committed");

  const Json again = cli.MustJson(publish);
  REQUIRE(again["outcome"] == "repeated");
  REQUIRE(again["version"] == "v1");
  REQUIRE(again["head"] == "v0");
  REQUIRE_THAT(cli.Must(publish), Contains("before") && Contains("head is v0"));
  cli.MustFail({"publish", "--from", "two", "--id", "step-1"}, 3, "ALREADY_EXISTS");

  cli.Must({"resume"});
  cli.Must({"publish", "--from", "two"});
  const Json back = cli.MustJson(rollback);
  REQUIRE(back["outcome"] == "repeated");
  REQUIRE(back["from"] == "v2");
  REQUIRE(back["head"] == "v3");
  cli.MustFail({"rollback", "--to", "v1", "--yes", "--id", "back-1"}, 3, "ALREADY_EXISTS");
  REQUIRE(cli.MustJson({"log"}).size() == 4);
}

TEST_CASE("A rollback asks on a terminal") {
  CliFixture cli;
  cli.Init();
  cli.CheckpointWithChanges("one", 9);
  cli.Must({"publish", "--from", "one"});
  ProcessOptions terminal;
  terminal.on_terminal = true;

  terminal.input = "n\n";
  const ProcessResult no = cli.OnStore({"rollback", "--to", "v0"}, terminal);
  INFO(no.err);
  REQUIRE(no.exit_status == 1);
  REQUIRE_THAT(no.err, Contains("from v1 to v0") && Contains("9 of ") && Contains("[y/N]") &&
                           Contains("head stays at v1"));
  REQUIRE(cli.MustJson({"status"})["head"] == "v1");

  terminal.input = "y\n";
  const ProcessResult yes = cli.OnStore({"rollback", "--to", "v0"}, terminal);
  INFO(yes.err);
  REQUIRE(yes.exit_status == 0);
  REQUIRE(cli.MustJson({"status"})["head"] == "v0");
}

TEST_CASE("A rollback elsewhere needs --yes") {
  CliFixture cli;
  cli.Init();
  cli.CheckpointWithChanges("one", 9);
  cli.Must({"publish", "--from", "one"});
  REQUIRE_THAT(cli.MustFail({"rollback", "--to", "v0"}, 3, "FAILED_PRECONDITION"),
               Contains("--yes"));
  REQUIRE(cli.MustJson({"status"})["head"] == "v1");
  REQUIRE_THAT(cli.Must({"rollback", "--to", "head", "--yes"}), Contains("nothing done"));
  REQUIRE(cli.MustJson({"status"})["state"] == "ok");
}

TEST_CASE("Hold refuses publishing and says why") {
  CliFixture cli;
  cli.Init();
  cli.CheckpointWithChanges("one", 9);
  cli.Must({"hold", "-m", "looking into it"});
  REQUIRE_THAT(cli.MustFail({"publish", "--from", "one"}, 3, "FAILED_PRECONDITION"),
               Contains("looking into it"));
  REQUIRE_THAT(cli.Must({"status"}), Contains("hold") && Contains("looking into it"));
  REQUIRE(cli.MustJson({"resume"})["state"] == "ok");
  REQUIRE_THAT(cli.Must({"resume"}), Contains("was not on hold"));
  cli.Must({"publish", "--from", "one"});
}

TEST_CASE("A candidate becomes head when it is promoted") {
  CliFixture cli;
  cli.Init();
  cli.CheckpointWithChanges("one", 9);
  REQUIRE_THAT(cli.Must({"publish", "--from", "one", "--candidate"}),
               Contains("v1 committed on v0 as a candidate; head is v0"));
  REQUIRE_THAT(cli.Must({"log"}), Contains("(candidate)"));
  REQUIRE(cli.MustJson({"status"})["head"] == "v0");
  REQUIRE_THAT(cli.Must({"promote", "v1"}), Contains("Head moved from v0 to v1"));
  REQUIRE(cli.MustJson({"promote", "v1"})["outcome"] == "unchanged");
  REQUIRE_THAT(cli.MustFail({"promote", "v0"}, 3, "FAILED_PRECONDITION"),
               Contains("not a candidate"));
  REQUIRE(cli.MustJson({"log", "--moves", "-n", "1"})[0]["why"] == "promote");
}

TEST_CASE("A version that is marked bad takes force") {
  CliFixture cli;
  cli.Init();
  cli.CheckpointWithChanges("one", 9);
  cli.CheckpointWithChanges("two", 10);
  cli.Must({"publish", "--from", "one"});
  REQUIRE_THAT(cli.Must({"mark", "v1", "bad", "-m", "collapsed"}), Contains("It is head"));
  REQUIRE_THAT(cli.Must({"log"}), Contains("(head, bad)"));
  REQUIRE_THAT(cli.Must({"show", "v1"}), Contains("collapsed"));
  REQUIRE_THAT(cli.MustFail({"publish", "--from", "two"}, 3, "FAILED_PRECONDITION"),
               Contains("bad") && Contains("collapsed"));
  cli.Must({"rollback", "--to", "v0", "--yes"});
  cli.MustFail({"rollback", "--to", "v1", "--yes"}, 3, "FAILED_PRECONDITION");
  const Json refused = cli.MustJson({"log", "--moves", "-n", "1"})[0];
  REQUIRE(refused["outcome"] == "refused");
  REQUIRE(refused["seq"].is_null());
  cli.Must({"rollback", "--to", "v1", "--yes", "--force"});
  cli.Must({"resume"});
  cli.Must({"publish", "--from", "two", "--force"});
  REQUIRE(cli.MustJson({"mark", "v1", "good"})["bad"].is_null());
  REQUIRE(cli.MustJson({"show", "v1"})["bad"].is_null());
}

TEST_CASE("Global options stand before or after the verb, or in the environment") {
  CliFixture cli;
  cli.Init();
  ProcessOptions environment;
  environment.environment["WSTORE_STORE"] = "store";
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"--store", "store", "--json", "status"},
           {"status", "--json", "--store", "store"},
           {"--store", "elsewhere", "status", "--store=store", "--json", "--timeout", "1s"}}) {
    const ProcessResult result = cli.Run(arguments);
    INFO(CliFixture::Describe(arguments, result));
    REQUIRE(result.exit_status == 0);
    REQUIRE(Json::parse(result.out)["head"] == "v0");
  }
  REQUIRE(cli.Run({"status"}, environment).exit_status == 0);
  REQUIRE(cli.Run({"status", "--store", "elsewhere"}, environment).exit_status == 4);
}

TEST_CASE("with --quiet a change prints its version and nothing else") {
  CliFixture cli;
  std::filesystem::create_directory(cli.path("base"));
  WriteFile(cli.path("base/model.safetensors"), NaiveWrite(cli.model(), NamesOf(cli.model())));
  REQUIRE(cli.Run({"--quiet", "init", "store", "--base", "base"}).out == "v0\n");
  cli.CheckpointWithChanges("one", 9);
  REQUIRE(cli.Must({"publish", "--from", "one", "--quiet"}) == "v1\n");
  REQUIRE(cli.Must({"rollback", "--to", "v0", "--yes", "--quiet"}) == "v0\n");
  REQUIRE(cli.Must({"resume", "--quiet"}).empty());
  REQUIRE(cli.Must({"export", "v1", "--out", "out", "--quiet"}).empty());
}

TEST_CASE("What is not a terminal sees no progress and no escape") {
  CliFixture cli;
  cli.Init();
  cli.CheckpointWithChanges("one", 9);
  const ProcessResult result =
      cli.OnStore({"publish", "--from", "one", "-m", "\033[31mred\nand more"});
  REQUIRE(result.exit_status == 0);
  REQUIRE(result.err.empty());
  const std::string log = cli.Must({"log"});
  REQUIRE_FALSE(absl::StrContains(log, "\033"));
  REQUIRE_THAT(log, Contains("\\x1b[31mred ..."));
  REQUIRE(cli.MustJson({"show", "v1"})["message"] == "\033[31mred\nand more");
}

}  // namespace
}  // namespace wstore::testing
