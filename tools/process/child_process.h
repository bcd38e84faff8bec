// Programs that run beside this one, are signalled, and write lines into files.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace wstore {

// Threads: one at a time.
class ChildProcess {
 public:
  struct Options {
    std::string out_path;  // stdout; appended to
    std::string err_path;  // stderr, likewise; empty: as out_path
    // Beside this process's; "" unsets.
    std::map<std::string, std::string> environment;
    bool with_input = false;  // stdin is a pipe, for Write; otherwise there is none
  };

  // kUnavailable: the program cannot be run.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(
      const std::vector<std::string>& command, const Options& options);
  // Kills it if it still runs. A child dies with its parent in any case.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  const Options& options() const { return options_; }
  // kUnavailable: it does not read any more
  absl::Status Write(std::string_view text);
  void Signal(int signal);
  // Waits until the system shows it as stopped by SIGSTOP (true), or it has ended (false).
  bool WaitStopped(int64_t timeout_micros);
  // Its exit status, or 128 + the signal that ended it; nothing: it still runs.
  std::optional<int> Wait(int64_t timeout_micros);

 private:
  ChildProcess(pid_t pid, int input, Options options)
      : pid_(pid), input_(input), options_(std::move(options)) {}

  const pid_t pid_;
  int input_;
  const Options options_;
  std::optional<int> ended_;
};

// Follows the lines of a file that another process writes. Threads: one at a time.
class LineFollower {
 public:
  // From this byte on.
  explicit LineFollower(std::string path, uint64_t offset = 0)
      : path_(std::move(path)), offset_(offset) {}

  // The next whole line without its newline; nothing: none has come within the time.
  std::optional<std::string> Next(int64_t timeout_micros);
  // The next line that is `wanted`; those before it are skipped.
  std::optional<std::string> Find(const std::function<bool(const std::string&)>& wanted,
                                  int64_t timeout_micros);

 private:
  const std::string path_;
  uint64_t offset_;
  std::string pending_;
};

}  // namespace wstore
