#include "tests/support/process.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "common/check.h"
#include "tests/support/temp_dir.h"

namespace wstore::testing {
namespace {

constexpr unsigned kLimitSeconds = 300;

std::string Slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Redirect(int stream, const std::string& path, int flags) {
  const int file = open(path.c_str(), flags, 0600);
  if (file < 0 || dup2(file, stream) < 0) _exit(126);
  close(file);
}

// In the child: never returns.
[[noreturn]] void Execute(const std::vector<std::string>& command, const ProcessOptions& options) {
  if (!options.directory.empty() && chdir(options.directory.c_str()) != 0) _exit(126);
  for (const auto& [name, value] : options.environment) {
    value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
  }
  std::vector<char*> arguments;
  for (const std::string& argument : command)
    arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  alarm(kLimitSeconds);  // outlives exec
  execvp(arguments[0], arguments.data());
  _exit(127);
}

// What a terminal shows until the program behind it ends.
std::string ReadTerminal(int terminal) {
  std::string text;
  char buffer[4096];
  while (true) {
    const ssize_t size = read(terminal, buffer, sizeof(buffer));
    if (size <= 0) break;  // EIO once the other side is closed
    text.append(buffer, static_cast<size_t>(size));
  }
  return text;
}

}  // namespace

ProcessResult RunProcess(const std::vector<std::string>& command, const ProcessOptions& options) {
  const TempDir files;
  const std::string in = options.input.empty() ? "/dev/null" : files / "in";
  if (!options.input.empty()) std::ofstream(in, std::ios::binary) << options.input;

  int terminal = -1;
  winsize size{};
  size.ws_row = 25;
  size.ws_col = 80;
  const pid_t child = options.on_terminal ? forkpty(&terminal, nullptr, nullptr, &size) : fork();
  WSTORE_CHECK(child >= 0);
  if (child == 0) {
    Redirect(STDOUT_FILENO, files / "out", O_WRONLY | O_CREAT | O_TRUNC);
    if (!options.on_terminal) {
      Redirect(STDIN_FILENO, in, O_RDONLY);
      Redirect(STDERR_FILENO, files / "err", O_WRONLY | O_CREAT | O_TRUNC);
    }
    Execute(command, options);
  }

  ProcessResult result;
  if (options.on_terminal) {
    WSTORE_CHECK(write(terminal, options.input.data(), options.input.size()) ==
                 static_cast<ssize_t>(options.input.size()));
    result.err = ReadTerminal(terminal);
    close(terminal);
  }
  int status = 0;
  WSTORE_CHECK(waitpid(child, &status, 0) == child);
  result.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = Slurp(files / "out");
  if (!options.on_terminal) result.err = Slurp(files / "err");
  return result;
}

}  // namespace wstore::testing
