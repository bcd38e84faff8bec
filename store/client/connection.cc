#include "store/client/connection.h"

#include <grpcpp/security/credentials.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/strings.h"

namespace wstore::client {
namespace {

constexpr size_t kMaxSocketPathBytes = 107;
constexpr int kMinReconnectMs = 50;
constexpr int kMaxReconnectMs = 1000;
// gRPC gives up one attempt to connect after its pause or this, whichever is longer. A lost first
// packet is sent again after 1, 3 and 7 seconds.
constexpr int kConnectMs = 5000;
constexpr int64_t kFirstPauseMicros = 20'000;
constexpr int64_t kLongestPauseMicros = 1'000'000;

constexpr char kDetailPayload[] = "wstore.v1.ErrorDetail";

struct Target {
  std::string address;
  bool is_tcp = false;
};

absl::StatusOr<Target> ParseAddress(const std::string& address) {
  std::string path;
  if (absl::StartsWith(address, "unix:")) {
    path = address.substr(5);
  } else if (absl::StrContains(address, "/")) {
    path = address;
  }
  if (!path.empty()) {
    if (path.size() > kMaxSocketPathBytes) {
      return absl::InvalidArgumentError(absl::StrCat("the socket's path has ", path.size(),
                                                     " bytes; the limit is ", kMaxSocketPathBytes,
                                                     ": ", path));
    }
    return Target{absl::StrCat("unix:", path), false};
  }
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  const bool has_port = colon != std::string::npos && colon > 0 &&
                        absl::SimpleAtoi(address.substr(colon + 1), &port) && port > 0 &&
                        port <= 65'535;
  const std::string host = has_port ? address.substr(0, colon) : "";
  const bool is_bracketed =
      host.size() > 2 && absl::StartsWith(host, "[") && absl::EndsWith(host, "]");
  if (!has_port || (absl::StrContains(host, ":") && !is_bracketed)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", address, "' is no address of a server: give unix:PATH, HOST:PORT or [IPV6]:PORT"));
  }
  return Target{address, true};
}

absl::StatusOr<std::string> ReadPem(const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  if (!file || content.str().empty()) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path));
  }
  return content.str();
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> CredentialsOf(
    const ConnectOptions& options, const Target& target) {
  if (!target.is_tcp) return grpc::InsecureChannelCredentials();
  if (!options.tls) {
    if (options.insecure_tcp) return grpc::InsecureChannelCredentials();
    return absl::InvalidArgumentError(
        absl::StrCat("TCP to ", target.address,
                     " needs TLS, or the explicit word that it may go without (insecure TCP)"));
  }
  if (options.tls->certificate_chain.empty() != options.tls->private_key.empty()) {
    return absl::InvalidArgumentError("a TLS certificate and its private key go together");
  }
  grpc::SslCredentialsOptions ssl;
  ASSIGN_OR_RETURN(ssl.pem_root_certs, ReadPem(options.tls->authorities));
  ASSIGN_OR_RETURN(ssl.pem_cert_chain, ReadPem(options.tls->certificate_chain));
  ASSIGN_OR_RETURN(ssl.pem_private_key, ReadPem(options.tls->private_key));
  return grpc::SslCredentials(ssl);
}

gpr_timespec ToTimespec(Deadline deadline) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_micros(deadline.left_micros(), GPR_TIMESPAN));
}

}  // namespace

absl::StatusOr<std::shared_ptr<Connection>> Connection::Open(const ConnectOptions& options) {
  ASSIGN_OR_RETURN(const Target target, ParseAddress(options.address));
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials,
                   CredentialsOf(options, target));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  // A server that is started again is found soon; connections of two clients have nothing to do
  // with each other.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kMinReconnectMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMs);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Retrying is ours, where it is right.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  if (options.tls && !options.tls->server_name.empty()) {
    arguments.SetSslTargetNameOverride(options.tls->server_name);
  }
  auto channel = grpc::CreateCustomChannel(target.address, credentials, arguments);
  return std::shared_ptr<Connection>(new Connection(target.address, std::move(channel)));
}

Connection::Connection(std::string address, std::shared_ptr<grpc::Channel> channel)
    : address_(std::move(address)), process_(getpid()), parts_(std::make_unique<Parts>()) {
  parts_->channel = std::move(channel);
  parts_->stub = v1::Store::NewStub(parts_->channel);
}

Connection::~Connection() {
  // The threads that gRPC would wait for are not in this process.
  if (getpid() != process_) static_cast<void>(parts_.release());
}

absl::Status Connection::CheckProcess() const {
  if (getpid() == process_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the connection to ", address_, " was made by process ", process_,
                   ", of which this is a child; connect again here"));
}

void Connection::SetDeadline(grpc::ClientContext* context, Deadline deadline) {
  context->set_deadline(ToTimespec(deadline));
}

absl::Status Connection::WaitUntilConnected(Deadline deadline) const {
  RETURN_IF_ERROR(CheckProcess());
  if (parts_->channel->WaitForConnected(ToTimespec(deadline))) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("no server answers at ", address_));
}

absl::Status Connection::FromGrpc(const grpc::Status& status) const {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  std::string message = status.error_message();
  if (code == absl::StatusCode::kDeadlineExceeded) {
    message = absl::StrCat("no answer from ", address_, " in time");
  } else if (code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kUnknown ||
             code == absl::StatusCode::kInternal) {
    message = absl::StrCat(address_, ": ", message);
  }
  absl::Status out(code, message);
  v1::ErrorDetail detail;
  if (!status.error_details().empty() && detail.ParseFromString(status.error_details())) {
    out.SetPayload(kDetailPayload, absl::Cord(status.error_details()));
  }
  return out;
}

bool Connection::Pause(int64_t micros) const {
  const Deadline end = Deadline::After(micros);
  const bool stood = parts_->channel->GetState(/*try_to_connect=*/true) == GRPC_CHANNEL_READY;
  if (!stood && parts_->channel->WaitForConnected(ToTimespec(end))) return true;
  std::this_thread::sleep_for(std::chrono::microseconds(end.left_micros()));
  return false;
}

absl::Status Retry(const Connection& connection, Deadline deadline,
                   const std::function<absl::Status()>& attempt) {
  int64_t pause_micros = kFirstPauseMicros;
  for (;;) {
    absl::Status status = attempt();
    const int64_t left = deadline.left_micros();
    if (!absl::IsUnavailable(status) || left <= 0) return status;
    connection.Pause(std::min(pause_micros, left));
    if (deadline.has_passed()) return status;
    pause_micros = std::min(2 * pause_micros, kLongestPauseMicros);
  }
}

std::optional<v1::Head> HeadIn(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kDetailPayload);
  v1::ErrorDetail detail;
  if (!payload || !detail.ParseFromString(std::string(*payload)) || !detail.has_head()) {
    return std::nullopt;
  }
  return detail.head();
}

}  // namespace wstore::client
