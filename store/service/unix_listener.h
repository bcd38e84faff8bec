// The server's unix socket: a path that nobody else's is taken from, and whom each connection comes
// from.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace wstore::service {

// The process at the other end of a connection, as the kernel says when it connects.
struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};
// "uid 1000 (ann), pid 4711".
std::string ToString(const PeerCredentials& credentials);

class UnixListener {
 public:
  // Gets each connection in a thread of the listener, and owns the descriptor (non-blocking,
  // close-on-exec).
  using Accepted = std::function<void(int descriptor, const PeerCredentials& credentials)>;

  // Binds `path` with mode 0600. A socket there that nobody listens on any more is replaced; all
  // else is left alone. The file beside it, named path + ".lock", keeps two starts apart.
  //   kInvalidArgument: longer than 107 bytes; no such directory
  //   kAlreadyExists: a server listens there, or something that is not a socket is there
  //   kPermissionDenied, kUnavailable: another error of the system, named
  static absl::StatusOr<std::unique_ptr<UnixListener>> Bind(const std::string& path);

  // Stops listening, and removes the socket if it is still this one.
  ~UnixListener();
  UnixListener(const UnixListener&) = delete;
  UnixListener& operator=(const UnixListener&) = delete;

  // Begins to accept. Once.
  void Start(Accepted accepted);
  // Accepts nothing more; the path is free when it returns.
  void Stop();

  const std::string& path() const { return path_; }

 private:
  UnixListener(std::string path, int lock, int socket);
  void Run();

  const std::string path_;
  int lock_;
  int socket_;
  int wake_[2] = {-1, -1};  // a pipe: closed to end the thread
  ino_t inode_ = 0;
  Accepted accepted_;
  std::thread thread_;
};

}  // namespace wstore::service
