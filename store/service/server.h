// The server: a store open for writing, its fleet, and where it listens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/protocol/coordinator.h"
#include "store/service/figures.h"

namespace wstore::service {

struct TlsFiles {
  std::string certificate_chain;
  std::string private_key;
  // If it is given, clients must show a certificate of one of these authorities.
  std::string client_authorities;
};

struct ServerOptions {
  std::string directory;  // of the store
  // "unix:PATH", "HOST:PORT" or "[IPV6]:PORT" (port 0: any). Empty: unix:DIRECTORY/wstore.sock.
  std::vector<std::string> listen;
  std::optional<TlsFiles> tls;
  // Allows TCP without TLS: whoever reaches the port may do everything.
  bool insecure_tcp = false;
  protocol::CoordinatorConfig coordinator;
  std::string actor;                                // of the server itself; empty: user@host
  int threads = 0;                                  // for content; 0: one per processor
  uint64_t memory_limit_bytes = uint64_t{1} << 30;  // of gRPC's buffers, for all connections
  // See Fleet::Options::on_step.
  std::function<void(std::string_view)> on_step;
  // One line each, without time and newline. From any thread.
  std::function<void(const std::string&)> log;
};

// Threads: any. Destroying it shuts it down without grace.
class Server {
 public:
  // Opens the store, and listens. The server is ready, and says so by grpc.health.v1, once leases
  // of an earlier run have ended.
  //   kInvalidArgument: a bad address, socket path or timing; TCP without TLS or `insecure_tcp`
  //   kAlreadyExists: another server listens there, or a file is in the way
  //   else, errors of Store::Open
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);
  virtual ~Server() = default;

  // Where it listens, with the ports that were chosen.
  virtual std::vector<std::string> addresses() const = 0;

  // Until Shutdown. Blocks for moments.
  virtual ServerFigures figures() const = 0;

  // Accepts nothing more, aborts a publish that is not being decided, waits for one that is, and
  // ends: everything that was answered as committed is on disk. Blocks for at most about twice
  // `grace_micros`, and a disk write that has begun.
  virtual void Shutdown(int64_t grace_micros) = 0;
};

}  // namespace wstore::service
