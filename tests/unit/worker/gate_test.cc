// Engines of one instance that run in step, as with a collective in each step, stop at the same
// one. Without a network or weights.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "store/client/worker/board_record.h"
#include "store/client/worker/safe_point_gate.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"
#include "wstore/instance_group.h"

namespace wstore::testing {
namespace {

using namespace std::chrono_literals;
using client::BoardRecord;
using client::GateRecord;
using client::SafePointGate;

// What a collective does: nobody leaves a step before all have entered it.
class StepBarrier {
 public:
  explicit StepBarrier(uint32_t ranks) : ranks_(ranks) {}
  // False: it was ended.
  bool Meet() {
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t step = step_;
    if (++arrived_ == ranks_) {
      arrived_ = 0;
      ++step_;
      all_.notify_all();
    }
    all_.wait(lock, [&] { return step_ != step || ended_; });
    return !ended_;
  }
  void End() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    all_.notify_all();
  }

 private:
  const uint32_t ranks_;
  std::mutex mutex_;
  std::condition_variable all_;
  uint32_t arrived_ = 0;
  uint64_t step_ = 0;
  bool ended_ = false;
};

// A rank: an engine in step with the others, and a thread in the worker's place that wants it to
// stand every now and then, for its own reasons, and writes meanwhile.
struct Rank {
  std::unique_ptr<InstanceGroup> group;
  std::unique_ptr<SafePointGate> gate;
  std::atomic<uint64_t> steps{0};
  std::atomic<bool> is_in_step{false};
  std::atomic<uint64_t> stops{0};
  std::atomic<bool> ends{false};
  std::string fault;
  std::thread engine;
  std::thread worker;

  void RunEngine(StepBarrier& barrier) {
    while (gate->Enter(Deadline::After(60'000'000)) == SafePointGate::Passed::kRun) {
      is_in_step = true;
      ++steps;
      if (!barrier.Meet()) break;
      is_in_step = false;
    }
    is_in_step = false;
  }

  std::vector<std::optional<GateRecord>> Mates() {
    std::vector<std::optional<GateRecord>> mates;
    const std::vector<std::string> shown = group->Look();
    for (uint32_t i = 0; i < shown.size(); ++i) {
      if (i == group->rank()) continue;
      const auto record = client::DecodeBoardRecord(shown[i]);
      mates.push_back(record ? std::optional(record->gate) : std::nullopt);
    }
    return mates;
  }

  void RunWorker(uint64_t seed) {
    std::mt19937_64 random(seed);
    bool wants = true;
    bool is_writing = false;
    auto change_at = std::chrono::steady_clock::now();
    while (!ends) {
      gate->Turn(wants, is_writing, Mates());
      BoardRecord record;
      record.nonce = 1;
      record.gate = gate->record();
      group->Show(Encode(record));
      const auto now = std::chrono::steady_clock::now();
      if (wants && !is_writing && gate->stands_still() && now >= change_at) {
        is_writing = true;
        change_at = now + std::chrono::microseconds(random() % 2000);
      } else if (is_writing) {
        if (is_in_step) fault = "memory was written under a running engine";
        if (now >= change_at) {
          is_writing = false;
          wants = random() % 4 == 0;
          ++stops;
          change_at = now + std::chrono::microseconds(random() % 3000);
        }
      } else if (!wants && now >= change_at) {
        wants = true;
        change_at = now;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
    }
  }
};

void RunStory(std::vector<std::unique_ptr<InstanceGroup>> groups, uint64_t seed) {
  const auto count = static_cast<uint32_t>(groups.size());
  StepBarrier barrier(count);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (auto& group : groups) {
    ranks.push_back(std::make_unique<Rank>());
    ranks.back()->group = std::move(group);
    ranks.back()->gate = std::make_unique<SafePointGate>([] {});
  }
  for (auto& rank : ranks) {
    rank->engine = std::thread([&barrier, one = rank.get()] { one->RunEngine(barrier); });
    rank->worker = std::thread([one = rank.get(), mine = seed++] { one->RunWorker(mine); });
  }
  // All of them come to stand and go on, again and again.
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  bool done = false;
  while (!done && std::chrono::steady_clock::now() < deadline) {
    done = true;
    for (auto& rank : ranks) done = done && rank->stops > 30;
    std::this_thread::sleep_for(1ms);
  }
  for (auto& rank : ranks) rank->gate->Close();
  barrier.End();
  for (auto& rank : ranks) {
    rank->ends = true;
    rank->engine.join();
    rank->worker.join();
  }
  for (auto& rank : ranks) {
    INFO("rank " << rank->group->rank() << ", " << rank->stops << " stops in " << rank->steps);
    REQUIRE(rank->fault.empty());
  }
  REQUIRE(done);
}

TEST_CASE("engines that run in step stop at the same step, as threads") {
  RunStory(MakeThreadGroups(4), TestSeed("gate"));
}

TEST_CASE("engines that run in step stop at the same step, over a directory") {
  const TempDir directory;
  std::vector<std::unique_ptr<InstanceGroup>> groups;
  for (uint32_t i = 0; i < 3; ++i) {
    auto group = OpenHostGroup(directory / "group", i, 3);
    REQUIRE_OK(group);
    groups.push_back(*std::move(group));
  }
  RunStory(std::move(groups), TestSeed("gate over a directory"));
}

TEST_CASE("an engine alone passes and stands as it is told") {
  SafePointGate gate([] {});
  using Passed = SafePointGate::Passed;
  REQUIRE(gate.stands_still());  // it has never run
  REQUIRE(gate.Enter(Deadline::After(1000)) == Passed::kHeld);
  gate.Turn(true, false, {});
  REQUIRE(gate.Enter(Deadline::After(1000)) == Passed::kHeld);
  gate.Turn(false, false, {});
  REQUIRE(gate.Enter(Deadline::After(0)) == Passed::kRun);
  for (int i = 0; i < 100; ++i) REQUIRE(gate.Enter(Deadline::After(0)) == Passed::kRun);
  REQUIRE_FALSE(gate.stands_still());
  gate.Turn(true, false, {});
  REQUIRE_FALSE(gate.stands_still());
  REQUIRE(gate.is_awaited());
  REQUIRE(gate.Enter(Deadline::After(1000)) == Passed::kHeld);
  gate.Turn(true, true, {});
  REQUIRE(gate.stands_still());
  gate.Turn(false, false, {});
  REQUIRE(gate.Enter(Deadline::After(0)) == Passed::kRun);
  gate.Close();
  REQUIRE(gate.Enter(Deadline::After(1000)) == Passed::kClosed);
}

TEST_CASE("a directory has one process for each rank, and forgets the dead") {
  const TempDir directory;
  const std::string path = directory / "group";
  auto zero = OpenHostGroup(path, 0, 2);
  REQUIRE_OK(zero);
  auto one = OpenHostGroup(path, 1, 2);
  REQUIRE_OK(one);
  REQUIRE_ERROR(OpenHostGroup(path, 1, 2), absl::StatusCode::kAlreadyExists, "rank 1");
  REQUIRE_ERROR(OpenHostGroup(path, 2, 2), absl::StatusCode::kInvalidArgument, "");
  (*one)->Show(std::string(InstanceGroup::kMaxShownBytes, 'x'));
  REQUIRE_OK((*one)->Give("layout", "text"));
  REQUIRE((*zero)->Look()[1] == std::string(InstanceGroup::kMaxShownBytes, 'x'));
  REQUIRE((*zero)->Take(1, "layout") == "text");
  REQUIRE_FALSE((*zero)->Take(1, "other"));
  one->reset();
  REQUIRE((*zero)->Look()[1].empty());
  REQUIRE_FALSE((*zero)->Take(1, "layout"));
  one = OpenHostGroup(path, 1, 2);
  REQUIRE_OK(one);
  (*one)->Show("again");
  std::this_thread::sleep_for(60ms);
  REQUIRE((*zero)->Look()[1] == "again");

  std::filesystem::create_directory(directory / "shared");
  std::filesystem::permissions(directory / "shared", std::filesystem::perms::all);
  REQUIRE_ERROR(OpenHostGroup(directory / "shared", 0, 1), absl::StatusCode::kPermissionDenied,
                "shared");
}

// A process that holds a place as a rank until it is killed.
class RankProcess {
 public:
  RankProcess(const std::string& path, uint32_t rank, uint32_t ranks) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      const auto group = OpenHostGroup(path, rank, ranks);
      const bool is_told =
          group.ok() && (*group)->Give("layout", "text").ok() && write(ends[1], "x", 1) == 1;
      while (is_told) pause();
      _exit(1);
    }
    close(ends[1]);
    char told = 0;
    const ssize_t size = read(ends[0], &told, 1);
    close(ends[0]);
    REQUIRE(size == 1);
  }
  ~RankProcess() { Kill(); }

  void Kill() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

TEST_CASE("What killed ranks leave is swept once all of them are dead, and nothing else is") {
  const TempDir parent;
  const std::string path = parent / "wstore-7-a";
  RankProcess zero(path, 0, 2);
  RankProcess one(path, 1, 2);
  const std::string foreign = parent / "wstore-7-b";
  std::filesystem::create_directory(foreign);
  std::ofstream(foreign + "/rank-0") << "x";
  std::ofstream(foreign + "/rank-zero") << "no rank's";
  std::filesystem::create_directory(parent / "other");
  std::filesystem::create_symlink(parent / "other", parent / "wstore-7-c");

  REQUIRE(SweepHostGroups(parent.path(), "wstore-7-") == 0);
  zero.Kill();
  REQUIRE(SweepHostGroups(parent.path(), "wstore-7-") == 0);
  REQUIRE(std::filesystem::exists(path + "/rank-1.layout"));
  one.Kill();
  REQUIRE(SweepHostGroups(parent.path(), "wstore-8-") == 0);
  REQUIRE(SweepHostGroups(parent.path(), "wstore-7-") == 1);
  REQUIRE_FALSE(std::filesystem::exists(path));
  REQUIRE(std::filesystem::exists(foreign + "/rank-zero"));
  REQUIRE(std::filesystem::exists(parent / "other"));
  REQUIRE(SweepHostGroups(parent / "absent", "wstore-") == 0);

  // A group of this process counts, too; and who left in good order leaves a folder as well.
  auto group = OpenHostGroup(path, 0, 1);
  REQUIRE_OK(group);
  REQUIRE(SweepHostGroups(parent.path(), "wstore-7-") == 0);
  group->reset();
  REQUIRE(SweepHostGroups(parent.path(), "wstore-7-") == 1);
}

TEST_CASE("A group that is opened while others sweep is never swept") {
  const TempDir parent;
  std::atomic<bool> is_done = false;
  std::atomic<size_t> swept = 0;
  std::thread sweeper([&] {
    while (!is_done) swept += SweepHostGroups(parent.path(), "wstore-");
  });
  bool all_there = true;
  for (int i = 0; i < 300; ++i) {
    const auto group = OpenHostGroup(parent / "wstore-a", 0, 1);
    all_there = all_there && group.ok() && (*group)->Give("name", "text").ok() &&
                (*group)->Take(0, "name") == "text";
  }
  is_done = true;
  sweeper.join();
  REQUIRE(all_there);
  REQUIRE(swept > 0);
}

TEST_CASE("records of ranks keep what they are given, and damaged ones count as nothing") {
  BoardRecord record;
  record.nonce = 7;
  record.gate = {1, 2, 3, 4};
  record.claims = VersionName{VersionId(9), Sha256().Update("x").Finish()};
  const std::string bytes = Encode(record);
  REQUIRE(bytes.size() <= InstanceGroup::kMaxShownBytes);
  REQUIRE(client::DecodeBoardRecord(bytes) == record);
  record.key = protocol::ReadyKey{protocol::Epoch(3), MoveNumber(2), {}};
  record.holds = record.claims;
  REQUIRE(client::DecodeBoardRecord(Encode(record)) == record);
  REQUIRE_FALSE(client::DecodeBoardRecord(""));
  for (size_t size = 0; size < bytes.size(); ++size) {
    REQUIRE_FALSE(client::DecodeBoardRecord(bytes.substr(0, size)));
  }
}

}  // namespace
}  // namespace wstore::testing
