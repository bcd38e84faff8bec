#include "wstore/client.h"

#include <sys/wait.h>

#include <atomic>

#include "tests/support/serve_process.h"
#include "tests/unit/client/breaking_proxy.h"
#include "tests/unit/client/served_fixture.h"

namespace wstore::testing {
namespace {

using Outcome = CommitResult::Outcome;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

PublishOptions WithId(const std::string& id) {
  PublishOptions options;
  options.begin.transaction_id = id;
  return options;
}

TEST_CASE("a publisher's shadow moves on commit only, and follows a rollback by rebase") {
  ServedFixture served;
  const NaiveTensors base = served.store.version(0);
  const NaiveTensors one = served.store.Changed(base, 0.05);
  const NaiveTensors two = served.store.Changed(one, 0.03);
  const auto publisher = served.StartPublisher();
  REQUIRE(ServedFixture::ShadowIs(*publisher, base));
  auto decision = ServedFixture::Publish(*publisher, one, "one");
  REQUIRE_OK(decision);
  REQUIRE(decision->outcome == Outcome::kCommitted);
  REQUIRE(decision->version == VersionId(1));
  REQUIRE(decision->head.head.version == VersionId(1));
  REQUIRE(ServedFixture::ShadowIs(*publisher, one));
  REQUIRE(publisher->parent().version == VersionId(1));

  decision = ServedFixture::Publish(*publisher, one, "nothing");
  REQUIRE_OK(decision);
  REQUIRE(decision->outcome == Outcome::kUnchanged);

  MoveOptions back;
  back.version = "v0";
  back.message = "reward collapsed";
  decision = served.client->Rollback(back, Soon());
  REQUIRE_OK(decision);
  REQUIRE(decision->version == VersionId(0));
  REQUIRE(decision->head.hold);
  const Decision rollback = *decision;

  // The trainer knows nothing of it. What it hears tells where head is.
  decision = ServedFixture::Publish(*publisher, two, "two");
  REQUIRE(absl::IsFailedPrecondition(decision.status()));
  const auto head = ConflictHead(decision.status());
  REQUIRE(head.has_value());
  REQUIRE(head->head.version == VersionId(0));
  REQUIRE(head->hold);
  REQUIRE(ServedFixture::ShadowIs(*publisher, one));
  REQUIRE(publisher->parent().version == VersionId(1));

  const auto rebased = publisher->Rebase(Soon());
  REQUIRE_OK(rebased);
  REQUIRE(ServedFixture::ShadowIs(*publisher, base));
  REQUIRE(publisher->parent().move == rollback.move);
  REQUIRE_OK(served.client->SetHold(false, "", Soon()));
  decision = ServedFixture::Publish(*publisher, two, "two");
  REQUIRE_OK(decision);
  REQUIRE(decision->version == VersionId(2));
  REQUIRE(served.client->Version("v2", Soon())->parent == VersionId(0));

  // A candidate leaves the shadow where head is; a promotion takes head, and Rebase the shadow.
  const NaiveTensors three = served.store.Changed(two, 0.01);
  PublishOptions options = WithId("three");
  options.begin.candidate = true;
  decision = publisher->Publish(InMemory(publisher->manifest(), three), options, Soon());
  REQUIRE_OK(decision);
  REQUIRE(decision->version == VersionId(3));
  REQUIRE(decision->head.head.version == VersionId(2));
  REQUIRE(ServedFixture::ShadowIs(*publisher, two));
  MoveOptions promote;
  promote.version = "v3";
  REQUIRE_OK(served.client->Promote(promote, Soon()));
  REQUIRE_OK(publisher->Rebase(Soon()));
  REQUIRE(ServedFixture::ShadowIs(*publisher, three));
  served.RequireVersions({{0, base}, {1, one}, {2, two}, {3, three}});
}

TEST_CASE("A21 a trainer that starts again from an old counter is refused, and repeats are once") {
  ServedFixture served;
  const NaiveTensors base = served.store.version(0);
  std::map<uint64_t, NaiveTensors> versions = {{0, base}};
  const auto publisher = served.StartPublisher();
  for (uint64_t i = 1; i <= 5; ++i) {
    versions[i] = served.store.Changed(versions[i - 1], 0.02);
    REQUIRE_OK(ServedFixture::Publish(*publisher, versions[i], "step-" + std::to_string(i)));
  }
  // Its shadow is v0, which it takes for head.
  const NaiveTensors other = served.store.Changed(base, 0.01);
  auto memory = InMemory(publisher->manifest(), base);
  auto restarted = Publisher::Start(served.client, VersionId(0), memory, {}, Soon());
  REQUIRE_OK(restarted);
  auto decision = ServedFixture::Publish(**restarted, other, "fresh");
  REQUIRE_ERROR(decision, absl::StatusCode::kFailedPrecondition, "v5");
  REQUIRE(ConflictHead(decision.status())->head.version == VersionId(5));
  // The same content under the id of v5: the first outcome, from wherever the shadow is.
  decision = ServedFixture::Publish(**restarted, versions[5], "step-5");
  REQUIRE_OK(decision);
  REQUIRE(decision->outcome == Outcome::kRepeated);
  REQUIRE(decision->version == VersionId(5));
  REQUIRE(ServedFixture::ShadowIs(**restarted, versions[5]));
  const auto fresh = served.StartPublisher();
  decision = ServedFixture::Publish(*fresh, versions[5], "step-5");
  REQUIRE_OK(decision);
  REQUIRE(decision->outcome == Outcome::kRepeated);
  decision = ServedFixture::Publish(*fresh, versions[3], "step-3");
  REQUIRE_OK(decision);
  REQUIRE(decision->version == VersionId(3));
  // Other content: refused, and the shadow is where it was.
  const auto again = served.StartPublisher();
  decision = ServedFixture::Publish(*again, other, "step-5");
  REQUIRE_ERROR(decision, absl::StatusCode::kAlreadyExists, "step-5");
  REQUIRE(ServedFixture::ShadowIs(*again, versions[5]));

  // Numbers go on after the server was started again, and after a rollback.
  served.Stop();
  served.Start();
  MoveOptions back;
  back.version = "v2";
  REQUIRE_OK(served.client->Rollback(back, Soon()));
  REQUIRE_OK(served.client->SetHold(false, "", Soon()));
  REQUIRE_OK(again->Rebase(Soon()));
  versions[6] = other;
  decision = ServedFixture::Publish(*again, other, "fresh");
  REQUIRE_OK(decision);
  REQUIRE(decision->version == VersionId(6));
  const auto moves = served.client->Moves(1, Soon());
  REQUIRE_OK(moves);
  REQUIRE(moves->size() == 1);
  REQUIRE(moves->front().from == VersionId(2));
  REQUIRE(moves->front().to == VersionId(6));
  served.RequireVersions(versions);
}

// A store on one big tensor, whose new version is another one altogether: a set of its size.
struct BigModel {
  explicit BigModel(uint64_t bytes) {
    std::mt19937_64 random(3);
    const NaiveTensors model = {{"w", {"U8", {bytes}, RandomBytes(random, bytes)}}};
    next = model;
    for (char& byte : next.at("w").bytes) byte = static_cast<char>(byte ^ (1 + random() % 255));
    WriteFile(directory / "base.safetensors", NaiveWrite(model, NamesOf(model)));
    REQUIRE_OK(Store::Create(directory / "store", directory / "base.safetensors", {}));
  }
  TempDir directory;
  NaiveTensors next;
};

void PublishBigSet(uint64_t bytes) {
  BigModel model(bytes);
  auto server = service::Server::Start(QuickServer(model.directory / "store"));
  REQUIRE_OK(server);
  BreakingProxy proxy(model.directory / "proxy.sock", model.directory / "store/wstore.sock");
  const auto client = ServedFixture::Connect(proxy.address());
  const auto publisher = ServedFixture::StartPublisher(client);
  // Twice the connection breaks when most has gone.
  proxy.CutAfter(bytes / 3 * 2, 2);
  const auto decision = ServedFixture::Publish(*publisher, model.next, "big",
                                               Deadline::After(bytes / 20 + 30'000'000));
  REQUIRE_OK(decision);
  REQUIRE(decision->version == VersionId(1));
  REQUIRE(proxy.connections_cut() >= 1);
  // The rest was sent, not all of it again.
  REQUIRE(proxy.bytes_since_cut() < bytes);
  REQUIRE(ServedFixture::ShadowIs(*publisher, model.next));
  const auto dense = client->ReadDense(VersionId(1), Deadline::After(bytes / 20 + 30'000'000));
  REQUIRE_OK(dense);
  const auto manifest = client->ReadManifest(Soon());
  uint64_t at = 0;
  for (uint32_t span = 0; span < (*manifest)->spans(); ++span) {
    const auto tiles = (*dense)->OpenSpan(span);
    REQUIRE_OK(tiles);
    std::string tile;
    for (const TilePlace place : (*manifest)->SpanPlaces(span)) {
      tile.resize((*manifest)->TileBytes(place));
      REQUIRE_OK((*tiles)->ReadTile(place, reinterpret_cast<uint8_t*>(tile.data())));
      REQUIRE((model.next.at("w").bytes.compare(at, tile.size(), tile) == 0));
      at += tile.size();
    }
  }
  REQUIRE(at == bytes);
  (*server)->Shutdown(1'000'000);
}

TEST_CASE("E01 a set of 9 MB over a stream that breaks goes on where it was") {
  PublishBigSet(9 << 20);
}

TEST_CASE("several contributors stream side by side, and each hears the decision") {
  ServedFixture served;
  const NaiveTensors base = served.store.version(0);
  NaiveTensors next = base;
  const std::vector<std::string> names = {"embed.weight", "layer.0.weight", "layer.1.codes"};
  std::map<std::string, std::pair<std::vector<int64_t>, std::string>> changes;
  for (const std::string& name : names) {
    const uint64_t width = WidthOf(next.at(name));
    for (int64_t i = 0; i < 9000; i += 7) {
      changes[name].first.push_back(i);
      for (uint64_t byte = 0; byte < width; ++byte) {
        changes[name].second.push_back('\x55');
        next.at(name).bytes[static_cast<uint64_t>(i) * width + byte] ^= '\x55';
      }
    }
  }
  std::vector<absl::StatusOr<Decision>> decisions(3, absl::UnknownError("not run"));
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      const auto publish = [&]() -> absl::StatusOr<Decision> {
        PublishOptions options = WithId("together");
        options.contributor = i;
        options.contributors = 3;
        auto upload = served.client->Begin(options, Soon());
        if (!upload.ok()) return upload.status();
        const NaiveTensor& tensor = base.at(names[i]);
        TensorPatch patch;
        patch.name = names[i];
        patch.dtype = *ParseDtype(tensor.dtype);
        patch.shape = tensor.shape;
        patch.indices = changes.at(names[i]).first;
        const std::string& values = changes.at(names[i]).second;
        patch.values = {reinterpret_cast<const uint8_t*>(values.data()), values.size()};
        patch.form = TensorPatch::Form::kXor;
        const absl::Status added = (*upload)->Add({patch});
        if (!added.ok()) return added;
        return (*upload)->Commit(Soon());
      };
      decisions[i] = publish();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& decision : decisions) {
    REQUIRE_OK(decision);
    REQUIRE(decision->version == VersionId(1));
  }
  served.RequireVersions({{0, base}, {1, next}});
}

TEST_CASE("an outcome that is not heard is unknown, and the next call asks for it") {
  ServedFixture served;
  const NaiveTensors base = served.store.version(0);
  const NaiveTensors one = served.store.Changed(base, 0.05);
  const NaiveTensors two = served.store.Changed(one, 0.05);
  BreakingProxy proxy(served.store.path("proxy.sock"), served.store.store_path() + "/wstore.sock");
  const auto publisher = ServedFixture::StartPublisher(ServedFixture::Connect(proxy.address()));
  proxy.SetMuteWord("Store/Commit");
  const auto before = Clock::now();
  auto decision = ServedFixture::Publish(*publisher, one, "one", Deadline::After(1'000'000));
  REQUIRE(Clock::now() - before < 3s);
  REQUIRE_ERROR(decision, absl::StatusCode::kUnknown, "ask by transaction id 'one'");
  REQUIRE(publisher->in_doubt() == "one");
  REQUIRE(ServedFixture::ShadowIs(*publisher, base));
  REQUIRE_OK(served.client->WaitForHead(VersionId(1), Soon()));

  proxy.SetMuteWord("");
  decision = ServedFixture::Publish(*publisher, one, "one");
  REQUIRE_OK(decision);
  REQUIRE(decision->version == VersionId(1));
  REQUIRE_FALSE(publisher->in_doubt().has_value());
  REQUIRE(ServedFixture::ShadowIs(*publisher, one));
  decision = ServedFixture::Publish(*publisher, two, "two");
  REQUIRE_OK(decision);
  served.RequireVersions({{0, base}, {1, one}, {2, two}});
}

TEST_CASE("E06 a server that stops answering gives unknown in time, and a retry one version") {
  StoreFixture store;
  const NaiveTensors base = store.version(0);
  const NaiveTensors one = store.Changed(base, 0.05);
  store.CloseStore();
  {
    ServeProcess server(WSTORE_BINARY, store.store_path());
    const auto client = ServedFixture::Connect("unix:" + server.socket());
    const auto publisher = ServedFixture::StartPublisher(client);
    // Stopped between the content and the commit.
    auto upload = client->Begin(WithId("step"), Soon());
    REQUIRE_OK(upload);
    const std::string value(2, '\x11');
    const std::vector<int64_t> index = {5};
    TensorPatch patch{"embed.weight", Dtype::kBF16, {1000, 96}, index, {}};
    patch.values = {reinterpret_cast<const uint8_t*>(value.data()), value.size()};
    patch.form = TensorPatch::Form::kXor;
    REQUIRE_OK((*upload)->Add({patch}));
    REQUIRE_OK((*upload)->Send(Soon()));
    server.Send(SIGSTOP);
    auto before = Clock::now();
    auto decision = (*upload)->Commit(Deadline::After(3'000'000));
    const auto took = Clock::now() - before;
    REQUIRE(took > 2500ms);
    REQUIRE(took < 5s);
    REQUIRE_ERROR(decision, absl::StatusCode::kUnknown, "ask by transaction id 'step'");
    server.Send(SIGCONT);
    decision = (*upload)->Commit(Soon());
    REQUIRE_OK(decision);
    REQUIRE(decision->version == VersionId(1));
    decision = client->Ask("step", Soon());
    REQUIRE_OK(decision);
    REQUIRE(decision->version == VersionId(1));
    REQUIRE(client->Versions(100, Soon())->size() == 2);

    // Stopped before anything is sent: that nothing was committed is known.
    REQUIRE_OK(publisher->Rebase(Soon()));
    server.Send(SIGSTOP);
    before = Clock::now();
    decision = ServedFixture::Publish(*publisher, one, "next", Deadline::After(1'000'000));
    REQUIRE(Clock::now() - before < 3s);
    REQUIRE_ERROR(decision, absl::StatusCode::kDeadlineExceeded, "");
    server.Send(SIGCONT);
    decision = ServedFixture::Publish(*publisher, one, "next");
    REQUIRE_OK(decision);
    REQUIRE(decision->version == VersionId(2));
    const int status = server.End(SIGTERM);
    REQUIRE(WIFEXITED(status));
    REQUIRE(WEXITSTATUS(status) == 0);
  }
  store.Reopen();
  REQUIRE(store.store().versions().size() == 3);
  REQUIRE((store.Exported(2) == one));
}

TEST_CASE("a publish goes on over a server that is killed and started again") {
  StoreFixture store;
  const NaiveTensors one = store.Changed(store.version(0), 0.05);
  store.CloseStore();
  {
    auto server = std::make_unique<ServeProcess>(WSTORE_BINARY, store.store_path());
    const auto client = ServedFixture::Connect("unix:" + server->socket());
    const auto publisher = ServedFixture::StartPublisher(client);
    auto upload = client->Begin(WithId("lost"), Soon());
    REQUIRE_OK(upload);
    server->End(SIGKILL);
    auto publishing = std::thread([&] {
      const auto decision = ServedFixture::Publish(*publisher, one, "one");
      REQUIRE_OK(decision);
      REQUIRE(decision->version.value() >= 1);
    });
    std::this_thread::sleep_for(300ms);
    server = std::make_unique<ServeProcess>(WSTORE_BINARY, store.store_path());
    publishing.join();
    REQUIRE(ServedFixture::ShadowIs(*publisher, one));
    const auto ended = (*upload)->Commit(Soon());
    REQUIRE_ERROR(ended, absl::StatusCode::kUnavailable, "begin again");
    REQUIRE(absl::IsNotFound(client->Ask("lost", Soon()).status()));
    server->End(SIGTERM);
  }
  store.Reopen();
  REQUIRE(store.store().versions().size() == 2);
  REQUIRE((store.Exported(store.store().head().version.value()) == one));
}

TEST_CASE("followers see head move, and see it over a restart") {
  ServedFixture served;
  const NaiveTensors one = served.store.Changed(served.store.version(0), 0.05);
  std::atomic<int> seen{0};
  absl::Status followed;
  std::thread follower([&] {
    followed = served.client->Follow(
        [&](const ServedHead& head) {
          ++seen;
          return head.head.version != VersionId(1);
        },
        Soon());
  });
  while (seen == 0) std::this_thread::sleep_for(5ms);
  served.Stop();
  served.Start();
  const auto publisher = served.StartPublisher();
  REQUIRE_OK(ServedFixture::Publish(*publisher, one, "one"));
  follower.join();
  REQUIRE_OK(followed);
  const auto head = served.client->WaitForHead(VersionId(7), Deadline::After(200'000));
  REQUIRE_ERROR(head, absl::StatusCode::kDeadlineExceeded, "v7");
}

TEST_CASE("lists come in pages, and looking names what there is") {
  StoreFixture store;
  CommitManyVersions(store, 30);
  REQUIRE_OK(store.store().Tag("prod", VersionId(3)));
  store.CloseStore();
  auto server = service::Server::Start(QuickServer(store.store_path()));
  REQUIRE_OK(server);
  const auto client = ServedFixture::Connect((*server)->addresses()[0]);
  const auto versions = client->Versions(SIZE_MAX, Soon());
  REQUIRE_OK(versions);
  REQUIRE(versions->size() == 31);
  for (size_t i = 0; i < versions->size(); ++i) REQUIRE((*versions)[i].version.value() == 30 - i);
  REQUIRE(client->Versions(4, Soon())->size() == 4);
  REQUIRE(client->Moves(SIZE_MAX, Soon())->size() == 30);
  REQUIRE(client->Tags(Soon())->front().version == VersionId(3));
  REQUIRE(client->Version("prod", Soon())->version == VersionId(3));
  REQUIRE_ERROR(client->Version("prud", Soon()), absl::StatusCode::kNotFound, "prod");
  REQUIRE_OK(client->Tag("next", "v4", Soon()));
  REQUIRE_OK(client->Mark("v4", true, "noisy", Soon()));
  REQUIRE(client->Version("next", Soon())->bad == "noisy");
  REQUIRE(client->Workers(Soon())->empty());
  REQUIRE(client->Transactions(Soon())->empty());
  REQUIRE(absl::IsNotFound(client->Evict("nobody", Soon())));
  const auto status = client->Status(Soon());
  REQUIRE_OK(status);
  REQUIRE(status->versions == 31);
  REQUIRE(status->base_tensors == 8);
  // The way from v2 to v9: seven elements, and the same digest as the server's.
  const auto difference = client->ReadDifference(VersionId(9), VersionId(2), Soon());
  REQUIRE_OK(difference);
  REQUIRE(difference->info.elements == 7);
  const auto none = client->ReadDifference(VersionId(9), VersionId(9), Soon());
  REQUIRE_OK(none);
  REQUIRE(none->info.elements == 0);
  (*server)->Shutdown(1'000'000);
}

TEST_CASE("a base of 50,000 names, read over the wire") {
  TempDir directory;
  std::mt19937_64 random(5);
  NaiveTensors model;
  for (int i = 0; i < 50'000; ++i) {
    const std::string name = "model.layers." + std::to_string(i) +
                             ".mlp.experts.gate_up_projection.with_a_long_name.weight";
    model[name] = {"U8", {3}, RandomBytes(random, 3)};
  }
  NaiveTensors next = model;
  for (auto& [name, tensor] : next) tensor.bytes[1] ^= '\x40';
  // NaiveWrite takes time by the square of their number.
  std::string header = "{";
  std::string data;
  for (const auto& [name, tensor] : model) {
    header += (data.empty() ? "\"" : ",\"") + name +
              R"(":{"dtype":"U8","shape":[3],"data_offsets":[)" + std::to_string(data.size()) +
              "," + std::to_string(data.size() + 3) + "]}";
    data += tensor.bytes;
  }
  header += "}";
  const uint64_t header_bytes = header.size();
  WriteFile(directory / "base.safetensors",
            std::string(reinterpret_cast<const char*>(&header_bytes), 8) + header + data);
  REQUIRE_OK(Store::Create(directory / "store", directory / "base.safetensors", {}));
  auto server = service::Server::Start(QuickServer(directory / "store"));
  REQUIRE_OK(server);
  const auto client = ServedFixture::Connect((*server)->addresses()[0]);
  auto started = Publisher::Start(client, {}, Deadline::After(60'000'000));
  REQUIRE_OK(started);
  const auto publisher = *std::move(started);
  const auto decision =
      ServedFixture::Publish(*publisher, next, "all", Deadline::After(60'000'000));
  REQUIRE_OK(decision);
  const auto version = client->Version("v1", Soon());
  REQUIRE(version->tensors == 50'000);
  REQUIRE(version->elements == 50'000);
  MoveOptions back;
  back.version = "v0";
  REQUIRE_OK(client->Rollback(back, Soon()));
  REQUIRE_OK(publisher->Rebase(Deadline::After(60'000'000)));
  REQUIRE(ServedFixture::ShadowIs(*publisher, model));
  (*server)->Shutdown(1'000'000);
}

TEST_CASE("what is wrong with an address is said, and a server that is not there in time") {
  ConnectOptions options;
  for (const char* address : {"", "nowhere", "host:", "host:70000", "::1:80", ":80"}) {
    options.address = address;
    INFO(address);
    REQUIRE_ERROR(Client::Connect(options), absl::StatusCode::kInvalidArgument, "HOST:PORT");
  }
  options.address = "unix:/" + std::string(200, 'x');
  REQUIRE_ERROR(Client::Connect(options), absl::StatusCode::kInvalidArgument, "107");
  options.address = "localhost:1";
  REQUIRE_ERROR(Client::Connect(options), absl::StatusCode::kInvalidArgument, "TLS");
  options.tls.emplace();
  options.tls->authorities = "/nonexistent/ca.pem";
  REQUIRE_ERROR(Client::Connect(options), absl::StatusCode::kNotFound, "ca.pem");
  options.tls.reset();
  options.insecure_tcp = true;
  REQUIRE_OK(Client::Connect(options));

  TempDir directory;
  const auto client = ServedFixture::Connect(directory / "none.sock");
  const auto before = Clock::now();
  const auto head = client->Head(Deadline::After(300'000));
  REQUIRE_ERROR(head, absl::StatusCode::kUnavailable, "none.sock");
  MoveOptions back;
  back.version = "v0";
  REQUIRE_ERROR(client->Rollback(back, Deadline::After(300'000)), absl::StatusCode::kUnavailable,
                "none.sock");
  REQUIRE(Clock::now() - before < 3s);
}

TEST_CASE("a child of fork is refused, and its end harms nobody") {
  ServedFixture served;
  REQUIRE_OK(served.client->Head(Soon()));
  const pid_t child = fork();
  if (child == 0) {
    const absl::Status status = served.client->Head(Deadline::After(1'000'000)).status();
    served.client.reset();
    _exit(absl::IsFailedPrecondition(status) ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 0);
  REQUIRE_OK(served.client->Head(Soon()));
}

}  // namespace
}  // namespace wstore::testing
