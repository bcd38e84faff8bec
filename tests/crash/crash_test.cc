// A publisher is killed with SIGKILL at random moments; nothing that it acknowledged may be lost.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "tests/crash/model.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"
#include "wstore/store.h"

namespace wstore::testing {
namespace {

// A child process whose standard output is read line by line.
class Publisher {
 public:
  Publisher(const std::string& store, const std::string& work) {
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::string program = WSTORE_CRASH_PUBLISHER;
    std::string store_argument = store;
    std::string work_argument = work;
    char* const arguments[] = {program.data(), store_argument.data(), work_argument.data(),
                               nullptr};
    REQUIRE(posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    output_ = fdopen(ends[0], "r");
  }

  // The next line, or nothing after the end.
  std::string Line() {
    char line[64];
    if (std::fgets(line, sizeof(line), output_) == nullptr) return "";
    return std::string(line, std::char_traits<char>::length(line) - 1);
  }

  void Kill() { kill(pid_, SIGKILL); }

  // True if it ended by the signal and not by an error of its own.
  bool WaitKilled() {
    int status = 0;
    waitpid(pid_, &status, 0);
    std::fclose(output_);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }

 private:
  pid_t pid_ = 0;
  FILE* output_ = nullptr;
};

void RequireWholeHistory(const std::string& store_path, const std::string& export_path,
                         VersionId acknowledged, uint64_t* publishes) {
  auto store = Store::Open(store_path, {});
  REQUIRE_OK(store);
  const auto versions = (*store)->versions();
  REQUIRE(versions.back().version >= acknowledged);
  REQUIRE((*store)->head().version == versions.back().version);
  VerifyOptions all;
  all.all = true;
  const auto report = (*store)->Verify(all);
  REQUIRE_OK(report);
  for (const VerifyProblem& problem : report->problems) FAIL(problem.what);
  for (uint64_t i = 1; i < versions.size(); ++i) {
    REQUIRE(versions[i].transaction_id == "publish-" + std::to_string(i));
    REQUIRE(versions[i].parent == versions[i - 1].version);
  }
  // Head, bit for bit.
  *publishes = versions.size() - 1;
  NaiveTensors expected = CrashModelBase();
  for (uint64_t i = 1; i <= *publishes; ++i) MutateCrashModel(i, &expected);
  ExportOptions options;
  options.directory = export_path;
  REQUIRE_OK((*store)->Export((*store)->head().version, options));
  REQUIRE((NaiveRead(ReadFile(export_path + "/model.safetensors")) == expected));
}

// Kills the publisher until `wanted` publishes are in the store.
void RunCrashes(uint64_t wanted) {
  std::mt19937_64 random(TestSeed("crash"));
  TempDir directory;
  const std::string store_path = directory / "store";
  const NaiveTensors base = CrashModelBase();
  WriteFile(directory / "base.safetensors", NaiveWrite(base, NamesOf(base)));
  REQUIRE_OK(Store::Create(store_path, directory / "base.safetensors", {}));

  VersionId acknowledged(0);
  uint64_t publishes = 0;
  uint64_t kills = 0;
  while (publishes < wanted) {
    Publisher publisher(store_path, directory.path());
    // Every fourth time during the opening itself, which repairs what the last kill left.
    if (random() % 4 != 0) REQUIRE(publisher.Line() == "open");
    const auto delay = std::chrono::microseconds(random() % 400000);
    std::thread killer([&] {
      std::this_thread::sleep_for(delay);
      publisher.Kill();
    });
    for (std::string line = publisher.Line(); !line.empty(); line = publisher.Line()) {
      const std::optional<VersionId> version = ParseVersionId(line);
      if (version.has_value()) acknowledged = *version;
    }
    killer.join();
    REQUIRE(publisher.WaitKilled());
    ++kills;
    RequireWholeHistory(store_path, directory / "export", acknowledged, &publishes);
  }
  std::cout << kills << " kills, " << publishes << " publishes, highest acknowledged "
            << ToString(acknowledged) << std::endl;
}

TEST_CASE("C02 SIGKILL at random moments loses no acknowledged version") { RunCrashes(12); }

TEST_CASE("C02 SIGKILL at random moments during 100 publishes", "[.][long]") { RunCrashes(100); }

}  // namespace
}  // namespace wstore::testing
