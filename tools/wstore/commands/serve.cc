// wstore serve: the service of a store, until it is told to stop.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "store/service/metrics.h"
#include "store/service/server.h"
#include "tools/wstore/command.h"
#include "tools/wstore/format.h"
#include "tools/wstore/parse.h"

namespace wstore::cli {
namespace {

// How the process ends when it is told so twice: as if by the signal.
constexpr int kForcedExit = 130;

absl::Status SetDuration(const std::string& text, const char* flag, int64_t* micros) {
  const absl::StatusOr<int64_t> milliseconds = ParseDurationMs(text);
  RETURN_IF_ERROR(Prefixed(milliseconds.status(), flag));
  *micros = *milliseconds * 1000;
  return absl::OkStatus();
}

class ServeCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& program) override {
    CLI::App* const verb = program.add_subcommand(
        "serve", "Serve the store to trainers, workers and operators, until SIGTERM");
    verb->group(kOtherGroup);
    verb->add_option("--listen", listen_,
                     "unix:PATH or HOST:PORT; may be repeated. Default: unix:DIR/wstore.sock, for "
                     "this user only")
        ->type_name("ADDR")
        ->allow_extra_args(false);
    verb->add_option("--metrics", metrics_,
                     "Figures for Prometheus at http://HOST:PORT/metrics; open to whoever reaches "
                     "the port")
        ->type_name("HOST:PORT");
    verb->add_option("--lease", lease_, "How long a worker may serve without news. Default: 3s")
        ->type_name("T");
    verb->add_option("--skew", skew_,
                     "By how much clocks may drift apart within a lease. Default: 1s")
        ->type_name("T");
    verb->add_option("--apply-deadline", apply_deadline_,
                     "From the order to apply until a worker is fenced; at least lease + skew. "
                     "Default: 5s")
        ->type_name("T");
    verb->add_option("--hold-deadline", hold_deadline_,
                     "From the order to apply until an undecided publish is aborted. Default: 10s")
        ->type_name("T");
    verb->add_option("--laggards", laggards_,
                     "What becomes of workers that are too slow: fenced (the default), or the "
                     "publish is aborted")
        ->check(CLI::IsMember({"fence", "abort"}));
    verb->add_option("--grace", grace_,
                     "How long a stop waits for a publish being decided. Default: 10s")
        ->type_name("T");
    CLI::Option* const certificate =
        verb->add_option("--tls-cert", tls_.certificate_chain, "Certificate chain for TCP (PEM)")
            ->type_name(kFileType);
    CLI::Option* const key =
        verb->add_option("--tls-key", tls_.private_key, "Its private key (PEM)")
            ->type_name(kFileType);
    certificate->needs(key);
    key->needs(certificate);
    verb->add_option("--tls-client-ca", tls_.client_authorities,
                     "Clients must show a certificate of one of these authorities (PEM)")
        ->type_name(kFileType)
        ->needs(certificate);
    verb->add_flag("--insecure-tcp", insecure_tcp_,
                   "Listen on TCP without TLS: whoever reaches the port may do everything");
    // For tests of faults: the first time that it comes there, it stops as if by SIGSTOP; or the
    // thread that comes there goes no further.
    verb->add_option("--stop-at", stop_at_)->group("");
    verb->add_option("--hang-at", hang_at_)->group("");
    verb->footer(Examples({"wstore --store /stores/m serve",
                           "wstore serve --listen unix:/run/wstore/m.sock --lease 2s"}));
    return verb;
  }

  absl::StatusOr<ExitCode> Run(Session& session) override {
    // All threads inherit this; the signals are waited for below.
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    signal(SIGPIPE, SIG_IGN);

    service::ServerOptions options;
    ASSIGN_OR_RETURN(options.directory, session.StoreDirectory());
    int64_t grace_micros = 0;
    RETURN_IF_ERROR(Fill(&options, &grace_micros));
    ASSIGN_OR_RETURN(const std::unique_ptr<service::Server> server,
                     service::Server::Start(options));
    std::unique_ptr<service::MetricsServer> metrics;
    if (!metrics_.empty()) {
      ASSIGN_OR_RETURN(metrics, service::MetricsServer::Start(
                                    metrics_, [&server] { return server->figures(); }));
    }
    const std::vector<std::string> addresses = server->addresses();
    session.ChangeResult(
        absl::StrCat("Serving ", options.directory, " on ", absl::StrJoin(addresses, ", "), "\n"),
        "", {{"addresses", addresses}, {"metrics", metrics_}, {"pid", getpid()}});
    std::cout.flush();

    int received = 0;
    sigwait(&signals, &received);
    std::thread([signals] {
      int again = 0;
      sigwait(&signals, &again);
      _exit(kForcedExit);
    }).detach();
    metrics.reset();
    server->Shutdown(grace_micros);
    // All that was promised is on disk. What is left is gRPC's, which may wait ten seconds for a
    // poller of its own.
    std::fflush(nullptr);
    std::_Exit(static_cast<int>(ExitCode::kDone));
  }

 private:
  absl::Status Fill(service::ServerOptions* options, int64_t* grace_micros) const {
    protocol::Timing& timing = options->coordinator.timing;
    RETURN_IF_ERROR(SetDuration(lease_, "--lease", &timing.lease));
    RETURN_IF_ERROR(SetDuration(skew_, "--skew", &timing.skew));
    RETURN_IF_ERROR(SetDuration(apply_deadline_, "--apply-deadline", &timing.apply_deadline));
    RETURN_IF_ERROR(SetDuration(hold_deadline_, "--hold-deadline", &timing.hold_deadline));
    RETURN_IF_ERROR(SetDuration(grace_, "--grace", grace_micros));
    options->coordinator.laggards =
        laggards_ == "abort" ? protocol::Laggards::kAbort : protocol::Laggards::kFence;
    options->listen = listen_;
    if (!tls_.certificate_chain.empty()) options->tls = tls_;
    options->insecure_tcp = insecure_tcp_;
    if (!stop_at_.empty() || !hang_at_.empty()) {
      auto stopped = std::make_shared<std::atomic<bool>>(false);
      options->on_step = [stop = stop_at_, hang = hang_at_, stopped](std::string_view step) {
        if (step == stop && !stopped->exchange(true)) raise(SIGSTOP);
        while (step == hang) pause();
      };
    }
    options->log = [](const std::string& line) {
      std::string text =
          absl::StrCat("time=", FormatRfc3339(SystemClock().NowUnixMicros()), " ", line);
      // What clients say is in it, too.
      for (char& c : text) {
        if (static_cast<unsigned char>(c) < ' ') c = ' ';
      }
      text += '\n';
      std::fwrite(text.data(), 1, text.size(), stderr);
    };
    return absl::OkStatus();
  }

  std::vector<std::string> listen_;
  std::string metrics_;
  std::string lease_ = "3s";
  std::string skew_ = "1s";
  std::string apply_deadline_ = "5s";
  std::string hold_deadline_ = "10s";
  std::string laggards_ = "fence";
  std::string grace_ = "10s";
  service::TlsFiles tls_;
  bool insecure_tcp_ = false;
  std::string stop_at_;
  std::string hang_at_;
};

}  // namespace

std::unique_ptr<Command> MakeServeCommand() { return std::make_unique<ServeCommand>(); }

}  // namespace wstore::cli
