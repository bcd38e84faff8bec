#include "tools/bench/harness.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace wstore::bench {
namespace {

// Starts a program with its standard output at `output`; its standard error is discarded.
absl::StatusOr<pid_t> Start(const std::vector<std::string>& arguments, int output) {
  std::vector<char*> argv;
  std::vector<std::string> copies = arguments;
  for (std::string& argument : copies) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("cannot run ", arguments[0], ": ", strerror(error)));
  }
  return pid;
}

absl::Status WaitFor(pid_t pid, const std::vector<std::string>& arguments) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("'", absl::StrJoin(arguments, " "), "' failed",
                   WIFEXITED(status) ? absl::StrCat(" with status ", WEXITSTATUS(status)) : ""));
}

}  // namespace

absl::StatusOr<Scratch> Scratch::Create(const std::string& parent) {
  std::string pattern = parent + "/wstore-bench-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cannot make a directory in ", parent, ": ", strerror(errno)));
  }
  return Scratch(pattern);
}

Scratch::Scratch(Scratch&& other) noexcept : path_(std::exchange(other.path_, "")) {}

Scratch::~Scratch() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

bool HasProgram(const std::string& name) {
  const char* const path = getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((folder + "/" + name).c_str(), X_OK) == 0) return true;
  }
  return false;
}

absl::StatusOr<double> RunProgram(const std::vector<std::string>& arguments) {
  return Seconds([&arguments]() -> absl::Status {
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    const absl::StatusOr<pid_t> pid = Start(arguments, nowhere);
    close(nowhere);
    RETURN_IF_ERROR(pid.status());
    return WaitFor(*pid, arguments);
  });
}

absl::StatusOr<std::string> ReadProgram(const std::vector<std::string>& arguments) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::UnavailableError("cannot make a pipe");
  const absl::StatusOr<pid_t> pid = Start(arguments, ends[1]);
  close(ends[1]);
  std::string output;
  char buffer[4096];
  for (ssize_t got = 0; pid.ok() && (got = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    output.append(buffer, static_cast<size_t>(got));
  }
  close(ends[0]);
  RETURN_IF_ERROR(pid.status());
  RETURN_IF_ERROR(WaitFor(*pid, arguments));
  return output;
}

absl::StatusOr<double> Seconds(const std::function<absl::Status()>& work) {
  const int64_t begun = SystemClock().NowMonotonicMicros();
  RETURN_IF_ERROR(work());
  return static_cast<double>(SystemClock().NowMonotonicMicros() - begun) / 1e6;
}

double MedianOf(std::vector<double> results) {
  const auto middle = results.begin() + static_cast<std::ptrdiff_t>(results.size() / 2);
  std::nth_element(results.begin(), middle, results.end());
  return *middle;
}

absl::StatusOr<double> Median(int repetitions,
                              const std::function<absl::StatusOr<double>()>& measure) {
  std::vector<double> results;
  for (int i = 0; i < repetitions; ++i) {
    ASSIGN_OR_RETURN(const double result, measure());
    results.push_back(result);
  }
  return MedianOf(std::move(results));
}

}  // namespace wstore::bench
