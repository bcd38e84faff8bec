// A fleet of processes under faults, and the judgement that is passed on it afterwards.
#pragma once

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/naive_safetensors.h"
#include "tests/support/temp_dir.h"
#include "tools/demo/model.h"
#include "tools/process/local_fleet.h"

namespace wstore::testing {

constexpr int64_t kSecond = 1'000'000;
constexpr int64_t kWait = 30 * kSecond;
constexpr size_t kRanks = 4;
constexpr int kNotFound = 4;
constexpr int kUnavailable = 6;
constexpr int kAborted = 7;

// The most memory that a process has had.
inline uint64_t PeakBytes(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoull(line.substr(6)) * 1024;
  }
  FAIL("process " << pid << " is gone");
  return 0;
}

// A fleet that lives through one scenario after another.
class FaultFixture {
 public:
  // Where the server listens beside its unix socket, and where processes run: see LocalFleet.
  struct Network {
    std::string listen;  // HOST:PORT; empty: nowhere
    LocalFleet::Launchers launchers;
    std::map<std::string, std::string> addresses;  // of the server, by instance and for "trainer"
  };

  explicit FaultFixture(const Network& network = {}) : network_(network) {
    REQUIRE_OK(model_.Write(directory_ / "checkpoint-0"));
    LocalFleet::Options options;
    options.program = WSTORE_BINARY;
    options.directory = directory_.path();
    options.checkpoint = directory_ / "checkpoint-0";
    options.server_arguments = {"--lease",          "500ms", "--skew",          "200ms",
                                "--apply-deadline", "1s",    "--hold-deadline", "2s"};
    options.launchers = network_.launchers;
    if (!network_.listen.empty()) {
      options.server_arguments.insert(options.server_arguments.end(),
                                      {"--listen", "unix:" + (directory_ / "store/wstore.sock"),
                                       "--listen", network_.listen, "--insecure-tcp"});
    }
    auto fleet = LocalFleet::Create(options);
    REQUIRE_OK(fleet);
    fleet_ = *std::move(fleet);
    for (const auto& [instance, address] : network_.addresses) {
      fleet_->SetAddress(instance, address);
    }
    REQUIRE_OK(fleet_->StartServer());
    REQUIRE_OK(fleet_->StartInstance("a"));
    REQUIRE_OK(fleet_->StartInstance("b"));
    AwaitCurrent("v0");
  }

  LocalFleet& fleet() { return *fleet_; }
  const LocalFleet& fleet() const { return *fleet_; }
  std::string Head() {
    auto status = fleet_->Must({"status"});
    REQUIRE_OK(status);
    return (*status)["head"];
  }

  void AwaitCurrent(const std::string& version) {
    const absl::Status status = fleet_->AwaitCurrent(version, kRanks, kWait);
    if (!status.ok()) UNSCOPED_INFO(LogEnds());
    REQUIRE_OK(status);
  }

  // The next training step's checkpoint.
  std::string NextCheckpoint() {
    model_.TrainStep();
    const std::string path = directory_ / ("checkpoint-" + std::to_string(model_.steps()));
    REQUIRE_OK(model_.Write(path));
    return path;
  }

  std::unique_ptr<ChildProcess> StartPublish(const std::string& checkpoint, const std::string& id,
                                             const std::vector<std::string>& more_arguments = {}) {
    std::vector<std::string> arguments = {"--timeout", "8s",   "publish", "--from",
                                          checkpoint,  "--id", id};
    arguments.insert(arguments.end(), more_arguments.begin(), more_arguments.end());
    auto process = fleet_->StartAs("trainer", arguments, "publish-" + id);
    REQUIRE_OK(process);
    return *std::move(process);
  }

  // Until it is committed: what a trainer does whose publish did not come through.
  void PublishUntilCommitted(const std::string& checkpoint, const std::string& id) {
    for (int attempt = 0; attempt < 20; ++attempt) {
      const auto process = StartPublish(checkpoint, id);
      const std::optional<int> status = process->Wait(kWait);
      REQUIRE(status.has_value());
      if (*status == 0) return;
      INFO(ReadFile(process->options().out_path));
      REQUIRE((*status == kUnavailable || *status == kAborted));
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    FAIL("no attempt to publish " << id << " came through");
  }

  // Head holds the bits of a checkpoint that was acknowledged.
  void RequireHeadIs(const std::string& checkpoint) {
    const std::string dense = directory_ / "export";
    REQUIRE_OK(fleet_->Must({"export", "head", "--out", dense}));
    const bool is_same = NaiveRead(ReadFile(dense + "/model.safetensors")) ==
                         NaiveRead(ReadFile(checkpoint + "/model.safetensors"));
    REQUIRE(is_same);
    std::filesystem::remove_all(dense);
  }

  // All serve head; every id was committed once; memory is head's.
  void RequireWhole(const std::set<std::string>& committed_ids) {
    AwaitCurrent(Head());
    auto verified = fleet_->Must({"verify", "--workers"});
    REQUIRE_OK(verified);
    INFO(verified->dump());
    REQUIRE((*verified)["ok"] == true);
    auto moves = fleet_->Must({"log", "--moves"});
    REQUIRE_OK(moves);
    const auto publishes =
        std::count_if(moves->begin(), moves->end(), [](const nlohmann::json& move) {
          return move["why"] == "publish" && move["outcome"] == "committed";
        });
    INFO(moves->dump(1));
    REQUIRE(static_cast<size_t>(publishes) == committed_ids.size());
    REQUIRE_OK(fleet_->CheckOneVersionAtATime());
  }

 private:
  // What every process said last.
  std::string LogEnds() const {
    constexpr size_t kShownBytes = 1000;
    std::string ends;
    for (const auto& entry : std::filesystem::directory_iterator(directory_ / "logs")) {
      const std::string text = ReadFile(entry.path());
      ends += "\n" + entry.path().filename().string() + ": ..." +
              text.substr(text.size() - std::min(text.size(), kShownBytes));
    }
    return ends;
  }

  const Network network_;
  TempDir directory_;
  demo::Model model_;
  std::unique_ptr<LocalFleet> fleet_;
};

}  // namespace wstore::testing
