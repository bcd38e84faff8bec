// A client over TLS, and publishes that need not be durable.
#include <unistd.h>

#include <atomic>

#include "tests/support/process.h"
#include "tests/unit/client/served_fixture.h"

// LeakSanitizer asks for this. gRPC 1.51 now and then loses what OpenSSL made for a handshake that
// failed, or for a thread in which one did; below many do.
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:CRYPTO_malloc\nleak:CRYPTO_zalloc\nleak:CRYPTO_strdup\nleak:CRYPTO_strndup\n";
}

namespace wstore::testing {
namespace {

// Certificates of an authority that is made for the test.
class Authority {
 public:
  Authority(const TempDir& directory, const std::string& name) : base_(directory / name) {
    Run({"req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=" + name,
         "-keyout", base_ + ".key", "-out", certificate()});
  }
  std::string certificate() const { return base_ + ".pem"; }

  // Of this host name; the key beside it as PATH.key.
  std::string Issue(const std::string& host) const {
    const std::string path = base_ + "-" + host;
    WriteFile(path + ".ext", "subjectAltName=DNS:" + host + "\n");
    Run({"req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=" + host, "-keyout", path + ".key",
         "-out", path + ".csr"});
    Run({"x509", "-req", "-in", path + ".csr", "-CA", certificate(), "-CAkey", base_ + ".key",
         "-CAcreateserial", "-days", "2", "-extfile", path + ".ext", "-out", path});
    return path;
  }

 private:
  static void Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "openssl");
    const ProcessResult result = RunProcess(arguments);
    INFO(result.err);
    REQUIRE(result.exit_status == 0);
  }

  const std::string base_;
};

TEST_CASE("E12 a client and a server know each other by certificates") {
  const TempDir directory;
  const Authority ours(directory, "ours");
  const Authority other(directory, "other");
  const std::string server_files = ours.Issue("store.example");
  const std::string client_files = ours.Issue("trainer.example");
  const std::string stranger_files = other.Issue("trainer.example");
  StoreFixture store;
  const NaiveTensors one = store.Changed(store.version(0), 0.05);
  store.CloseStore();
  service::ServerOptions options = QuickServer(store.store_path());
  options.listen = {"127.0.0.1:0"};
  options.tls = service::TlsFiles{server_files, server_files + ".key", ours.certificate()};
  auto server = service::Server::Start(options);
  REQUIRE_OK(server);

  const std::string address = (*server)->addresses()[0];
  const auto connect = [&](const TlsOptions& tls) {
    const auto client = Client::Connect({address, tls, false}, "trainer");
    REQUIRE_OK(client);
    return *client;
  };
  TlsOptions tls = {ours.certificate(), client_files, client_files + ".key", "store.example"};
  const auto client = connect(tls);
  const auto publisher = ServedFixture::StartPublisher(client);
  REQUIRE_OK(ServedFixture::Publish(*publisher, one, "one"));
  REQUIRE(client->Head(Soon())->head.version == VersionId(1));
  REQUIRE(client->Moves(1, Soon())->at(0).peer.find("127.0.0.1") != std::string::npos);

  const auto refused = [&](const TlsOptions& wrong) {
    const auto head = connect(wrong)->Head(Deadline::After(500'000));
    INFO(head.status().ToString());
    REQUIRE_FALSE(head.ok());
    REQUIRE((absl::IsUnavailable(head.status()) || absl::IsDeadlineExceeded(head.status())));
  };
  refused({ours.certificate(), "", "", "store.example"});  // shows nothing
  refused({ours.certificate(), stranger_files, stranger_files + ".key", "store.example"});
  refused({other.certificate(), client_files, client_files + ".key", "store.example"});
  refused({ours.certificate(), client_files, client_files + ".key", "other.example"});
  REQUIRE_ERROR(Client::Connect({address, {}, false}, ""), absl::StatusCode::kInvalidArgument,
                "TLS");
  const auto bare = Client::Connect({address, {}, true}, "");
  REQUIRE_OK(bare);
  REQUIRE_FALSE((*bare)->Head(Deadline::After(500'000)).ok());
  REQUIRE_ERROR(
      Client::Connect({address, TlsOptions{ours.certificate(), client_files, "", ""}, false}, ""),
      absl::StatusCode::kInvalidArgument, "private key");
  REQUIRE_ERROR(Client::Connect({address, TlsOptions{directory / "absent", "", "", ""}, false}, ""),
                absl::StatusCode::kNotFound, "absent");
  (*server)->Shutdown(1'000'000);
}

TEST_CASE("an asynchronous publish is answered before it is durable, and is durable soon") {
  StoreFixture store;
  const NaiveTensors base = store.version(0);
  const NaiveTensors one = store.Changed(base, 0.05);
  const NaiveTensors two = store.Changed(one, 0.05);
  store.CloseStore();
  std::atomic<bool> may_sync = false;
  service::ServerOptions options = QuickServer(store.store_path());
  options.on_step = [&](std::string_view step) {
    while (step == "syncing" && !may_sync) usleep(1000);
  };
  auto server = service::Server::Start(options);
  REQUIRE_OK(server);
  const auto client = ServedFixture::Connect((*server)->addresses()[0]);
  const auto publisher = ServedFixture::StartPublisher(client);
  PublishOptions publish;
  publish.begin.transaction_id = "one";
  publish.durability = PublishDurability::kAsync;
  const MemoryTensors first = InMemory(publisher->manifest(), one);
  auto decision = publisher->Publish(first, publish, Soon());
  REQUIRE_OK(decision);
  REQUIRE(decision->outcome == CommitResult::Outcome::kServedNotDurable);
  REQUIRE(decision->version == VersionId(1));
  // The shadow is where the fleet is; head says how much of it is on disk.
  REQUIRE(ServedFixture::ShadowIs(*publisher, one));
  REQUIRE(client->Head(Soon())->head.version == VersionId(1));
  REQUIRE(client->Head(Soon())->durable == VersionId(0));
  decision = publisher->Publish(first, publish, Soon());
  REQUIRE_OK(decision);
  // Nothing is put on it meanwhile.
  REQUIRE_ERROR(ServedFixture::Publish(*publisher, two, "two", Deadline::After(500'000)),
                absl::StatusCode::kUnavailable, "not durable yet");
  may_sync = true;
  REQUIRE_OK(ServedFixture::Publish(*publisher, two, "two"));
  REQUIRE(client->Head(Soon())->durable == VersionId(2));
  decision = client->Ask("one", Soon());
  REQUIRE_OK(decision);
  REQUIRE(decision->outcome != CommitResult::Outcome::kServedNotDurable);
  (*server)->Shutdown(1'000'000);
  server->reset();
  store.Reopen();
  REQUIRE((store.Exported(1) == one));
  REQUIRE((store.Exported(2) == two));
}

}  // namespace
}  // namespace wstore::testing
