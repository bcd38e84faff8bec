#include "tools/process/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"

namespace wstore {
namespace {

constexpr auto kPollPause = std::chrono::milliseconds(2);
constexpr int64_t kLastWaitMicros = 5'000'000;

int64_t Now() { return SystemClock().NowMonotonicMicros(); }

// In the child, so only what is safe after a fork: never returns.
[[noreturn]] void Execute(char* const* arguments, char* const* environment, int input, int out,
                          int err) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (dup2(input, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0 &&
      dup2(err, STDERR_FILENO) >= 0) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execvpe(arguments[0], arguments, environment);
  }
  _exit(127);
}

std::vector<std::string> Environment(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> all;
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string_view entry = *one;
    if (changes.count(std::string(entry.substr(0, entry.find('=')))) == 0) {
      all.emplace_back(entry);
    }
  }
  for (const auto& [name, value] : changes) {
    if (!value.empty()) all.push_back(absl::StrCat(name, "=", value));
  }
  return all;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

int OpenForAppending(const std::string& path) {
  return open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

int ExitStatus(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    const std::vector<std::string>& command, const Options& options) {
  std::vector<std::string> arguments = command;
  std::vector<std::string> environment = Environment(options.environment);
  const std::vector<char*> argv = Pointers(arguments);
  const std::vector<char*> envp = Pointers(environment);
  const int out = OpenForAppending(options.out_path);
  const int err = options.err_path.empty() ? dup(out) : OpenForAppending(options.err_path);
  int input[2] = {-1, -1};
  const bool piped = options.with_input && pipe2(input, O_CLOEXEC) == 0;
  if (!piped) input[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
  pid_t pid = -1;
  int error = errno;
  if (out >= 0 && err >= 0 && input[0] >= 0 && piped == options.with_input) {
    pid = fork();
    error = errno;
    if (pid == 0) Execute(argv.data(), envp.data(), input[0], out, err);
  }
  for (const int descriptor : {out, err, input[0]}) {
    if (descriptor >= 0) close(descriptor);
  }
  if (pid < 0) {
    if (input[1] >= 0) close(input[1]);
    return absl::UnavailableError(absl::StrCat("cannot run ", command[0], ": ", strerror(error)));
  }
  return std::unique_ptr<ChildProcess>(new ChildProcess(pid, input[1], options));
}

ChildProcess::~ChildProcess() {
  if (input_ >= 0) close(input_);
  Signal(SIGKILL);
  Wait(kLastWaitMicros);
}

absl::Status ChildProcess::Write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(input_, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      return absl::UnavailableError(
          absl::StrCat("process ", pid_, " does not read its input: ", strerror(errno)));
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

void ChildProcess::Signal(int signal) {
  // Once it is reaped, its number may be another's.
  if (!Wait(0)) kill(pid_, signal);
}

bool ChildProcess::WaitStopped(int64_t timeout_micros) {
  const int64_t deadline = Now() + timeout_micros;
  while (!ended_) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG | WUNTRACED) == pid_) {
      if (WIFSTOPPED(status)) return true;
      ended_ = ExitStatus(status);
    }
    if (Now() >= deadline) return false;
    std::this_thread::sleep_for(kPollPause);
  }
  return false;
}

std::optional<int> ChildProcess::Wait(int64_t timeout_micros) {
  const int64_t deadline = Now() + timeout_micros;
  while (!ended_) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) ended_ = ExitStatus(status);
    if (ended_ || Now() >= deadline) break;
    std::this_thread::sleep_for(kPollPause);
  }
  return ended_;
}

std::optional<std::string> LineFollower::Next(int64_t timeout_micros) {
  const int64_t deadline = Now() + timeout_micros;
  for (;;) {
    const size_t end = pending_.find('\n');
    if (end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    std::ifstream file(path_, std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset_));
    std::string more{std::istreambuf_iterator<char>(file), {}};
    if (!more.empty()) {
      offset_ += more.size();
      pending_ += more;
      continue;
    }
    if (Now() >= deadline) return std::nullopt;
    std::this_thread::sleep_for(kPollPause);
  }
}

std::optional<std::string> LineFollower::Find(const std::function<bool(const std::string&)>& wanted,
                                              int64_t timeout_micros) {
  const int64_t deadline = Now() + timeout_micros;
  for (;;) {
    std::optional<std::string> line = Next(std::max<int64_t>(0, deadline - Now()));
    if (!line || wanted(*line)) return line;
  }
}

}  // namespace wstore
