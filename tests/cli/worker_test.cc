// Real processes: a server, and workers that follow it.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>

#include "tests/cli/cli_fixture.h"

namespace wstore::testing {
namespace {

using namespace std::chrono_literals;

// Runs beside the test, its output in a file. Killed at the latest when this goes.
class Background {
 public:
  Background(const CliFixture& cli, const std::string& name, std::vector<std::string> arguments)
      : out_(cli.path(name + ".out")) {
    arguments.insert(arguments.begin(), {WSTORE_BINARY, "--json", "--store", cli.path("store")});
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const std::string err = cli.path(name + ".err");
    posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    REQUIRE(posix_spawn(&pid_, WSTORE_BINARY, &actions, nullptr, argv.data(), environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Background() {
    if (pid_ > 0) End(SIGKILL);
  }

  // The exit status; 128 + the signal if it was killed.
  int End(int number) {
    kill(pid_, number);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  // Waits for a line that is so, among those from the `from`th on; returns its number.
  size_t Await(const std::function<bool(const Json&)>& is_so, size_t from = 0) {
    const auto deadline = std::chrono::steady_clock::now() + 60s;
    for (;;) {
      const std::vector<Json> lines = Lines();
      for (size_t i = from; i < lines.size(); ++i) {
        if (is_so(lines[i])) return i;
      }
      INFO(ReadFile(out_));
      REQUIRE(std::chrono::steady_clock::now() < deadline);
      std::this_thread::sleep_for(10ms);
    }
  }
  size_t AwaitServing(const std::string& version, size_t from = 0) {
    return Await(
        [&](const Json& line) { return line["event"] == "serving" && line["version"] == version; },
        from);
  }
  std::vector<Json> Lines() const {
    std::vector<Json> lines;
    std::string text = ReadFile(out_);
    for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n')) {
      const Json line = Json::parse(text.substr(0, end), nullptr, false);
      if (line.is_object()) lines.push_back(line);
      text.erase(0, end + 1);
    }
    return lines;
  }

 private:
  const std::string out_;
  pid_t pid_ = -1;
};

// Every tensor of the fixture's model whole, in a buffer of its own, as layout text.
std::string WholeLayout(const NaiveTensors& model) {
  Json layout = {{"format", "wstore layout"}, {"version", 1}};
  layout["buffers"] = Json::array();
  layout["placements"] = Json::array();
  for (const auto& [name, tensor] : model) {
    layout["buffers"].push_back({{"name", name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}});
    const bool is_wide = tensor.dtype == "BF16" || tensor.dtype == "F32" || tensor.dtype == "I64";
    const size_t width = !is_wide ? 1 : tensor.dtype == "BF16" ? 2 : tensor.dtype == "F32" ? 4 : 8;
    if (tensor.bytes.empty()) continue;
    const Json loops = {{tensor.bytes.size() / width, 1, 1}};
    layout["placements"].push_back(
        {{"tensor", name}, {"buffer", name}, {"from", 0}, {"to", 0}, {"loops", loops}});
  }
  return layout.dump();
}

TEST_CASE("workers follow a served store, are killed, and come back") {
  CliFixture cli;
  cli.Init();
  WriteFile(cli.path("layout.json"), WholeLayout(cli.model()));
  Background server(cli, "serve", {"serve", "--lease", "1s", "--skew", "200ms"});
  const auto start = [&](const std::string& name, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"worker", "--layout",       cli.path("layout.json"),
                                          "--base", cli.path("base"), "--instance",
                                          name,     "--timeout",      "30s"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return std::make_unique<Background>(cli, name, arguments);
  };
  const auto one = start("one");
  auto two = start("two");
  one->AwaitServing("v0");
  two->AwaitServing("v0");

  const std::string first = cli.CheckpointWithChanges("first.safetensors", 50);
  REQUIRE(cli.MustJson({"publish", "--from", first})["version"] == "v1");
  const size_t at = one->AwaitServing("v1");
  two->AwaitServing("v1");
  REQUIRE(one->Lines()[at]["pause_ms"].is_number());
  size_t changes = 0;
  for (const Json& line : one->Lines()) {
    if (line["event"] != "change") continue;
    ++changes;
    REQUIRE(line["from"] == "v0");
    REQUIRE(line["elements"] == 50);
    REQUIRE(line["why"] == "publish");
  }
  REQUIRE(changes == 1);
  REQUIRE(cli.MustJson({"verify", "--workers"})["ok"] == true);

  REQUIRE(two->End(SIGKILL) == 128 + SIGKILL);
  REQUIRE(cli.MustJson({"rollback", "--to", "v0", "--yes"})["head"] == "v0");
  one->AwaitServing("v0", at);
  two = start("two");
  two->AwaitServing("v0");
  const Json verified = cli.MustJson({"verify", "--workers"});
  REQUIRE(verified["checked"] == Json({"one/0", "two/0"}));

  // One that stops at a step of a transaction is not waited for for ever.
  cli.Must({"resume"});
  const auto three = start("three", {"--at-step", "paused:kill"});
  three->AwaitServing("v0");
  REQUIRE(cli.MustJson({"publish", "--from", first})["version"] == "v2");
  one->AwaitServing("v2");
  two->AwaitServing("v2");

  REQUIRE(two->End(SIGTERM) == 0);
  REQUIRE(two->Lines().back()["event"] == "left");
  REQUIRE(server.End(SIGTERM) == 0);
  // Without a server: it stops serving by itself.
  one->Await([](const Json& line) { return line["event"] == "paused"; }, at);
}

TEST_CASE("a worker that cannot start says why") {
  CliFixture cli;
  cli.Init();
  WriteFile(cli.path("layout.json"), WholeLayout(cli.model()));
  const auto fails = [&](const std::vector<std::string>& arguments, int status,
                         const std::string& text) {
    std::vector<std::string> all = {"worker"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const ProcessResult result = cli.OnStore(all);
    INFO(result.err);
    REQUIRE(result.exit_status == status);
    REQUIRE_THAT(result.err, Catch::Matchers::Contains(text));
  };
  fails({}, 2, "--layout");
  fails({"--layout", "layout.json", "--tp", "2/2"}, 2, "--tp");
  fails({"--layout", "layout.json"}, 6, "wstore.sock");
  Background server(cli, "serve", {"serve"});
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (!std::filesystem::exists(cli.path("store/wstore.sock"))) {
    REQUIRE(std::chrono::steady_clock::now() < deadline);
    std::this_thread::sleep_for(10ms);
  }
  fails({"--layout", "nowhere.json"}, 4, "nowhere.json");
  fails({"--layout", "layout.json", "--device", "gpu"}, 3, "cuda:N");
  // Its config.json is of no architecture that there are rules for.
  fails({"--layout", "base"}, 3, "base");
  REQUIRE(server.End(SIGTERM) == 0);
}

}  // namespace
}  // namespace wstore::testing
