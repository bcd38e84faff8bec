#include "store/service/server.h"

#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "store/client/transfer_messages.h"
#include "store/service/metrics.h"
#include "store/service/rpc_messages.h"
#include "tests/support/random.h"
#include "tests/unit/store/live_fixture.h"
#include "wstore/chunk_header.h"
#include "wstore/v1/service.grpc.pb.h"

namespace wstore::testing {
namespace {

using namespace std::chrono_literals;
using service::Server;
using service::ServerOptions;

// A server on the fixture's store, and a client of it over the unix socket.
class Served {
 public:
  explicit Served(uint64_t seed = 1) : fixture(seed) {
    fixture.live.reset();
    options.directory = fixture.store.store_path();
    protocol::Timing& timing = options.coordinator.timing;
    timing.lease = 300'000;
    timing.skew = 100'000;
    timing.apply_deadline = 1'000'000;
    timing.hold_deadline = 2'000'000;
    Start();
  }

  void Start() {
    auto started = Server::Start(options);
    REQUIRE_OK(started);
    server = *std::move(started);
    channel = grpc::CreateChannel(server->addresses()[0], grpc::InsecureChannelCredentials());
    stub = v1::Store::NewStub(channel);
    for (;;) {
      v1::Status status;
      const grpc::Status got = stub->GetStatus(Context().get(), {}, &status);
      REQUIRE(got.ok());
      if (status.state() != "recovering") break;
      std::this_thread::sleep_for(20ms);
    }
  }

  static std::unique_ptr<grpc::ClientContext> Context(std::chrono::milliseconds within = 20s) {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + within);
    return context;
  }

  // Publishes as a client would. `break_after`: closes the stream after that many chunks, and goes
  // on in a new one.
  grpc::Status Publish(const std::string& id, const NaiveTensors& from, const NaiveTensors& to,
                       v1::Decision* decision, size_t break_after = SIZE_MAX) {
    v1::BeginRequest begin;
    begin.set_id(id);
    begin.set_message("by test");
    v1::BeginResponse begun;
    const grpc::Status status = stub->Begin(Context().get(), begin, &begun);
    if (!status.ok()) return status;
    if (begun.has_repeated()) {
      *decision = begun.repeated();
      return status;
    }
    const TransactionNumber transaction(begun.transaction());
    // The fixture's tools need a LiveStore for its manifest alone.
    const LiveFixture::Part part = PartOf(from, to, transaction);
    size_t next = 0;
    while (next < part.chunks.size()) {
      auto context = Context();
      const auto stream = stub->Put(context.get());
      v1::PutRequest request;
      request.set_transaction(begun.transaction());
      REQUIRE(stream->Write(request));
      v1::PutResponse response;
      REQUIRE(stream->Read(&response));
      REQUIRE(response.next_sequence() == next);
      const size_t end = std::min(part.chunks.size(), next + break_after);
      for (; next < end; ++next) {
        request.set_chunk(part.chunks[next]);
        request.set_sequence(next);
        REQUIRE(stream->Write(request));
      }
      REQUIRE(stream->WritesDone());
      uint64_t safe = response.next_sequence();
      while (stream->Read(&response)) safe = response.next_sequence();
      REQUIRE(stream->Finish().ok());
      REQUIRE(safe == end);
    }
    v1::CommitRequest commit;
    commit.set_transaction(begun.transaction());
    commit.set_chunks(part.summary.chunks);
    commit.set_digest(ToBytes(part.summary.digest));
    *commit.mutable_sums() = wire::ToProto(*part.summary.sums);
    return stub->Commit(Context().get(), commit, decision);
  }

  LiveFixture::Part PartOf(const NaiveTensors& from, const NaiveTensors& to,
                           TransactionNumber transaction) {
    // A second store of the same base gives the manifest; the served one is locked.
    if (tools == nullptr) tools = std::make_unique<LiveFixture>(1);
    return tools->MakePart(from, to, transaction, 0, 1);
  }

  LiveFixture fixture;
  std::unique_ptr<LiveFixture> tools;
  ServerOptions options;
  std::unique_ptr<Server> server;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Store::Stub> stub;
};

TEST_CASE("E01 a publish goes over the socket in pieces, and its peer is in the log") {
  Served served;
  const NaiveTensors base = served.fixture.versions.at(0);
  const NaiveTensors next = served.fixture.store.Changed(base, 0.05);
  auto watching = Served::Context();
  const auto heads = served.stub->Watch(watching.get(), {});
  v1::Head head;
  REQUIRE(heads->Read(&head));
  REQUIRE(head.version().version() == 0);

  v1::Decision decision;
  grpc::Status status = served.Publish("one", base, next, &decision, 2);
  INFO(status.error_message());
  REQUIRE(status.ok());
  REQUIRE(decision.outcome() == v1::OUTCOME_COMMITTED);
  REQUIRE(decision.version().version() == 1);
  while (heads->Read(&head) && head.version().version() != 1) {
  }
  REQUIRE(head.version().version() == 1);
  watching->TryCancel();

  // Again: the first outcome. Somebody else's parent: the conflict carries head.
  REQUIRE(served.Publish("one", base, next, &decision).ok());
  REQUIRE(decision.outcome() == v1::OUTCOME_REPEATED);
  v1::BeginRequest stale;
  stale.set_id("stale");
  stale.set_parent(0);
  v1::BeginResponse begun;
  status = served.stub->Begin(Served::Context().get(), stale, &begun);
  REQUIRE(status.error_code() == grpc::FAILED_PRECONDITION);
  v1::ErrorDetail detail;
  REQUIRE(detail.ParseFromString(status.error_details()));
  REQUIRE(detail.head().version().version() == 1);

  v1::RollbackRequest rollback;
  rollback.set_id("op");
  rollback.set_version("v0");
  REQUIRE(served.stub->Rollback(Served::Context().get(), rollback, &decision).ok());
  REQUIRE(decision.head().hold());
  v1::ListMovesResponse moves;
  REQUIRE(served.stub->ListMoves(Served::Context().get(), {}, &moves).ok());
  REQUIRE(moves.moves(0).why() == "rollback");
  REQUIRE_THAT(moves.moves(0).peer(),
               Catch::Matchers::Contains("uid ") && Catch::Matchers::Contains("pid "));
  REQUIRE(moves.moves(1).outcome() == "refused");

  // Dense bytes, and the way between versions.
  v1::ReadDenseRequest dense;
  dense.mutable_version()->set_version(1);
  auto reading = Served::Context();
  const auto bytes = served.stub->ReadDense(reading.get(), dense);
  v1::ReadDenseResponse piece;
  std::string embed;
  while (bytes->Read(&piece)) {
    if (piece.tensor() == 0) embed += piece.data();
  }
  REQUIRE(bytes->Finish().ok());
  REQUIRE(embed == next.at("embed.weight").bytes);

  served.server->Shutdown(1'000'000);
  served.server.reset();
  served.fixture.versions[1] = next;
  served.fixture.RequireAllVersions();
}

// The chunks of the way between two versions.
std::vector<v1::ReadDifferenceResponse> Chunks(Served& served, uint64_t from, uint64_t to,
                                               bool takes_packed, uint64_t skip = 0) {
  v1::ReadDifferenceRequest request;
  for (const auto& [version, name] :
       {std::pair(from, request.mutable_from()), std::pair(to, request.mutable_to())}) {
    v1::GetVersionRequest get;
    get.set_version("v" + std::to_string(version));
    v1::Version info;
    REQUIRE(served.stub->GetVersion(Served::Context().get(), get, &info).ok());
    *name = info.name();
  }
  request.set_transaction(77);
  request.set_takes_packed(takes_packed);
  request.set_skip_chunks(skip);
  const auto context = Served::Context();
  const auto stream = served.stub->ReadDifference(context.get(), request);
  std::vector<v1::ReadDifferenceResponse> chunks;
  for (v1::ReadDifferenceResponse response; stream->Read(&response);) {
    if (!response.has_summary() && !response.has_more_sums()) chunks.push_back(response);
  }
  REQUIRE(stream->Finish().ok());
  return chunks;
}

TEST_CASE("one version is passed on as it is stored, to whoever takes that") {
  Served served;
  const NaiveTensors base = served.fixture.versions.at(0);
  const NaiveTensors first = served.fixture.store.Changed(base, 0.05);
  const NaiveTensors second = served.fixture.store.Changed(first, 0.05);
  v1::Decision decision;
  REQUIRE(served.Publish("one", base, first, &decision).ok());
  REQUIRE(served.Publish("two", first, second, &decision).ok());
  const Manifest& manifest = served.tools->live->manifest();
  for (const auto& [from, to] : {std::pair(0, 1), std::pair(1, 0), std::pair(1, 2)}) {
    const auto plain = Chunks(served, from, to, false);
    const auto packed = Chunks(served, from, to, true);
    REQUIRE(!plain.empty());
    REQUIRE(packed.size() == plain.size());
    for (size_t i = 0; i < plain.size(); ++i) {
      REQUIRE(!plain[i].chunk().empty());
      absl::StatusOr<std::string> chunk = UnpackChunk(packed[i].packed_chunk(), manifest);
      REQUIRE_OK(chunk);
      ReplaceHeader(TransactionNumber(77), 0, &*chunk);
      REQUIRE(*chunk == plain[i].chunk());
    }
    const auto rest = Chunks(served, from, to, true, 1);
    REQUIRE(rest.size() == packed.size() - 1);
    if (!rest.empty()) REQUIRE(rest[0].packed_chunk() == packed[1].packed_chunk());
    REQUIRE(Chunks(served, from, to, false, 1).size() == plain.size() - 1);
  }
  // A way of two versions is composed, and comes as it is made.
  for (const auto& response : Chunks(served, 0, 2, true)) REQUIRE(!response.chunk().empty());
  REQUIRE(Chunks(served, 1, 1, true).empty());
}

TEST_CASE("a small set comes with its commit, once however often it is sent") {
  Served served;
  const NaiveTensors base = served.fixture.versions.at(0);
  const NaiveTensors next = served.fixture.store.Changed(base, 0.01);
  v1::BeginRequest begin;
  begin.set_id("one");
  v1::BeginResponse begun;
  REQUIRE(served.stub->Begin(Served::Context().get(), begin, &begun).ok());
  const LiveFixture::Part part = served.PartOf(base, next, TransactionNumber(begun.transaction()));
  v1::CommitRequest commit;
  commit.set_transaction(begun.transaction());
  commit.set_chunks(part.summary.chunks);
  commit.set_digest(ToBytes(part.summary.digest));
  for (const std::string& chunk : part.chunks) commit.add_content(chunk);
  v1::CommitRequest damaged = commit;
  damaged.mutable_content(0)->back() ^= 1;
  v1::Decision decision;
  REQUIRE(served.stub->Commit(Served::Context().get(), damaged, &decision).error_code() ==
          grpc::DATA_LOSS);
  commit.set_no_wait(true);
  REQUIRE(served.stub->Commit(Served::Context().get(), commit, &decision).ok());
  v1::AskRequest ask;
  ask.set_id("one");
  REQUIRE(served.stub->Ask(Served::Context().get(), ask, &decision).ok());
  REQUIRE(decision.version().version() == 1);
  served.server->Shutdown(1'000'000);
  served.server.reset();
  served.fixture.versions[1] = next;
  served.fixture.RequireAllVersions();
}

// What an HTTP server on `port` of this machine answers.
std::string HttpGet(int port, const std::string& path) {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
  REQUIRE(write(descriptor, request.data(), request.size()) ==
          static_cast<ssize_t>(request.size()));
  std::string answer;
  std::array<char, 4096> buffer = {};
  for (ssize_t got = 0; (got = read(descriptor, buffer.data(), buffer.size())) > 0;) {
    answer.append(buffer.data(), static_cast<size_t>(got));
  }
  close(descriptor);
  return answer;
}

TEST_CASE("a server's figures count what became of publishes, and are served for Prometheus") {
  Served served;
  const NaiveTensors base = served.fixture.versions.at(0);
  v1::Decision decision;
  REQUIRE(served.Publish("one", base, served.fixture.store.Changed(base, 0.05), &decision).ok());
  v1::BeginRequest stale;
  stale.set_id("stale");
  stale.set_parent(0);
  v1::BeginResponse begun;
  REQUIRE(!served.stub->Begin(Served::Context().get(), stale, &begun).ok());
  const service::ServerFigures figures = served.server->figures();
  REQUIRE(figures.head.head.version == VersionId(1));
  REQUIRE(figures.transactions.at({"publish", "committed"}).count == 1);
  REQUIRE(figures.transactions.at({"publish", "refused"}).count == 1);
  REQUIRE(figures.state == "ok");

  const int port = 20'000 + getpid() % 20'000;
  auto metrics = service::MetricsServer::Start("127.0.0.1:" + std::to_string(port),
                                               [&] { return served.server->figures(); });
  if (absl::IsUnimplemented(metrics.status())) return;
  REQUIRE_OK(metrics);
  const std::string page = HttpGet(port, "/metrics");
  REQUIRE_THAT(page, Catch::Matchers::Contains("\nwstore_head_version 1\n"));
  REQUIRE_THAT(page, Catch::Matchers::Contains("wstore_transaction_seconds_count{kind=\"publish\","
                                               "outcome=\"committed\"} 1\n"));
  REQUIRE_ERROR(service::MetricsServer::Start("nowhere:x", [] { return service::ServerFigures(); }),
                absl::StatusCode::kInvalidArgument, "nowhere:x");
}

TEST_CASE("E12 malformed requests are refused, and the server lives") {
  Served served;
  std::mt19937_64 random(TestSeed("malformed"));
  v1::BeginResponse begun;
  v1::BeginRequest begin;
  begin.set_id("x");
  grpc::ClientContext no_deadline;
  REQUIRE(served.stub->Begin(&no_deadline, begin, &begun).error_code() == grpc::INVALID_ARGUMENT);
  begin.set_parent_chain_digest("short");
  REQUIRE(served.stub->Begin(Served::Context().get(), begin, &begun).error_code() ==
          grpc::INVALID_ARGUMENT);
  begin.clear_parent_chain_digest();
  begin.set_message(std::string(70'000, 'm'));
  REQUIRE(served.stub->Begin(Served::Context().get(), begin, &begun).error_code() ==
          grpc::INVALID_ARGUMENT);
  v1::GetVersionRequest version;
  version.set_version("../../etc/passwd");
  v1::Version found;
  REQUIRE(served.stub->GetVersion(Served::Context().get(), version, &found).error_code() ==
          grpc::NOT_FOUND);
  v1::ReadDenseRequest dense;
  dense.add_ranges()->set_offset_bytes(UINT64_MAX);
  auto context = Served::Context();
  const auto bytes = served.stub->ReadDense(context.get(), dense);
  v1::ReadDenseResponse piece;
  REQUIRE_FALSE(bytes->Read(&piece));
  REQUIRE(bytes->Finish().error_code() == grpc::INVALID_ARGUMENT);

  begin.set_message("");
  REQUIRE(served.stub->Begin(Served::Context().get(), begin, &begun).ok());
  for (int round = 0; round < 100; ++round) {
    auto put_context = Served::Context();
    const auto put = served.stub->Put(put_context.get());
    v1::PutRequest request;
    request.set_transaction(begun.transaction());
    request.set_sequence(random() % 3);
    std::string chunk(1 + random() % 300, '\0');
    for (char& byte : chunk) byte = static_cast<char>(random());
    request.set_chunk(chunk);
    put->Write(request);
    put->WritesDone();
    const grpc::Status status = put->Finish();
    REQUIRE(
        (status.error_code() == grpc::DATA_LOSS || status.error_code() == grpc::INVALID_ARGUMENT));
    auto rank_context = Served::Context();
    const auto rank = served.stub->Attach(rank_context.get());
    v1::FromRank message;
    message.ParseFromString(chunk);  // whatever comes of it
    // What cannot be read, such as a text that is no UTF-8, is the end of a stream for the server.
    if (!v1::FromRank().ParseFromString(message.SerializeAsString())) message.Clear();
    if (round % 2 == 0) {
      message.mutable_register_()->set_instance("i");
      message.mutable_register_()->set_ranks(static_cast<uint32_t>(random() % 4));
      message.mutable_register_()->set_layout(chunk);
    }
    rank->Write(message);
    rank->WritesDone();
    REQUIRE_FALSE(rank->Finish().ok());
  }
  v1::Status status;
  REQUIRE(served.stub->GetStatus(Served::Context().get(), {}, &status).ok());
}

TEST_CASE("E10 a server with idle watchers and an open publish stops within its grace") {
  Served served;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::Head>>> watches;
  for (int i = 0; i < 10; ++i) {
    contexts.push_back(Served::Context());
    watches.push_back(served.stub->Watch(contexts.back().get(), {}));
    v1::Head head;
    REQUIRE(watches.back()->Read(&head));
  }
  v1::BeginRequest begin;
  begin.set_id("x");
  v1::BeginResponse begun;
  REQUIRE(served.stub->Begin(Served::Context().get(), begin, &begun).ok());
  const auto before = std::chrono::steady_clock::now();
  served.server->Shutdown(5'000'000);
  REQUIRE(std::chrono::steady_clock::now() - before < 4s);
  for (auto& watch : watches) {
    v1::Head head;
    while (watch->Read(&head)) {
    }
    REQUIRE_FALSE(watch->Finish().ok());
  }
  served.server.reset();
  served.Start();
  v1::Decision decision;
  v1::AskRequest ask;
  ask.set_id("x");
  REQUIRE(served.stub->Ask(Served::Context().get(), ask, &decision).error_code() ==
          grpc::NOT_FOUND);
  served.server.reset();
}

TEST_CASE("E12 TCP needs TLS, or an explicit word") {
  Served served;
  served.server.reset();
  served.options.listen = {"127.0.0.1:0"};
  REQUIRE_ERROR(Server::Start(served.options), absl::StatusCode::kInvalidArgument,
                "--insecure-tcp");
  served.options.insecure_tcp = true;
  served.Start();
  REQUIRE_FALSE(absl::EndsWith(served.server->addresses()[0], ":0"));
  served.server.reset();
}

TEST_CASE("a second server of a store is refused, and the first goes on") {
  Served served;
  ServerOptions other = served.options;
  REQUIRE_ERROR(Server::Start(other), absl::StatusCode::kAlreadyExists, "listens on");
  other.listen = {"unix:" + served.fixture.store.path("other.sock")};
  REQUIRE_ERROR(Server::Start(other), absl::StatusCode::kUnavailable, "");
  v1::Status status;
  REQUIRE(served.stub->GetStatus(Served::Context().get(), {}, &status).ok());
}

}  // namespace
}  // namespace wstore::testing
