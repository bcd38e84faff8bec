#include "store/service/unix_listener.h"

#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace wstore::service {
namespace {

constexpr size_t kMaxPathBytes = sizeof(sockaddr_un::sun_path) - 1;
constexpr int kBacklog = 128;
// Descriptors of connections are numbered upwards from here, and start over near the limit. A call
// knows its connection by that number only; it must not belong to another one a moment later.
constexpr int kFirstDescriptor = 256;

absl::Status SystemError(int error, const std::string& what) {
  const std::string text = absl::StrCat(what, ": ", strerror(error));
  if (error == EACCES || error == EPERM || error == EROFS) return absl::PermissionDeniedError(text);
  if (error == ENOENT || error == ENOTDIR) return absl::InvalidArgumentError(text);
  return absl::UnavailableError(text);
}

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// Whether anybody listens on the socket at `path`.
absl::StatusOr<bool> IsLive(const std::string& path) {
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (probe < 0) return SystemError(errno, "making a socket");
  const sockaddr_un address = AddressOf(path);
  const int result = connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int error = result == 0 ? 0 : errno;
  close(probe);
  // A full backlog is that of a server that is busy.
  if (error == 0 || error == EAGAIN || error == EINPROGRESS) return true;
  if (error == ECONNREFUSED || error == ENOENT) return false;
  return SystemError(error, absl::StrCat("trying ", path));
}

// Makes room at `path`, if nobody is there.
absl::Status RemoveStale(const std::string& path) {
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : SystemError(errno, path);
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::AlreadyExistsError(
        absl::StrCat(path, " is there and is no socket; it is left as it is: choose another path"));
  }
  ASSIGN_OR_RETURN(const bool live, IsLive(path));
  if (live) {
    return absl::AlreadyExistsError(absl::StrCat("a server listens on ", path, " already"));
  }
  return unlink(path.c_str()) == 0 ? absl::OkStatus()
                                   : SystemError(errno, absl::StrCat("removing ", path));
}

int DescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 20));
}

}  // namespace

std::string ToString(const PeerCredentials& credentials) {
  passwd entry = {};
  passwd* found = nullptr;
  std::vector<char> buffer(16384);
  getpwuid_r(credentials.uid, &entry, buffer.data(), buffer.size(), &found);
  return absl::StrCat("uid ", credentials.uid,
                      found != nullptr ? absl::StrCat(" (", found->pw_name, ")") : std::string(),
                      ", pid ", credentials.pid);
}

absl::StatusOr<std::unique_ptr<UnixListener>> UnixListener::Bind(const std::string& path) {
  if (path.empty() || path.size() > kMaxPathBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the socket path ", path, " has ", path.size(),
                                                   " bytes; 1 to ", kMaxPathBytes, " are allowed"));
  }
  const std::string lock_path = path + ".lock";
  const int lock = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock < 0) return SystemError(errno, absl::StrCat("opening ", lock_path));
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    close(lock);
    return absl::AlreadyExistsError(absl::StrCat("a server listens on ", path, " already"));
  }
  const int listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  std::unique_ptr<UnixListener> listener(new UnixListener(path, lock, listening));
  if (listening < 0) return SystemError(errno, "making a socket");
  RETURN_IF_ERROR(RemoveStale(path));
  // Before the path exists, so that nobody can connect in between.
  if (fchmod(listening, 0600) != 0) return SystemError(errno, absl::StrCat("mode of ", path));
  const sockaddr_un address = AddressOf(path);
  if (bind(listening, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return SystemError(errno, absl::StrCat("binding ", path));
  }
  struct stat info = {};
  if (lstat(path.c_str(), &info) == 0) listener->inode_ = info.st_ino;
  if (chmod(path.c_str(), 0600) != 0) return SystemError(errno, absl::StrCat("mode of ", path));
  if (listen(listening, kBacklog) != 0) {
    return SystemError(errno, absl::StrCat("listening on ", path));
  }
  return listener;
}

UnixListener::UnixListener(std::string path, int lock, int socket)
    : path_(std::move(path)), lock_(lock), socket_(socket) {}

UnixListener::~UnixListener() { Stop(); }

void UnixListener::Start(Accepted accepted) {
  WSTORE_CHECK(pipe2(wake_, O_CLOEXEC) == 0);
  accepted_ = std::move(accepted);
  thread_ = std::thread([this] { Run(); });
}

void UnixListener::Stop() {
  if (thread_.joinable()) {
    close(wake_[1]);
    thread_.join();
    close(wake_[0]);
  }
  if (socket_ >= 0) {
    struct stat info = {};
    if (inode_ != 0 && lstat(path_.c_str(), &info) == 0 && info.st_ino == inode_) {
      unlink(path_.c_str());
    }
    close(socket_);
    socket_ = -1;
  }
  if (lock_ >= 0) close(lock_);
  lock_ = -1;
}

void UnixListener::Run() {
  const int limit = DescriptorLimit();
  int next = kFirstDescriptor;
  for (;;) {
    pollfd polled[2] = {{socket_, POLLIN, 0}, {wake_[0], 0, 0}};
    if (poll(polled, 2, -1) < 0 && errno != EINTR) return;
    if (polled[1].revents != 0) return;
    const int accepted = accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (accepted < 0) {
      // Out of descriptors or memory: the caller waits in the backlog until there are some again.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
      continue;
    }
    PeerCredentials credentials;
    ucred kernel = {};
    socklen_t size = sizeof(kernel);
    if (getsockopt(accepted, SOL_SOCKET, SO_PEERCRED, &kernel, &size) != 0) {
      close(accepted);  // nobody without a name
      continue;
    }
    credentials = {kernel.pid, kernel.uid, kernel.gid};
    int moved = fcntl(accepted, F_DUPFD_CLOEXEC, next);
    if (moved < 0) moved = fcntl(accepted, F_DUPFD_CLOEXEC, kFirstDescriptor);
    next = moved + 1 < limit ? moved + 1 : kFirstDescriptor;
    if (moved < 0) {
      accepted_(accepted, credentials);
      continue;
    }
    close(accepted);
    accepted_(moved, credentials);
  }
}

}  // namespace wstore::service
