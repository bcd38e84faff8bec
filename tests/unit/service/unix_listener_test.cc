#include "store/service/unix_listener.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

namespace wstore::service {
namespace {

using Code = absl::StatusCode;
using wstore::testing::TempDir;

int Connect(const std::string& path) {
  const int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  if (connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return client;
  }
  close(client);
  return -1;
}

TEST_CASE("E07 the socket is this user's, and says who connects") {
  TempDir dir;
  const std::string path = dir / "s.sock";
  std::mutex mutex;
  std::set<int> descriptors;
  std::atomic<int> right = 0;
  auto listener = UnixListener::Bind(path);
  REQUIRE_OK(listener);
  struct stat info = {};
  REQUIRE(lstat(path.c_str(), &info) == 0);
  REQUIRE(S_ISSOCK(info.st_mode));
  REQUIRE((info.st_mode & 0777) == 0600);
  (*listener)->Start([&](int descriptor, const PeerCredentials& credentials) {
    const std::lock_guard<std::mutex> lock(mutex);
    descriptors.insert(descriptor);
    const bool known = credentials.uid == getuid() && credentials.pid == getpid();
    const bool flags = (fcntl(descriptor, F_GETFL) & O_NONBLOCK) != 0 &&
                       (fcntl(descriptor, F_GETFD) & FD_CLOEXEC) != 0;
    right += known && flags ? 1 : 0;
    close(descriptor);
  });
  for (int i = 1; i <= 20; ++i) {
    const int client = Connect(path);
    REQUIRE(client >= 0);
    while (right < i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    close(client);
  }
  // No number was used twice, although every connection was closed.
  REQUIRE(descriptors.size() == 20);
  (*listener)->Stop();
  REQUIRE(lstat(path.c_str(), &info) != 0);
  REQUIRE(Connect(path) < 0);
}

TEST_CASE("E07 a live socket is never stolen, a stale one is replaced") {
  TempDir dir;
  const std::string path = dir / "s.sock";
  auto first = UnixListener::Bind(path);
  REQUIRE_OK(first);
  REQUIRE_ERROR(UnixListener::Bind(path), Code::kAlreadyExists, "listens on");
  // Of another program, which knows nothing of our lock.
  const std::string foreign = dir / "foreign.sock";
  const pid_t child = fork();
  if (child == 0) {
    const int server = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, foreign.c_str(), sizeof(address.sun_path) - 1);
    bind(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    listen(server, 1);
    for (;;) pause();
  }
  int probe = -1;
  while ((probe = Connect(foreign)) < 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  close(probe);
  REQUIRE_ERROR(UnixListener::Bind(foreign), Code::kAlreadyExists, "listens on");
  kill(child, SIGKILL);
  REQUIRE(waitpid(child, nullptr, 0) == child);
  auto replaced = UnixListener::Bind(foreign);
  REQUIRE_OK(replaced);
  const int client = Connect(foreign);
  REQUIRE(client >= 0);
  close(client);
}

TEST_CASE("E07 what is no socket is left alone, and impossible paths are named") {
  TempDir dir;
  const std::string file = dir / "file";
  std::ofstream(file) << "mine";
  REQUIRE_ERROR(UnixListener::Bind(file), Code::kAlreadyExists, "no socket");
  std::string content;
  std::ifstream(file) >> content;
  REQUIRE(content == "mine");
  REQUIRE_ERROR(UnixListener::Bind(dir / std::string(120, 'x')), Code::kInvalidArgument, "107");
  REQUIRE_ERROR(UnixListener::Bind(dir / "none/s.sock"), Code::kInvalidArgument, "none/s.sock");
}

}  // namespace
}  // namespace wstore::service
