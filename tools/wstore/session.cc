#include "tools/wstore/session.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "tools/wstore/embedded_access.h"
#include "tools/wstore/exit_code.h"
#include "tools/wstore/served_access.h"
#include "tools/wstore/terminal.h"

namespace wstore::cli {
namespace {

// How often a store that another process writes is tried again.
constexpr int64_t kRetryMs = 50;

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

constexpr char kSocketName[] = "/wstore.sock";

std::string SocketOf(const std::string& directory) {
  return absl::StrCat("unix:", directory, kSocketName);
}

// The store's directory, where an address tells it; otherwise empty.
std::string DirectoryOf(absl::string_view address) {
  absl::ConsumePrefix(&address, "unix:");
  if (!absl::ConsumeSuffix(&address, kSocketName)) return "";
  const std::string directory(address);
  return access(directory.c_str(), R_OK | X_OK) == 0 ? directory : "";
}

// Whether a process listens at a socket of this address.
bool Listens(const std::string& unix_address) {
  const std::string path = unix_address.substr(5);
  sockaddr_un address{};
  if (path.size() >= sizeof(address.sun_path)) return false;
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return false;
  const int connected = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  // A server whose queue is full is one, too.
  const bool listens = connected == 0 || errno == EAGAIN;
  close(fd);
  return listens;
}

void Write(FILE* stream, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stream);
}

absl::StatusOr<std::unique_ptr<Store>> Open(const std::string& directory,
                                            const OpenOptions& options) {
  absl::StatusOr<std::unique_ptr<Store>> store = Store::Open(directory, options);
  if (!absl::IsNotFound(store.status())) return store;
  return absl::NotFoundError(absl::StrCat("there is no store in ", directory, "; `wstore init ",
                                          directory, " --base CHECKPOINT` creates one"));
}

}  // namespace

absl::StatusOr<std::string> Session::StoreDirectory() const {
  if (!options_.store.empty()) return options_.store;
  const std::string from_environment = Environment("WSTORE_STORE");
  if (!from_environment.empty()) return from_environment;
  return UsageError(
      "no store is named: give --store DIR, or set the environment variable WSTORE_STORE "
      "(`wstore init DIR --base CHECKPOINT` creates a store)");
}

std::string Session::ServerAddress() const {
  if (!options_.server.empty() || !options_.store.empty()) return options_.server;
  return Environment("WSTORE_SERVER");
}

std::string Session::StoreName() const {
  const std::string address = ServerAddress();
  return address.empty() ? StoreDirectory().value_or("") : address;
}

absl::StatusOr<ConnectOptions> Session::ServerOptions() const {
  ConnectOptions options;
  options.address = ServerAddress();
  if (options.address.empty()) {
    ASSIGN_OR_RETURN(const std::string directory, StoreDirectory());
    options.address = SocketOf(directory);
  }
  options.insecure_tcp = !Environment("WSTORE_INSECURE_TCP").empty();
  if (!options.insecure_tcp) {
    options.tls = TlsOptions{Environment("WSTORE_TLS_CA"), Environment("WSTORE_TLS_CERT"),
                             Environment("WSTORE_TLS_KEY"), Environment("WSTORE_TLS_NAME")};
  }
  return options;
}

absl::StatusOr<std::unique_ptr<StoreAccess>> Session::OpenAt(const std::string& address,
                                                             const std::string& directory) const {
  ASSIGN_OR_RETURN(ConnectOptions connect, ServerOptions());
  connect.address = address;
  ASSIGN_OR_RETURN(std::shared_ptr<Client> client, Client::Connect(connect));
  return ConnectAccess(std::move(client), {directory, options_.timeout_ms});
}

absl::StatusOr<std::unique_ptr<StoreAccess>> Session::OpenServed() const {
  const std::string address = ServerAddress();
  if (!address.empty()) return OpenAt(address, DirectoryOf(address));
  ASSIGN_OR_RETURN(const std::string directory, StoreDirectory());
  const std::string socket = SocketOf(directory);
  if (!Listens(socket)) return nullptr;
  return OpenAt(socket, directory);
}

absl::StatusOr<std::unique_ptr<StoreAccess>> Session::OpenForReading() const {
  ASSIGN_OR_RETURN(std::unique_ptr<StoreAccess> served, OpenServed());
  if (served != nullptr) return served;
  ASSIGN_OR_RETURN(std::unique_ptr<Store> store, OpenFilesForReading());
  return MakeEmbeddedAccess(std::move(store), [this] { return OpenFilesForReading(); });
}

absl::StatusOr<std::unique_ptr<StoreAccess>> Session::OpenForWriting() const {
  ASSIGN_OR_RETURN(std::unique_ptr<StoreAccess> served, OpenServed());
  if (served != nullptr) return served;
  ASSIGN_OR_RETURN(std::unique_ptr<Store> store, OpenFilesForWriting());
  return MakeEmbeddedAccess(std::move(store), [this] { return OpenFilesForWriting(); });
}

absl::StatusOr<std::unique_ptr<Store>> Session::OpenFilesForReading() const {
  ASSIGN_OR_RETURN(const std::string directory, StoreDirectory());
  OpenOptions options;
  options.read_only = true;
  return Open(directory, options);
}

absl::StatusOr<std::unique_ptr<Store>> Session::OpenFilesForWriting() const {
  ASSIGN_OR_RETURN(const std::string directory, StoreDirectory());
  Clock& clock = SystemClock();
  const int64_t deadline_micros = clock.NowMonotonicMicros() + options_.timeout_ms * 1000;
  while (true) {
    absl::StatusOr<std::unique_ptr<Store>> store = Open(directory, {});
    const int64_t left_ms = (deadline_micros - clock.NowMonotonicMicros()) / 1000;
    if (!absl::IsUnavailable(store.status()) || left_ms <= 0) return store;
    std::this_thread::sleep_for(std::chrono::milliseconds(std::min(kRetryMs, left_ms)));
  }
}

void Session::Result(std::string_view text, const Json& document) {
  Write(stdout, options_.json ? Dump(document) : text);
}

void Session::ChangeResult(std::string_view text, std::string_view brief, const Json& document) {
  if (!options_.quiet || options_.json) return Result(text, document);
  if (!brief.empty()) Write(stdout, std::string(brief) + "\n");
}

void Session::Remark(std::string_view text) const {
  if (!options_.quiet) Write(stderr, std::string(text) + "\n");
}

bool Session::is_interactive() const { return IsTerminal(stdin) && IsTerminal(stderr); }

bool Session::shows_progress() const {
  return !options_.quiet && !options_.json && IsTerminal(stderr);
}

size_t Session::table_width() const { return TerminalWidth(stdout); }

}  // namespace wstore::cli
