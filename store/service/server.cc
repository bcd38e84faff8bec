#include "store/service/server.h"

#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>

#include <atomic>
#include <condition_variable>
#include <fstream>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "store/live.h"
#include "store/service/fleet.h"
#include "store/service/rpc_service.h"
#include "store/service/unix_listener.h"
#include "store/version/actor.h"

namespace wstore::service {
namespace {

constexpr int kMaxStreamsPerConnection = 1024;
constexpr int kMinPingIntervalMs = 10'000;
constexpr auto kSlowReaderCheck = std::chrono::seconds(5);
constexpr char kUnixPrefix[] = "unix:";

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (file.good() || file.eof()) {
    if (!bytes.empty()) return bytes;
  }
  return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ", or it is empty"));
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> TcpCredentials(
    const ServerOptions& options) {
  if (!options.tls) {
    if (options.insecure_tcp) return grpc::InsecureServerCredentials();
    return absl::InvalidArgumentError(
        "listening on TCP needs a certificate and key (--tls-cert, --tls-key); "
        "--insecure-tcp does without, and lets everybody who reaches the port do everything");
  }
  grpc::SslServerCredentialsOptions ssl(
      options.tls->client_authorities.empty()
          ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
          : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  ASSIGN_OR_RETURN(std::string key, ReadFile(options.tls->private_key));
  ASSIGN_OR_RETURN(std::string chain, ReadFile(options.tls->certificate_chain));
  ssl.pem_key_cert_pairs.push_back({std::move(key), std::move(chain)});
  if (!options.tls->client_authorities.empty()) {
    ASSIGN_OR_RETURN(ssl.pem_root_certs, ReadFile(options.tls->client_authorities));
  }
  return grpc::SslServerCredentials(ssl);
}

// Members are destroyed from the last to the first: connections before the service, the service
// before the fleet, the fleet before the store.
class ServerImpl final : public Server {
 public:
  ~ServerImpl() override { Shutdown(0); }

  absl::Status Run(const ServerOptions& options) {
    RETURN_IF_ERROR(protocol::CheckTiming(options.coordinator.timing));
    RETURN_IF_ERROR(BindSockets(options));
    LiveStore::Options live;
    live.open.actor = options.actor.empty() ? DefaultActor() : options.actor;
    live.open.threads = options.threads;
    ASSIGN_OR_RETURN(live_, LiveStore::Open(options.directory, live));
    Fleet::Options fleet;
    fleet.coordinator = options.coordinator;
    fleet.actor = live.open.actor;
    fleet.log = options.log;
    fleet.on_step = options.on_step;
    fleet.ended = [this](std::string_view why, std::string_view outcome, int64_t micros) {
      transactions_.Add(why, outcome, micros);
    };
    log_ = options.log;
    fleet_ = std::make_unique<Fleet>(*live_, fleet);
    service_ = std::make_unique<RpcService>(*live_, *fleet_, peers_, RpcLimits(), options.log);
    RETURN_IF_ERROR(StartGrpc(options));
    watch_ = fleet_->Watch([this](const HeadState& state) {
      SetReady(state.phase == protocol::CoordinatorPhase::kReady);
    });
    RETURN_IF_ERROR(fleet_->Start());
    for (const auto& listener : listeners_) {
      listener->Start([this](int descriptor, const PeerCredentials& credentials) {
        peers_.Set(absl::StrCat("fd:", descriptor), ToString(credentials));
        grpc::AddInsecureChannelFromFd(server_.get(), descriptor);
      });
    }
    janitor_ = std::thread([this] { Sweep(); });
    Log(absl::StrCat("level=info event=listening addresses=\"", absl::StrJoin(addresses_, " "),
                     "\""));
    return absl::OkStatus();
  }

  std::vector<std::string> addresses() const override { return addresses_; }

  ServerFigures figures() const override {
    ServerFigures figures = service_->figures();
    figures.transactions = transactions_.rows();
    return figures;
  }

  void Shutdown(int64_t grace_micros) override {
    if (stopped_.exchange(true)) return;
    Log("level=info event=stopping");
    SetReady(false);
    for (const auto& listener : listeners_) listener->Stop();
    if (fleet_ != nullptr) {
      if (watch_ != 0) fleet_->Unwatch(watch_);
      fleet_->Stop(grace_micros);
    }
    if (server_ != nullptr) {
      // Calls that wait have been answered; streams are cut.
      server_->Shutdown(std::chrono::system_clock::now() +
                        std::chrono::microseconds(std::min<int64_t>(grace_micros, 1'000'000)));
    }
    if (service_ != nullptr) service_->Stop();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      swept_ = true;
      changed_.notify_all();
    }
    if (janitor_.joinable()) janitor_.join();
    Log("level=info event=stopped");
  }

 private:
  void Log(const std::string& line) const {
    if (log_) log_(line);
  }

  absl::Status BindSockets(const ServerOptions& options) {
    std::vector<std::string> listen = options.listen;
    if (listen.empty()) listen.push_back(absl::StrCat("unix:", options.directory, "/wstore.sock"));
    for (const std::string& address : listen) {
      if (!absl::StartsWith(address, kUnixPrefix)) {
        tcp_.push_back(address);
        continue;
      }
      ASSIGN_OR_RETURN(std::unique_ptr<UnixListener> listener,
                       UnixListener::Bind(address.substr(sizeof(kUnixPrefix) - 1)));
      addresses_.push_back(address);
      listeners_.push_back(std::move(listener));
    }
    return absl::OkStatus();
  }

  absl::Status StartGrpc(const ServerOptions& options) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ResourceQuota quota("wstore");
    quota.Resize(options.memory_limit_bytes);
    grpc::ServerBuilder builder;
    builder.SetResourceQuota(quota);
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.SetMaxSendMessageSize(kMaxMessageBytes);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kMinPingIntervalMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.RegisterService(service_.get());
    std::vector<int> ports(tcp_.size(), 0);
    if (!tcp_.empty()) {
      ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ServerCredentials> credentials,
                       TcpCredentials(options));
      for (size_t i = 0; i < tcp_.size(); ++i) {
        builder.AddListeningPort(tcp_[i], credentials, &ports[i]);
      }
    }
    server_ = builder.BuildAndStart();
    for (size_t i = 0; i < tcp_.size(); ++i) {
      if (server_ == nullptr || ports[i] == 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "cannot listen on ", tcp_[i], ": HOST:PORT of this machine, not in use, is needed"));
      }
      addresses_.push_back(absl::StrCat(tcp_[i].substr(0, tcp_[i].rfind(':')), ":", ports[i]));
    }
    if (server_ == nullptr) return absl::InternalError("the gRPC server did not start");
    SetReady(false);
    return absl::OkStatus();
  }

  void SetReady(bool ready) {
    if (server_ == nullptr || server_->GetHealthCheckService() == nullptr) return;
    server_->GetHealthCheckService()->SetServingStatus(ready);
    if (ready_.exchange(ready) != ready && ready) Log("level=info event=ready");
  }

  void Sweep() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!changed_.wait_for(lock, kSlowReaderCheck, [this] { return swept_; })) {
      service_->DropSlowReaders();
    }
  }

  std::function<void(const std::string&)> log_;
  TransactionFigures transactions_;
  PeerNames peers_;
  std::vector<std::string> tcp_;
  std::vector<std::string> addresses_;
  std::unique_ptr<LiveStore> live_;
  std::unique_ptr<Fleet> fleet_;
  std::unique_ptr<RpcService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::unique_ptr<UnixListener>> listeners_;
  uint64_t watch_ = 0;
  std::atomic<bool> ready_ = false;
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool swept_ = false;
  std::thread janitor_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  auto server = std::make_unique<ServerImpl>();
  RETURN_IF_ERROR(server->Run(options));
  return server;
}

}  // namespace wstore::service
