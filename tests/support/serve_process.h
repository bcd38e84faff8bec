// `wstore serve` as a process of its own, which can be stopped, continued and killed.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"

extern char** environ;

namespace wstore::testing {

class ServeProcess {
 public:
  // Waits until the server listens at `directory`/wstore.sock.
  ServeProcess(const std::string& binary, const std::string& directory,
               std::vector<std::string> options = {"--lease", "300ms", "--skew", "100ms",
                                                   "--apply-deadline", "1s", "--hold-deadline",
                                                   "2s"})
      : socket_(directory + "/wstore.sock") {
    std::vector<std::string> command = {binary, "--quiet", "--store", directory, "serve"};
    command.insert(command.end(), options.begin(), options.end());
    std::vector<char*> arguments;
    for (std::string& argument : command) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, (directory + ".log").c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0600);
    REQUIRE(posix_spawn(&process_, binary.c_str(), &actions, nullptr, arguments.data(), environ) ==
            0);
    posix_spawn_file_actions_destroy(&actions);
    while (!Listens()) {
      int status = 0;
      REQUIRE(waitpid(process_, &status, WNOHANG) == 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  ~ServeProcess() {
    if (process_ > 0) {
      Send(SIGKILL);
      waitpid(process_, nullptr, 0);
    }
  }
  ServeProcess(const ServeProcess&) = delete;
  ServeProcess& operator=(const ServeProcess&) = delete;

  const std::string& socket() const { return socket_; }
  void Send(int signal) const { kill(process_, signal); }
  // Ends it by `signal` and returns what waitpid gave.
  int End(int signal) {
    Send(signal);
    int status = 0;
    waitpid(process_, &status, 0);
    process_ = 0;
    return status;
  }

 private:
  bool Listens() const {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, socket_.c_str(), sizeof(address.sun_path) - 1);
    const bool listens =
        connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    close(fd);
    return listens;
  }

  const std::string socket_;
  pid_t process_ = 0;
};

}  // namespace wstore::testing
