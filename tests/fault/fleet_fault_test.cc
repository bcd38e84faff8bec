// Whole processes are killed and stopped at every step of a publish. Whatever happens, no two ranks
// serve different versions, what was acknowledged stays, and all come to one version, bit for bit.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <set>
#include <thread>

#include "tests/fault/fault_fixture.h"
#include "tests/fault/proxy.h"
#include "tests/support/naive_safetensors.h"
#include "tests/support/process.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"
#include "wstore/client.h"
#include "wstore/publisher.h"

namespace wstore::testing {
namespace {

const std::vector<std::string> kRankSteps = {"staged",   "voted",   "paused",
                                             "applying", "applied", "decided"};
const std::vector<std::string> kServerSteps = {"reserving", "completing", "applying",
                                               "recording", "recorded",   "answering"};

enum class Victim { kRank, kServer, kTrainer };

struct Scenario {
  Victim victim;
  std::string step;
  int signal;
};

std::string Name(const Scenario& scenario) {
  const char* const who = scenario.victim == Victim::kRank     ? "rank"
                          : scenario.victim == Victim::kServer ? "server"
                                                               : "trainer";
  return std::string(scenario.signal == SIGKILL ? "SIGKILL" : "SIGSTOP") + " of the " + who +
         " at " + scenario.step;
}

// Starts the victim anew, so that it stops at the step.
void Arm(FaultFixture& fixture, const Scenario& scenario) {
  LocalFleet& fleet = fixture.fleet();
  if (scenario.victim == Victim::kRank) {
    REQUIRE_OK(fleet.StartRank("b", 1, {"--at-step", scenario.step + ":stop"}));
    REQUIRE_OK(fleet.AwaitServing("b", 1, kWait));
  } else {
    // A trainer is killed while the server stands still at the step.
    fleet.server().Signal(SIGTERM);
    REQUIRE(fleet.server().Wait(kWait) == 0);
    REQUIRE_OK(fleet.StartServer({"--stop-at", scenario.step}));
  }
  fixture.AwaitCurrent(fixture.Head());
}

void RunScenario(FaultFixture& fixture, const Scenario& scenario, const std::string& id,
                 std::mt19937_64& random) {
  LocalFleet& fleet = fixture.fleet();
  Arm(fixture, scenario);
  const std::string checkpoint = fixture.NextCheckpoint();
  std::unique_ptr<ChildProcess> trainer = fixture.StartPublish(checkpoint, id);
  ChildProcess& stopped = scenario.victim == Victim::kRank ? fleet.rank("b", 1) : fleet.server();
  REQUIRE(stopped.WaitStopped(kWait));

  const auto pause = std::chrono::milliseconds(random() % 2500);
  ChildProcess& victim = scenario.victim == Victim::kTrainer ? *trainer : stopped;
  victim.Signal(scenario.signal);
  if (scenario.victim == Victim::kTrainer) stopped.Signal(SIGCONT);
  std::this_thread::sleep_for(pause);
  if (scenario.signal == SIGSTOP) {
    victim.Signal(SIGCONT);
  } else if (scenario.victim == Victim::kRank) {
    REQUIRE_OK(fleet.StartRank("b", 1));
  } else if (scenario.victim == Victim::kServer) {
    REQUIRE_OK(fleet.StartServer());
  }
  // It ends within its deadline, whatever became of the others.
  const std::optional<int> status = trainer->Wait(12 * kSecond);
  INFO(ReadFile(trainer->options().out_path));
  REQUIRE(status.has_value());
  if (victim.pid() != trainer->pid()) {
    REQUIRE((*status == 0 || *status == kUnavailable || *status == kAborted));
  }
  fixture.PublishUntilCommitted(checkpoint, id);
  // Until the lease of the one that was killed has ended, it counts as current.
  if (scenario.victim == Victim::kRank) REQUIRE_OK(fleet.AwaitServing("b", 1, kWait));
}

void RunScenarios(const std::vector<Scenario>& scenarios, std::mt19937_64& random) {
  FaultFixture fixture;
  std::set<std::string> ids;
  for (const Scenario& scenario : scenarios) {
    const std::string id = "publish-" + std::to_string(ids.size());
    INFO(Name(scenario) << ", " << id);
    RunScenario(fixture, scenario, id, random);
    ids.insert(id);
    fixture.RequireWhole(ids);
  }
}

std::vector<Scenario> AllScenarios() {
  std::vector<Scenario> all;
  for (const int signal : {SIGKILL, SIGSTOP}) {
    for (const std::string& step : kRankSteps) all.push_back({Victim::kRank, step, signal});
    for (const std::string& step : kServerSteps) {
      all.push_back({Victim::kServer, step, signal});
      all.push_back({Victim::kTrainer, step, signal});
    }
  }
  return all;
}

TEST_CASE("Processes that are killed or stopped in the middle of a publish harm nothing") {
  std::mt19937_64 random(TestSeed("fleet faults"));
  std::vector<Scenario> scenarios = AllScenarios();
  std::shuffle(scenarios.begin(), scenarios.end(), random);
  scenarios.resize(6);
  RunScenarios(scenarios, random);
}

TEST_CASE("Every process at every step, killed and stopped", "[.][long][steps]") {
  std::mt19937_64 random(TestSeed("all fleet faults"));
  RunScenarios(AllScenarios(), random);
}

TEST_CASE("A trainer goes on within moments once its server is back") {
  FaultFixture fixture;
  LocalFleet& fleet = fixture.fleet();
  Arm(fixture, {Victim::kServer, "completing", SIGKILL});
  const std::string checkpoint = fixture.NextCheckpoint();
  const auto trainer = fixture.StartPublish(checkpoint, "once");
  REQUIRE(fleet.server().WaitStopped(kWait));
  fleet.server().Signal(SIGKILL);
  std::this_thread::sleep_for(std::chrono::milliseconds(600));  // it tries, and finds nobody
  REQUIRE_OK(fleet.StartServer());
  const auto ready = std::chrono::steady_clock::now();
  REQUIRE(trainer->Wait(12 * kSecond) == 0);
  REQUIRE(std::chrono::steady_clock::now() - ready < std::chrono::seconds(3));
  fixture.RequireWhole({"once"});
}

// What gRPC does with readers that are slower than the server must not keep the process: it took up
// to ten seconds, in about one run of this in three.
TEST_CASE("A server that is stopped leaves at once, whatever was read from it just now") {
  constexpr int kReaders = 12;
  constexpr uint64_t kBytes = uint64_t{96} << 20;
  const TempDir directory;
  std::filesystem::create_directory(directory / "checkpoint");
  NaiveTensors tensors;
  tensors["large"] = {"U8", {kBytes}, std::string(kBytes, 'x')};
  WriteFile(directory / "checkpoint/model.safetensors", NaiveWrite(tensors, {"large"}));
  LocalFleet::Options options;
  options.program = WSTORE_BINARY;
  options.directory = directory.path();
  options.checkpoint = directory / "checkpoint";
  options.server_arguments = {"--lease", "500ms", "--skew", "200ms"};
  const auto fleet = LocalFleet::Create(options);
  REQUIRE_OK(fleet);
  REQUIRE_OK((*fleet)->StartServer());
  const std::string address = "unix:" + (*fleet)->store_path() + "/wstore.sock";
  for (int i = 0; i < kReaders; ++i) {
    const auto client = Client::Connect({address, {}, false}, "reader");
    REQUIRE_OK(client);
    REQUIRE_OK(Publisher::Start(*client, {}, Deadline::After(kWait)));
  }
  const auto stopped = std::chrono::steady_clock::now();
  (*fleet)->server().Signal(SIGTERM);
  REQUIRE((*fleet)->server().Wait(kWait) == 0);
  REQUIRE(std::chrono::steady_clock::now() - stopped < std::chrono::seconds(4));
}

TEST_CASE("E03 a stopped rank is fenced once, then delays nobody, and catches up when it goes on") {
  FaultFixture fixture;
  LocalFleet& fleet = fixture.fleet();
  std::set<std::string> ids;
  const auto publish = [&] {
    const std::string id = "publish-" + std::to_string(ids.size());
    fixture.PublishUntilCommitted(fixture.NextCheckpoint(), id);
    ids.insert(id);
  };
  publish();
  fleet.rank("b", 0).Signal(SIGSTOP);
  publish();  // waits for the end of b's lease
  constexpr size_t kBeside = 20;
  for (size_t i = 0; i < kBeside; ++i) publish();
  // From begin to decision, as the server saw it: newest first.
  auto moves = fleet.Must({"log", "--moves"});
  REQUIRE_OK(moves);
  std::vector<int64_t> times_ms;
  for (const nlohmann::json& move : *moves) {
    if (move["outcome"] == "committed" && times_ms.size() < kBeside) {
      times_ms.push_back(move["duration_ms"]);
    }
  }
  std::nth_element(times_ms.begin(), times_ms.begin() + kBeside / 2, times_ms.end());
  // Its lease and the skew are 0.7 s: nobody waits for it again.
  INFO(moves->dump(1));
  REQUIRE(times_ms[kBeside / 2] < 700);
  REQUIRE(PeakBytes(fleet.server().pid()) < uint64_t{1} << 30);
  auto workers = fleet.Must({"workers"});
  REQUIRE_OK(workers);
  INFO(workers->dump(1));
  for (const nlohmann::json& worker : *workers) {
    const bool is_a = worker["instance"] == "a";
    REQUIRE(is_a == (worker["state"] == "current"));
  }
  fleet.rank("b", 0).Signal(SIGCONT);
  fixture.RequireWhole(ids);
}

TEST_CASE("An asynchronous publish that a power loss takes away is taken back by every rank") {
  FaultFixture fixture;
  LocalFleet& fleet = fixture.fleet();
  fleet.server().Signal(SIGTERM);
  REQUIRE(fleet.server().Wait(kWait) == 0);
  REQUIRE_OK(fleet.StartServer({"--stop-at", "recording", "--hang-at", "syncing"}));
  fixture.AwaitCurrent("v0");

  const std::string checkpoint = fixture.NextCheckpoint();
  const auto trainer = fixture.StartPublish(checkpoint, "async", {"--durability", "async"});
  // All that is synced by now is what will be on the disk after the loss.
  REQUIRE(fleet.server().WaitStopped(kWait));
  const std::string disk = fleet.store_path() + "-disk";
  REQUIRE(RunProcess({"cp", "-a", fleet.store_path(), disk}).exit_status == 0);
  fleet.server().Signal(SIGCONT);
  const std::optional<int> told = trainer->Wait(12 * kSecond);
  const std::string answer = ReadFile(trainer->options().out_path);
  INFO(answer);
  REQUIRE(told == 0);
  const nlohmann::json published = nlohmann::json::parse(answer);
  REQUIRE(published["outcome"] == "served-not-durable");
  REQUIRE(published["version"] == "v1");
  fixture.AwaitCurrent("v1");
  auto status = fleet.Must({"status"});
  REQUIRE_OK(status);
  REQUIRE((*status)["head"] == "v1");
  REQUIRE((*status)["durable"] == "v0");

  fleet.server().Signal(SIGKILL);
  REQUIRE(fleet.server().Wait(kWait) == 128 + SIGKILL);
  std::filesystem::remove_all(fleet.store_path());
  std::filesystem::rename(disk, fleet.store_path());
  REQUIRE_OK(fleet.StartServer());
  fixture.AwaitCurrent("v0");
  fixture.RequireWhole({});
  // Whoever asks is told that it is not there; the same id may be used, and the number is burnt.
  auto asked = fleet.Run({"tx", "show", "async"});
  REQUIRE_OK(asked);
  REQUIRE(asked->exit_status == kNotFound);
  fixture.PublishUntilCommitted(checkpoint, "async");
  fixture.RequireWhole({"async"});
  REQUIRE(fixture.Head() == "v2");
  fixture.RequireHeadIs(checkpoint);
}

// A port that is free now.
int FreePort() {
  const Proxy any(0);
  return any.port();
}

TEST_CASE("A slow, a partitioned and a broken network between server and ranks harm nothing") {
  std::mt19937_64 random(TestSeed("network faults"));
  const int port = FreePort();
  FaultFixture::Network network;
  network.listen = "127.0.0.1:" + std::to_string(port);
  FaultFixture fixture(network);
  Proxy proxy(port);
  fixture.fleet().SetAddress("b", proxy.address());
  REQUIRE_OK(fixture.fleet().StartInstance("b"));
  fixture.AwaitCurrent("v0");
  std::set<std::string> ids;
  for (const char* const fault : {"delay", "partition", "reset", "partition for good"}) {
    const std::string id = std::string("publish beside ") + fault;
    INFO(id);
    const std::string checkpoint = fixture.NextCheckpoint();
    if (std::string(fault) == "delay") proxy.SetDelay(60'000);
    const std::unique_ptr<ChildProcess> trainer = fixture.StartPublish(checkpoint, id);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 300));
    if (std::string(fault) == "reset") proxy.Cut();
    if (std::string(fault) == "partition") {
      proxy.SetFrozen(true);
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 3000));
      proxy.SetFrozen(false);
    }
    if (std::string(fault) == "partition for good") proxy.SetFrozen(true);
    REQUIRE(trainer->Wait(12 * kSecond).has_value());
    fixture.PublishUntilCommitted(checkpoint, id);
    ids.insert(id);
    proxy.SetDelay(0);
    proxy.SetFrozen(false);
    fixture.RequireWhole(ids);
  }
}

TEST_CASE("A command behind a slow network ends in its time, and not each of its calls") {
  const int port = FreePort();
  FaultFixture::Network network;
  network.listen = "127.0.0.1:" + std::to_string(port);
  FaultFixture fixture(network);
  Proxy proxy(port);
  fixture.fleet().SetAddress("trainer", proxy.address());
  proxy.SetDelay(300'000);
  const std::string checkpoint = fixture.NextCheckpoint();
  for (const std::vector<std::string>& verb :
       {std::vector<std::string>{"publish", "--from", checkpoint, "--id", "slow"},
        {"status"},
        {"rollback", "--to", "v0", "--yes"}}) {
    INFO(verb[0]);
    std::vector<std::string> command = {"--timeout", "1s"};
    command.insert(command.end(), verb.begin(), verb.end());
    // Each of its calls takes 0.6 s, and connecting more.
    const auto started = std::chrono::steady_clock::now();
    auto process = fixture.fleet().StartAs("trainer", command, "slow-" + verb[0]);
    REQUIRE_OK(process);
    const std::optional<int> status = (*process)->Wait(kWait);
    INFO(ReadFile((*process)->options().out_path));
    REQUIRE(status == kUnavailable);
    REQUIRE(std::chrono::steady_clock::now() - started < std::chrono::seconds(3));
  }
  proxy.SetDelay(0);
  fixture.PublishUntilCommitted(checkpoint, "slow");
  fixture.RequireWhole({"slow"});
  fixture.RequireHeadIs(checkpoint);
}

}  // namespace
}  // namespace wstore::testing
