// A whole fleet on one GPU or several: a server, ranks with their weights in device memory, and
// trainers that publish from it, each a process of its own. All of them are killed, and ranks are
// stopped.
#include <signal.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/gpu/device_weights.h"
#include "tests/support/catch.h"
#include "tests/support/naive_safetensors.h"
#include "tests/support/temp_dir.h"
#include "tools/demo/model.h"
#include "tools/process/local_fleet.h"
#include "transfer/cuda/buffer.h"
#include "wstore/cuda_publisher.h"

namespace wstore::testing {
namespace {

constexpr int64_t kSecond = 1'000'000;
constexpr int64_t kWait = 60 * kSecond;
constexpr size_t kRanks = 4;
constexpr auto kPause = std::chrono::milliseconds(300);

std::string Setting(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// This program, as the command line and as a runner of one test.
struct Programs {
  Programs() {
    const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    std::ifstream file("/proc/self/cmdline", std::ios::binary);
    const std::string line{std::istreambuf_iterator<char>(file), {}};
    const std::vector<std::string> arguments = absl::StrSplit(line, '\0');
    runner = {self};
    if (arguments.size() > 1 && arguments[1] == "gpu_tests") {
      runner.push_back("gpu_tests");
      command = self;
    }
  }
  std::vector<std::string> runner;
  std::string command;  // empty: this is not the program that has both
};

// Weights of the model in device memory.
class DeviceModel {
 public:
  DeviceModel(CudaMemory* memory, CudaStream stream) : memory_(memory), stream_(stream) {}

  std::vector<const void*> Upload(const demo::Model& model) {
    tensors_.clear();
    std::vector<const void*> addresses;
    for (TensorIndex i = 0; i < model.manifest().size(); ++i) {
      const std::string& bytes = model.bytes(i);
      auto tensor = cuda::DeviceBuffer<char>::Create(bytes.size(), memory_, stream_);
      REQUIRE_OK(tensor);
      REQUIRE_OK(cuda::CopyAsync(bytes.data(), tensor->get(), bytes.size(), stream_));
      addresses.push_back(tensor->get());
      tensors_.push_back(*std::move(tensor));
    }
    REQUIRE_OK(cuda::Synchronize(stream_));
    return addresses;
  }

 private:
  CudaMemory* const memory_;
  const CudaStream stream_;
  std::vector<cuda::DeviceBuffer<char>> tensors_;
};

}  // namespace

// Brings head from one training step to the next, under the step's id, however long that takes.
TEST_CASE("a trainer on a GPU", "[.rank]") {
  REQUIRE_GPU();
  int step = 0;
  REQUIRE(absl::SimpleAtoi(Setting("WSTORE_STEP"), &step));
  demo::Model model;
  for (int i = 0; i < step; ++i) model.TrainStep();
  const ConnectOptions connect{Setting("WSTORE_ADDRESS"), std::nullopt, false};
  const auto client = Client::Connect(connect, "trainer");
  REQUIRE_OK(client);
  const auto stream = OwnedCudaStream::Create();
  REQUIRE_OK(stream);
  const std::unique_ptr<CudaMemory> memory = MakeCudaDeviceMemory();
  DeviceModel device(memory.get(), stream->get());
  const std::vector<const void*> weights = device.Upload(model);
  CudaPublisherOptions options;
  options.stream = stream->get();
  options.memory = memory.get();
  const auto publisher = CudaPublisher::Start(*client, connect, options, Deadline::After(kWait));
  REQUIRE_OK(publisher);
  int ranks = 0;
  REQUIRE(absl::SimpleAtoi(Setting("WSTORE_AWAIT"), &ranks));
  REQUIRE_OK((*publisher)->lead()->AwaitRanks(static_cast<size_t>(ranks), Deadline::After(kWait)));
  PublishOptions publish;
  publish.durability = PublishDurability::kAsync;
  publish.laggards = PublishLaggards::kAbort;
  publish.begin.transaction_id = absl::StrCat("step ", step);
  for (const Deadline deadline = Deadline::After(kWait);;) {
    const auto decision = (*publisher)->Publish(weights, publish, Deadline::After(8 * kSecond));
    const CudaPublishTimes& times = (*publisher)->times();
    std::cout << "outcome " << decision.status() << "; sent " << times.sent << "; " << times.all
              << " us" << std::endl;
    if (decision.ok() && (*publisher)->AwaitDurable(Deadline::After(8 * kSecond)).ok()) break;
    REQUIRE_FALSE(deadline.has_passed());
    if (ConflictHead(decision.status())) {
      REQUIRE_OK((*publisher)->Rebase(Deadline::After(kWait)));
    }
    std::this_thread::sleep_for(kPause);
  }
  std::cout << "published " << step << (((*publisher)->times().sent.ok()) ? " from here" : "")
            << std::endl;
}

namespace {

// Of two instances with two ranks each; trainers are on GPU 0.
//   kTwoGpus: rank 1 of instance a is on GPU 1, which is reached by NVLink
//   kTwoHosts: instance b is on GPU 1, and as if on another host; one rank of it is reached through
//     the server, since a communicator takes each GPU once
//   kFourGpus: instance a is on GPUs 1 and 2, instance b on GPUs 3 and 0
enum class Place { kOneGpu, kTwoGpus, kTwoHosts, kFourGpus };

int DeviceOf(Place place, const std::string& instance, uint32_t rank) {
  using Devices = std::array<int, 2>;  // by rank
  struct Fleet {
    Devices a;
    Devices b;
  };
  const std::map<Place, Fleet> fleets = {{Place::kOneGpu, {{0, 0}, {0, 0}}},
                                         {Place::kTwoGpus, {{0, 1}, {0, 0}}},
                                         {Place::kTwoHosts, {{0, 0}, {1, 1}}},
                                         {Place::kFourGpus, {{1, 2}, {3, 0}}}};
  const Fleet& fleet = fleets.at(place);
  return instance == "a" ? fleet.a.at(rank) : fleet.b.at(rank);
}

std::map<std::string, std::string> HostSettings(int host) {
  return {{"NCCL_HOSTID", absl::StrCat("host-", host)},
          {"NCCL_SOCKET_IFNAME", "lo"},
          {"NCCL_P2P_DISABLE", "1"},
          {"NCCL_SHM_DISABLE", "1"}};
}

std::vector<std::string> OnHost(int host) {
  std::vector<std::string> command = {"env"};
  for (const auto& [name, value] : HostSettings(host)) {
    command.push_back(absl::StrCat(name, "=", value));
  }
  return command;
}

class GpuFleet {
 public:
  GpuFleet(const Programs& programs, Place place) : programs_(programs), place_(place) {
    REQUIRE_OK(model_.Write(directory_ / "checkpoint"));
    LocalFleet::Options options;
    options.program = programs.command;
    options.directory = directory_.path();
    options.checkpoint = directory_ / "checkpoint";
    options.server_arguments = {"--lease",          "500ms", "--skew",          "200ms",
                                "--apply-deadline", "1s",    "--hold-deadline", "3s"};
    if (place == Place::kTwoHosts) options.launchers = {{"a", OnHost(0)}, {"b", OnHost(1)}};
    auto fleet = LocalFleet::Create(options);
    REQUIRE_OK(fleet);
    fleet_ = *std::move(fleet);
    REQUIRE_OK(fleet_->StartServer());
    for (const char* instance : {"a", "b"}) {
      for (const uint32_t rank : {0u, 1u}) StartRank(instance, rank);
    }
    REQUIRE_OK(fleet_->AwaitCurrent("v0", kRanks, kWait));
  }

  LocalFleet& fleet() { return *fleet_; }

  void StartRank(const std::string& instance, uint32_t rank, const std::string& at_step = "") {
    std::vector<std::string> arguments = {"--device",
                                          absl::StrCat("cuda:", DeviceOf(place_, instance, rank))};
    if (!at_step.empty()) arguments.insert(arguments.end(), {"--at-step", at_step + ":stop"});
    REQUIRE_OK(fleet_->StartRank(instance, rank, arguments));
  }

  void RequireServing(const std::string& instance, uint32_t rank) {
    const absl::Status serves = fleet_->AwaitServing(instance, rank, kWait);
    const std::string log = fleet_->log_path(absl::StrCat(instance, "-", rank));
    INFO(ReadFile(log) << ReadFile(log + "-err"));
    REQUIRE_OK(serves);
  }

  std::unique_ptr<ChildProcess> StartTrainer(int step, bool awaits = true) {
    ChildProcess::Options options;
    options.out_path = directory_ / absl::StrCat("trainer-", step, "-", ++trainers_);
    options.environment = {{"WSTORE_STEP", absl::StrCat(step)},
                           {"WSTORE_AWAIT", absl::StrCat(awaits ? reachable() : 0)},
                           {"WSTORE_ADDRESS", "unix:" + fleet_->store_path() + "/wstore.sock"}};
    if (place_ == Place::kTwoHosts) options.environment.merge(HostSettings(0));
    std::vector<std::string> command = programs_.runner;
    command.push_back("a trainer on a GPU");
    auto process = ChildProcess::Start(command, options);
    REQUIRE_OK(process);
    return *std::move(process);
  }

  void RequireEnds(ChildProcess& trainer) {
    const std::optional<int> status = trainer.Wait(kWait);
    INFO(ReadFile(trainer.options().out_path));
    REQUIRE(status == 0);
  }

  // All serve head, whose bits are those of the model after so many steps; live memory is head's;
  // and no two ever served different versions.
  void RequireHolds(int step) {
    auto status = fleet_->Must({"status"});
    REQUIRE_OK(status);
    REQUIRE_OK(fleet_->AwaitCurrent((*status)["head"], kRanks, kWait));
    auto verified = fleet_->Must({"verify", "--workers"});
    REQUIRE_OK(verified);
    INFO(verified->dump());
    REQUIRE((*verified)["ok"] == true);
    demo::Model model;
    for (int i = 0; i < step; ++i) model.TrainStep();
    const std::string dense = directory_ / "export";
    REQUIRE_OK(fleet_->Must({"export", "head", "--out", dense}));
    const NaiveTensors held = NaiveRead(ReadFile(dense + "/model.safetensors"));
    for (TensorIndex i = 0; i < model.manifest().size(); ++i) {
      const std::string& name = model.manifest().tensor(i).spec.name;
      INFO(name);
      REQUIRE((held.at(name).bytes == model.bytes(i)));
    }
    std::filesystem::remove_all(dense);
    REQUIRE_OK(fleet_->CheckOneVersionAtATime());
  }

 private:
  // Ranks that the trainer reaches past the server.
  size_t reachable() const { return place_ == Place::kTwoHosts ? kRanks - 1 : kRanks; }

  const Programs programs_;
  const Place place_;
  TempDir directory_;
  demo::Model model_;
  std::unique_ptr<LocalFleet> fleet_;
  int trainers_ = 0;
};

enum class Victim { kRank, kTrainer, kServer };

// A process is given the signal where a rank, or the server, has come to the step.
struct Death {
  Victim victim;
  std::string at;
  int signal;
};

std::string Name(const Death& death) {
  const std::string what = death.signal == SIGKILL ? "killed" : "stopped";
  switch (death.victim) {
    case Victim::kRank:
      return absl::StrCat("a rank is ", what, " at ", death.at);
    case Victim::kTrainer:
      return absl::StrCat("the trainer is ", what, " while a rank stands at ", death.at);
    case Victim::kServer:
      return absl::StrCat("the server is ", what, " at ", death.at);
  }
  return what;
}

std::vector<Death> AllDeaths(Place place) {
  std::vector<std::string> rank_steps = {"staged", "voted", "applying", "applied", "decided"};
  // Which of two ranks on a GPU of their own takes part in groups is left open.
  if (place != Place::kTwoHosts) {
    rank_steps.insert(rank_steps.begin(), {"hello", "joining", "receiving"});
  }
  std::vector<Death> deaths;
  for (const int signal : {SIGKILL, SIGSTOP}) {
    for (const std::string& at : rank_steps) {
      deaths.push_back({Victim::kRank, at, signal});
      deaths.push_back({Victim::kTrainer, at, signal});
    }
  }
  // Last: a new server remembers nobody's audit, for which a rank that starts alone waits.
  for (const int signal : {SIGKILL, SIGSTOP}) {
    for (const char* at : {"reserving", "completing", "applying", "recording", "recorded"}) {
      deaths.push_back({Victim::kServer, at, signal});
    }
  }
  return deaths;
}

// The fleet is brought to `step` while somebody dies.
void Follow(GpuFleet& gpu, Place place, const Death& death, int step) {
  LocalFleet& fleet = gpu.fleet();
  // One that is reached by NCCL, where some are.
  const bool is_a = place == Place::kTwoGpus || place == Place::kFourGpus;
  const std::string instance = is_a ? "a" : "b";
  const bool is_server = death.victim == Victim::kServer;
  // A rank that says no hello serves nothing, and nobody waits for it.
  const bool is_early = death.at == "hello";
  if (is_server) {
    fleet.server().Signal(SIGTERM);
    REQUIRE(fleet.server().Wait(kWait) == 0);
    REQUIRE_OK(fleet.StartServer({"--stop-at", death.at}));
  } else {
    gpu.StartRank(instance, 1, death.at);
    if (!is_early) gpu.RequireServing(instance, 1);
  }
  std::unique_ptr<ChildProcess> trainer = gpu.StartTrainer(step, /*awaits=*/!is_early);
  ChildProcess& stands = is_server ? fleet.server() : fleet.rank(instance, 1);
  REQUIRE(stands.WaitStopped(kWait));
  ChildProcess& victim = death.victim == Victim::kTrainer ? *trainer : stands;
  victim.Signal(death.signal);
  if (&victim != &stands) stands.Signal(SIGCONT);
  std::this_thread::sleep_for(2 * kPause);
  if (death.signal == SIGSTOP) {
    victim.Signal(SIGCONT);
  } else if (is_server) {
    REQUIRE_OK(fleet.StartServer());
  } else if (&victim == &stands) {
    gpu.StartRank(instance, 1);
  } else {
    trainer = gpu.StartTrainer(step);
  }
  gpu.RequireEnds(*trainer);
  // Until the lease of one that was killed has ended, it counts as current.
  if (!is_server) gpu.RequireServing(instance, 1);
  gpu.RequireHolds(step);
}

void FollowThroughDeaths(Place place) {
  const Programs programs;
  if (programs.command.empty()) SKIP_TEST("this program is not the command line too");
  GpuFleet gpu(programs, place);
  int step = 0;
  {
    INFO("nobody dies");
    const auto trainer = gpu.StartTrainer(++step);
    gpu.RequireEnds(*trainer);
    REQUIRE_THAT(ReadFile(trainer->options().out_path), WSTORE_CONTAINS("published 1 from here"));
    gpu.RequireHolds(step);
  }
  for (const Death& death : AllDeaths(place)) {
    INFO(Name(death));
    const auto started = std::chrono::steady_clock::now();
    Follow(gpu, place, death, ++step);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
    std::cout << Name(death) << ": " << took.count() << " s" << std::endl;
  }
  INFO("an operator takes the fleet back, with no trainer there");
  REQUIRE_OK(gpu.fleet().Must({"rollback", "--to", "v1", "--yes"}));
  gpu.RequireHolds(1);
}

}  // namespace

TEST_CASE("A fleet on a GPU follows a trainer on it through deaths, and goes back", "[.][cycles]") {
  REQUIRE_GPU();
  FollowThroughDeaths(Place::kOneGpu);
}

TEST_CASE("A fleet over two GPUs follows a trainer on one of them through deaths", "[.][gpus]") {
  REQUIRE_GPUS(2);
  FollowThroughDeaths(Place::kTwoGpus);
}

TEST_CASE("A fleet over four GPUs follows a trainer on one of them through deaths", "[.][gpus4]") {
  REQUIRE_GPUS(4);
  FollowThroughDeaths(Place::kFourGpus);
}

TEST_CASE("A fleet on two hosts with a GPU each follows a trainer through deaths", "[.][gpus]") {
  REQUIRE_GPUS(2);
  FollowThroughDeaths(Place::kTwoHosts);
}

}  // namespace wstore::testing
