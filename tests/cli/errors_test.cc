// What is refused, with which exit status, and that nothing has changed then.
#include <fstream>

#include "tests/cli/cli_fixture.h"

namespace wstore::testing {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("A08 A checkpoint with unknown tensors is refused whole and all of them are listed") {
  CliFixture cli;
  cli.Init();
  NaiveTensors tensors = cli.Changed(cli.model(), "layer.0.codes", 5);
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"embed.weight", "model.embed.weight"}, {"head.bias", "head.bias "}}) {
    auto node = tensors.extract(from);
    node.key() = to;
    tensors.insert(std::move(node));
  }
  cli.Checkpoint("bad", tensors);
  const std::string message = cli.MustFail({"publish", "--from", "bad"}, 3, "INVALID_ARGUMENT");
  REQUIRE_THAT(message, Contains("model.embed.weight") && Contains("head.bias "));
  REQUIRE(cli.MustJson({"log"}).size() == 1);
  REQUIRE(cli.MustJson({"status"})["head"] == "v0");

  tensors = cli.model();
  tensors.erase("embed.weight");
  tensors.erase("steps");
  cli.Checkpoint("less", tensors);
  REQUIRE_THAT(cli.MustFail({"publish", "--from", "less"}, 3, "INVALID_ARGUMENT"),
               Contains("embed.weight") && Contains("steps"));
}

TEST_CASE("A10 A checkpoint with other dtypes is refused, also where sizes agree") {
  CliFixture cli;
  cli.Init();
  NaiveTensors tensors = cli.model();
  tensors["embed.weight"].dtype = "F16";  // as many bytes
  tensors["head.bias"] = {"BF16", {64}, std::string(128, 'x')};
  cli.Checkpoint("bad", tensors);
  REQUIRE_THAT(cli.MustFail({"publish", "--from", "bad"}, 3, "INVALID_ARGUMENT"),
               Contains("embed.weight") && Contains("F16") && Contains("BF16") &&
                   Contains("head.bias") && Contains("F32"));
  tensors = cli.model();
  tensors["embed.weight"] = {"F32", {300, 64}, std::string(300 * 64 * 4, 'x')};
  cli.Checkpoint("wide", tensors);
  REQUIRE_THAT(cli.MustFail({"publish", "--from", "wide"}, 3, "INVALID_ARGUMENT"),
               Contains("embed.weight") && Contains("F32") && Contains("BF16"));
  REQUIRE(cli.MustJson({"log"}).size() == 1);
}

TEST_CASE("A21 A stale parent is refused with the version that the store holds") {
  CliFixture cli;
  cli.Init();
  for (int i = 1; i <= 3; ++i) {
    const std::string name = cli.CheckpointWithChanges("c" + std::to_string(i), 10 * i);
    cli.Must({"publish", "--from", name, "--id", "step-" + std::to_string(i)});
  }
  // A trainer that restarted and counts from nothing.
  REQUIRE_THAT(
      cli.MustFail({"publish", "--from", "c1", "--parent", "v0"}, 3, "FAILED_PRECONDITION"),
      Contains("v0") && Contains("v3"));
  // The last version again: the same content is no new version, with or without its id.
  REQUIRE(cli.MustJson({"publish", "--from", "c3", "--id", "step-3"})["outcome"] == "repeated");
  REQUIRE(cli.MustJson({"publish", "--from", "c3"})["outcome"] == "unchanged");
  REQUIRE(cli.MustJson({"publish", "--from", "c3", "--id", "step-3"})["version"] == "v3");
  // Other content under that id is a conflict.
  cli.MustFail({"publish", "--from", "c1", "--id", "step-3"}, 3, "ALREADY_EXISTS");
  REQUIRE(cli.MustJson({"log"}).size() == 4);

  // Numbers go on after a rollback, which the log shows.
  cli.Must({"rollback", "--to", "v1", "--yes"});
  cli.Must({"resume"});
  REQUIRE(cli.MustJson({"publish", "--from", "c2"})["version"] == "v4");
  const Json moves = cli.MustJson({"log", "--moves"});
  REQUIRE(moves[1]["why"] == "rollback");
  REQUIRE(moves[1]["from"] == "v3");
  REQUIRE(moves[1]["to"] == "v1");
}

TEST_CASE("Usage errors exit with 2") {
  CliFixture cli;
  cli.Init();
  cli.CheckpointWithChanges("one", 5);
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"pubish", "--from", "one"},
      {"publish"},
      {"publish", "--from"},
      {"publish", "--from", "one", "--from", "one"},
      {"publish", "--from", "one", "extra"},
      {"publish", "--from", "one", "--patch", "one"},
      {"publish", "--from", "one", "--meta", "novalue"},
      {"publish", "--from", "one", "--meta", "a=1", "--meta", "a=2"},
      {"publish", "--frm", "one"},
      {"rollback", "--yes"},
      {"log", "-n", "0"},
      {"log", "-n", "few"},
      {"log", "show", "v0"},
      {"show"},
      {"diff", "v0"},
      {"tag", "name"},
      {"mark", "v0"},
      {"mark", "v0", "ugly"},
      {"verify", "v0", "--all"},
      {"export", "v0"},
      {"export", "v0", "--out", "out", "--shard-size", "0"},
      {"export", "v0", "--out", "out", "--shard-size", "-5GB"},
      {"export", "v0", "--out", "out", "--shard-size", "5 parsecs"},
      {"completion", "csh"},
      {"status", "--timeout", "soon"},
      {"init", "other", "--base", "base"},  // beside --store
      {"init", "other"},
  };
  for (const std::vector<std::string>& arguments : wrong) {
    cli.MustFail(arguments, 2, "USAGE");
  }
  REQUIRE(cli.MustJson({"log"}).size() == 1);
  REQUIRE_FALSE(std::filesystem::exists(cli.path("out")));
  REQUIRE_THAT(cli.OnStore({"pubish"}).err, Contains("did you mean \"publish\"?"));

  const ProcessResult unnamed = cli.Run({"status"});
  REQUIRE(unnamed.exit_status == 2);
  REQUIRE_THAT(unnamed.err, Contains("--store DIR") && Contains("WSTORE_STORE"));
}

TEST_CASE("What does not exist exits with 4") {
  CliFixture cli;
  cli.Init();
  cli.Must({"tag", "prod", "v0"});
  const std::vector<std::vector<std::string>> missing = {
      {"show", "v7"},
      {"show", "proud"},
      {"diff", "v0", "v7"},
      {"export", "v7", "--out", "out"},
      {"verify", "v7"},
      {"tag", "new", "v7"},
      {"rollback", "--to", "v7", "--yes"},
      {"rollback", "--to", "v7", "--dry-run"},
      {"publish", "--from", "nowhere"},
      {"publish", "--from", "base", "--parent", "v7"},
  };
  for (const std::vector<std::string>& arguments : missing) {
    cli.MustFail(arguments, 4, "NOT_FOUND");
  }
  REQUIRE_THAT(cli.OnStore({"show", "proud"}).err, Contains("prod"));
  for (const char* verb : {"log", "status", "resume", "verify"}) {
    const ProcessResult result = cli.Run({"--store", "nowhere", verb, "--json"});
    INFO(result.err);
    REQUIRE(result.exit_status == 4);
    REQUIRE(Json::parse(result.out)["error"]["code"] == "NOT_FOUND");
  }
  REQUIRE(cli.Run({"init", "new", "--base", "nowhere"}).exit_status == 4);
}

TEST_CASE("Refusals exit with 3") {
  CliFixture cli;
  cli.Init();
  REQUIRE(cli.Run({"init", "store", "--base", "base"}).exit_status == 3);
  cli.MustFail({"tag", "head", "v0"}, 3, "INVALID_ARGUMENT");
  cli.MustFail({"tag", "bad name", "v0"}, 3, "INVALID_ARGUMENT");
  cli.MustFail({"export", "v0", "--out", "base"}, 3, "FAILED_PRECONDITION");
  WriteFile(cli.path("cut"), "12345");
  cli.MustFail({"publish", "--from", "cut"}, 3, "INVALID_ARGUMENT");
}

// Turns a bit in the middle of every file of the store that holds records or payload.
void Damage(const std::string& directory) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    const std::string extension = entry.path().extension().string();
    if (!entry.is_regular_file() || (extension != ".log" && extension != ".sst")) continue;
    std::string bytes = ReadFile(entry.path().string());
    if (bytes.empty()) continue;
    bytes[bytes.size() / 2] ^= 0x10;
    WriteFile(entry.path().string(), bytes);
  }
}

TEST_CASE("A damaged store exits with 5, and status and verify still answer") {
  CliFixture cli;
  cli.Init();
  cli.CheckpointWithChanges("one", 500);
  cli.Must({"publish", "--from", "one"});
  Damage(cli.path("store"));

  cli.MustFail({"log"}, 5, "DATA_LOSS");
  cli.MustFail({"publish", "--from", "one"}, 5, "DATA_LOSS");
  cli.MustFail({"export", "v1", "--out", "out"}, 5, "DATA_LOSS");
  const Json status = cli.MustJson({"status"});
  REQUIRE(status["state"] == "damaged");
  REQUIRE(status["head"].is_null());
  REQUIRE_FALSE(status["detail"].get<std::string>().empty());
  REQUIRE_THAT(cli.Must({"status", "--check"}, 5), Contains("damaged"));
  REQUIRE(cli.MustJson({"status", "--check"}, 5)["state"] == "damaged");
  const Json verify = cli.MustJson({"verify"}, 5);
  REQUIRE(verify["ok"] == false);
  REQUIRE(verify["problems"].size() == 1);
  cli.Must({"verify"}, 5);
}

TEST_CASE("verify --base finds a changed base by its tensor") {
  CliFixture cli;
  cli.Init();
  std::string bytes = ReadFile(cli.path("base/model.safetensors"));
  bytes.back() ^= 1;  // "steps" comes last
  WriteFile(cli.path("base/model.safetensors"), bytes);
  const Json verify = cli.MustJson({"verify", "--base"}, 5);
  REQUIRE(verify["ok"] == false);
  REQUIRE(verify["problems"][0]["tensor"] == "steps");
  REQUIRE_THAT(cli.Must({"verify", "--base"}, 5), Contains("steps") && Contains("found"));
}

TEST_CASE("Output that cannot be written is an error") {
  CliFixture cli;
  cli.Init();
  const ProcessResult result = RunProcess(
      {"/bin/sh", "-c",
       std::string(WSTORE_BINARY) + " --store " + cli.path("store") + " log > /dev/full"});
  REQUIRE(result.exit_status == 1);
  REQUIRE_THAT(result.err, Contains("could not be written"));
}

}  // namespace
}  // namespace wstore::testing
