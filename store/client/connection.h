// A channel to a server, and what every call over it needs: deadlines, and errors of one kind.
#pragma once

#include <grpcpp/grpcpp.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "wstore/connect.h"
#include "wstore/v1/service.grpc.pb.h"

namespace wstore::client {

// No message is longer, either way.
inline constexpr int kMaxMessageBytes = 17 << 20;

// Threads: any, side by side. gRPC reconnects by itself; nothing here has to be made anew when the
// server is started again. Nothing outlives the last owner, and nothing is static.
//
// A process that forks must not use it in the child: calls are refused there, and its destruction
// leaves gRPC alone.
class Connection {
 public:
  // Checks the address and reads the TLS files. Does not wait for the server.
  //   kInvalidArgument: a bad address, a socket's path of more than 107 bytes, TCP without TLS or
  //     `insecure_tcp`, a certificate without a key
  //   kNotFound: a file that cannot be read
  static absl::StatusOr<std::shared_ptr<Connection>> Open(const ConnectOptions& options);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // As gRPC takes it: "unix:PATH" or "HOST:PORT".
  const std::string& address() const { return address_; }

  // kFailedPrecondition: in a child of the process that made this. To be asked before a call.
  absl::Status CheckProcess() const;

  v1::Store::Stub& stub() const { return *parts_->stub; }

  // For a call, before it begins.
  static void SetDeadline(grpc::ClientContext* context, Deadline deadline);

  // Waits until a connection stands.
  //   kUnavailable: none by the deadline
  absl::Status WaitUntilConnected(Deadline deadline) const;

  // Waits for so long between two attempts, or until a connection stands where there was none: then
  // true. Whoever only sleeps may not see one come for five seconds, since gRPC looks after a
  // connection while somebody waits for it.
  bool Pause(int64_t micros) const;

  // What a call returned. OK is OK; others keep their code and message, with the server's address
  // where the message does not come from the server, and head where the server sent it (HeadIn).
  absl::Status FromGrpc(const grpc::Status& status) const;

  // One unary call.
  template <typename Request, typename Response>
  absl::Status Call(grpc::Status (v1::Store::Stub::*method)(grpc::ClientContext*, const Request&,
                                                            Response*),
                    const Request& request, Response* response, Deadline deadline) const {
    const absl::Status process = CheckProcess();
    if (!process.ok()) return process;
    grpc::ClientContext context;
    SetDeadline(&context, deadline);
    return FromGrpc((stub().*method)(&context, request, response));
  }

 private:
  struct Parts {
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::Store::Stub> stub;
  };

  Connection(std::string address, std::shared_ptr<grpc::Channel> channel);

  const std::string address_;
  const pid_t process_;
  std::unique_ptr<Parts> parts_;
};

// Calls `attempt` until it returns something else than kUnavailable, with growing pauses of 20 ms
// to 1 s between, or the deadline has passed: then the last error. For what may be done twice.
absl::Status Retry(const Connection& connection, Deadline deadline,
                   const std::function<absl::Status()>& attempt);

// Head as the server saw it, where an error carries it.
std::optional<v1::Head> HeadIn(const absl::Status& status);

}  // namespace wstore::client
