// Verbs against a store that is being served: through its directory, and by address.
#include <chrono>
#include <filesystem>

#include "tests/cli/cli_fixture.h"
#include "tests/support/serve_process.h"

namespace wstore::testing {
namespace {

using Catch::Matchers::Contains;

// `wstore serve` on the fixture's store, and the command without its directory.
struct ServedCli : CliFixture {
  ServedCli() {
    Init();
    Serve();
  }
  void Serve() { server = std::make_unique<ServeProcess>(WSTORE_BINARY, path("store")); }

  // By address alone: as if the store were elsewhere.
  ProcessResult ByAddress(std::vector<std::string> arguments) const {
    std::filesystem::create_directories(path("elsewhere"));
    std::filesystem::remove(path("elsewhere/s"));
    std::filesystem::create_symlink(path("store/wstore.sock"), path("elsewhere/s"));
    arguments.insert(arguments.begin(), {"--server", "unix:elsewhere/s"});
    return Run(arguments);
  }
  Json JsonByAddress(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "--json");
    const ProcessResult result = ByAddress(arguments);
    INFO(Describe(arguments, result));
    REQUIRE(result.exit_status == 0);
    return Json::parse(result.out);
  }

  std::unique_ptr<ServeProcess> server;
};

TEST_CASE("Every verb works on a store that is served, and tells the same as without a server") {
  ServedCli cli;
  const std::string one = cli.CheckpointWithChanges("one.safetensors", 50);
  const std::string two = cli.CheckpointWithChanges("two.safetensors", 70);
  Json published =
      cli.MustJson({"publish", "--from", one, "-m", "step 1", "--meta", "step=1", "--id", "run/1"});
  REQUIRE(published["version"] == "v1");
  REQUIRE(published["head"] == "v1");
  REQUIRE(published["outcome"] == "committed");
  REQUIRE(published["id"] == "run/1");
  REQUIRE(published["elements"] == 50);
  REQUIRE(published["parent"] == "v0");
  published = cli.MustJson({"publish", "--from", one, "-m", "step 1", "--id", "run/1"});
  REQUIRE(published["outcome"] == "repeated");
  cli.MustFail({"publish", "--from", two, "--id", "run/1"}, 3, "ALREADY_EXISTS");
  REQUIRE_THAT(cli.MustFail({"publish", "--from", two, "--parent", "v0"}, 3, "FAILED_PRECONDITION"),
               Contains("v0") && Contains("v1"));
  // By address the old bits come over the wire.
  published = cli.JsonByAddress({"publish", "--from", two, "-m", "step 2"});
  REQUIRE(published["version"] == "v2");
  REQUIRE_THAT(cli.Must({"publish", "--from", two}), Contains("No change"));
  published = cli.MustJson({"publish", "--from", one, "--candidate"});
  REQUIRE(published["version"] == "v3");
  REQUIRE(published["head"] == "v2");
  REQUIRE(cli.MustJson({"promote", "v3"})["head"] == "v3");

  REQUIRE(cli.MustJson({"tag", "prod", "v1"})["version"] == "v1");
  REQUIRE(cli.MustJson({"tag"})[0]["name"] == "prod");
  REQUIRE(cli.MustJson({"mark", "v2", "bad", "-m", "noisy"})["bad"] == "noisy");
  const Json dry = cli.MustJson({"rollback", "--to", "prod", "--dry-run"});
  REQUIRE(dry["outcome"] == "dry-run");
  REQUIRE(dry["to"] == "v1");
  REQUIRE(dry["elements"] == 0);
  cli.MustFail({"rollback", "--to", "v2", "--yes"}, 3, "FAILED_PRECONDITION");
  cli.MustFail({"rollback", "--to", "v9", "--yes"}, 4, "NOT_FOUND");
  Json rolled = cli.MustJson({"rollback", "--to", "v0", "--yes", "-m", "collapsed", "--id", "op"});
  REQUIRE(rolled["head"] == "v0");
  REQUIRE(rolled["from"] == "v3");
  REQUIRE(rolled["hold"]["reason"].is_string());
  rolled = cli.MustJson({"rollback", "--to", "v0", "--yes", "--id", "op"});
  REQUIRE(rolled["outcome"] == "repeated");
  REQUIRE(cli.MustJson({"status"})["state"] == "hold");
  cli.MustFail({"publish", "--from", two}, 3, "FAILED_PRECONDITION");
  REQUIRE(cli.MustJson({"resume"})["state"] == "ok");
  REQUIRE(cli.MustJson({"hold", "-m", "lunch"})["hold"]["reason"] == "lunch");
  cli.Must({"resume"});
  REQUIRE(cli.MustJson({"rollback", "--to", "v2", "--yes", "--force"})["head"] == "v2");
  cli.Must({"resume"});

  const Json tx = cli.MustJson({"tx", "show", "run/1"});
  REQUIRE(tx["version"] == "v1");
  cli.MustFail({"tx", "show", "never"}, 4, "NOT_FOUND");
  cli.MustFail({"tx", "abort", "never"}, 4, "NOT_FOUND");
  REQUIRE(cli.MustJson({"tx", "list"}).empty());
  REQUIRE(cli.MustJson({"workers"}).empty());
  cli.MustFail({"evict", "nobody"}, 4, "NOT_FOUND");
  REQUIRE(cli.MustJson({"status"})["workers"].empty());
  REQUIRE(cli.MustJson({"verify", "--all"})["ok"] == true);
  REQUIRE(cli.MustJson({"verify", "--workers"})["checked"].empty());
  cli.Must({"export", "v2", "--out", "out"});
  REQUIRE((cli.ReadCheckpoint("out/model.safetensors") == cli.ReadCheckpoint(two)));
  REQUIRE_THAT(cli.ByAddress({"verify"}).err, Contains("--store DIR"));
  REQUIRE(cli.ByAddress({"export", "v2", "--out", "out2"}).exit_status == 3);

  // What is looked at is the same when nobody serves it.
  const std::vector<std::vector<std::string>> looking = {
      {"log"},          {"log", "-n", "2"}, {"log", "--moves"},     {"show", "prod"},
      {"show", "head"}, {"show", "v0"},     {"diff", "v0", "head"}, {"diff", "v2", "v1"},
      {"tag"}};
  std::vector<Json> served;
  for (const auto& verb : looking) {
    served.push_back(cli.MustJson(verb));
    REQUIRE(cli.JsonByAddress(verb) == served.back());
  }
  const std::string text = cli.Must({"log"});
  REQUIRE(cli.server->End(SIGTERM) == 0);
  for (size_t i = 0; i < looking.size(); ++i) REQUIRE(cli.MustJson(looking[i]) == served[i]);
  REQUIRE(cli.Must({"log"}) == text);
  REQUIRE(cli.MustJson({"verify", "--all", "--base"})["ok"] == true);
  const Json moves = cli.MustJson({"log", "--moves"});
  REQUIRE_THAT(moves[0]["peer"].get<std::string>(), Contains("uid "));
  REQUIRE(cli.MustJson({"show", "v1"})["verified"] == "materialised");
}

TEST_CASE("A patch file of new values goes through the server") {
  ServedCli cli;
  const auto little = [](int64_t value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  const NaiveTensors file = {{"indices:layer.0.codes", {"I64", {2}, little(3) + little(9)}},
                             {"values:layer.0.codes", {"I8", {2}, std::string("\x7f\x01", 2)}}};
  const std::map<std::string, std::string> metadata = {
      {"format", "wstore-patch-1"}, {"shapes", R"({"layer.0.codes": [70000]})"}, {"parent", "v0"}};
  WriteFile(cli.path("patch"), NaiveWrite(file, NamesOf(file), metadata));
  NaiveTensors next = cli.model();
  next.at("layer.0.codes").bytes[3] = '\x7f';
  next.at("layer.0.codes").bytes[9] = '\x01';
  REQUIRE(cli.MustJson({"publish", "--patch", "patch"})["version"] == "v1");
  cli.Must({"export", "head", "--out", "out"});
  REQUIRE((cli.ReadCheckpoint("out/model.safetensors") == next));
  REQUIRE_THAT(cli.MustFail({"publish", "--patch", "patch"}, 3, "FAILED_PRECONDITION"),
               Contains("v0") && Contains("v1"));
}

TEST_CASE("The trainer of docs/client.md publishes, and stops where head was moved") {
  ServedCli cli;
  const std::string trainer =
      std::filesystem::path(WSTORE_BINARY).parent_path() / "examples/trainer";
  const std::string address = "unix:" + cli.path("store/wstore.sock");
  ProcessResult result = RunProcess({trainer, address, "run-7", "3"});
  INFO(result.err);
  REQUIRE(result.exit_status == 0);
  REQUIRE(result.out == "v1\nv2\nv3\n");
  REQUIRE(cli.MustJson({"show", "head"})["message"] == "step 3");
  cli.Must({"rollback", "--to", "v1", "--yes"});
  result = RunProcess({trainer, address, "run-8", "4"});
  REQUIRE(result.exit_status == 3);
}

TEST_CASE("A server that is not there, does not answer, or is elsewhere") {
  ServedCli cli;
  REQUIRE_THAT(cli.Run({"--server", "unix:none.sock", "status"}).err, Contains("none.sock"));
  REQUIRE(cli.Run({"--server", "unix:none.sock", "status"}).exit_status == 6);
  REQUIRE(cli.Run({"--server", "nonsense", "status"}).exit_status == 3);
  REQUIRE(cli.Run({"--server", "unix:x", "--store", "store", "status"}).exit_status == 2);
  ProcessOptions environment;
  environment.environment["WSTORE_SERVER"] = "unix:" + cli.path("store/wstore.sock");
  REQUIRE(cli.Run({"log"}, environment).exit_status == 0);

  cli.server->Send(SIGSTOP);
  const ProcessResult stopped = cli.OnStore({"--timeout", "500ms", "status"});
  cli.server->Send(SIGCONT);
  INFO(stopped.err);
  REQUIRE(stopped.exit_status == 6);
  cli.Must({"status"});

  // Without its server the store is opened here; what needs one says so. A socket that a killed
  // server left is no server.
  cli.server->End(SIGKILL);
  cli.Must({"status"});
  for (const std::vector<std::string>& verb :
       {std::vector<std::string>{"workers"}, {"tx", "list"}, {"evict", "x"}}) {
    REQUIRE_THAT(cli.MustFail(verb, 3, "FAILED_PRECONDITION"), Contains("wstore serve"));
  }
  const std::string one = cli.CheckpointWithChanges("one.safetensors", 5);
  REQUIRE_THAT(
      cli.MustFail({"publish", "--from", one, "--policy", "each"}, 3, "FAILED_PRECONDITION"),
      Contains("--policy"));
  cli.Must({"publish", "--from", one});
  cli.Serve();
  REQUIRE(cli.MustJson({"status"})["head"] == "v1");
}

TEST_CASE("A publish onto what is served and not durable yet says so in the time it is given") {
  CliFixture cli;
  cli.Init();
  const ServeProcess server(WSTORE_BINARY, cli.path("store"),
                            {"--lease", "300ms", "--skew", "100ms", "--apply-deadline", "1s",
                             "--hold-deadline", "2s", "--hang-at", "syncing"});
  const std::string one = cli.CheckpointWithChanges("one.safetensors", 50);
  const std::string two = cli.CheckpointWithChanges("two.safetensors", 70);
  const Json published = cli.MustJson({"publish", "--from", one, "--durability", "async"});
  REQUIRE(published["outcome"] == "served-not-durable");
  REQUIRE(published["version"] == "v1");
  const auto refused = [&](const std::vector<std::string>& arguments) {
    const auto begun = std::chrono::steady_clock::now();
    const ProcessResult result = cli.Run(arguments);
    INFO(result.err);
    REQUIRE(result.exit_status == 6);
    REQUIRE_THAT(result.err, Contains("v1") && Contains("not durable yet"));
    REQUIRE(std::chrono::steady_clock::now() - begun < std::chrono::seconds(10));
  };
  // Its bits come from the store's files, as far as they go, or over the wire.
  refused({"--store", "store", "--timeout", "1s", "publish", "--from", two});
  refused({"--store", "store", "--timeout", "1s", "publish", "--from", two, "--parent", "v1"});
  refused({"--server", "unix:store/wstore.sock", "--timeout", "1s", "publish", "--from", two});
}

}  // namespace
}  // namespace wstore::testing
