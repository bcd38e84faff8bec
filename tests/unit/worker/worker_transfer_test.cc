// Ranks that take chunks from a publisher past the server, within one process.
#include "tests/conformance/transfer/rig.h"
#include "tests/support/random.h"
#include "wstore/chunk_header.h"
#include "wstore/client.h"
#include "wstore/local_transfer.h"
#include "wstore/patch_digest.h"

namespace wstore::testing {
namespace {

constexpr int64_t kSecond = kSecondMicros;

// Two ranks that a publisher reaches.
struct Carried : TransferRig {
  // stage_micros: until the content of a publish must have come; 0: the default
  explicit Carried(const char* what, uint32_t ranks = 2, int64_t stage_micros = 0)
      : TransferRig(TestSeed(what)), near(served, "near", ranks) {
    if (stage_micros != 0) {
      served.StopServer();
      served.options.coordinator.timing.stage_deadline = stage_micros;
      served.StartServer();
    }
    Reach(near);
    near.Start();
    near.AwaitServing(0);
    AwaitReached(ranks);
  }
  OpenPublish BeginEarly(uint64_t from) {
    OpenPublish::Options how;
    how.durability = v1::DURABILITY_ASYNC;
    how.is_declared = true;
    OpenPublish publish = Begin(from, served.Changed(served.versions.at(from), 0.2), how);
    REQUIRE_OK(Send(publish.transaction, publish.chunks[0]));
    return publish;
  }

  TestInstance near;
};

}  // namespace

TEST_CASE("a trainer sends its chunks to the ranks, and copies of them to the store") {
  Carried carried("carried upload");
  ServedModel& served = carried.served;
  TestInstance& near = carried.near;
  const auto client = Client::Connect(served.connect(), "trainer");
  REQUIRE_OK(client);
  PublishOptions options;
  options.carried = true;
  const Deadline deadline = Deadline::After(20 * kSecond);
  const auto upload = (*client)->Begin(options, deadline);
  REQUIRE_OK(upload);
  const NaiveTensors next = served.Changed(served.versions.at(0), 0.2);
  PatchDigester digester(served.manifest());
  const std::vector<std::string> chunks =
      served.Chunks(served.versions.at(0), next, (*upload)->transaction().value(), &digester);
  std::vector<std::string> foreign = chunks;
  ReplaceHeader((*upload)->transaction(), 1, &foreign.back());
  const Digest digest = digester.Finish();
  REQUIRE_ERROR((*upload)->SetChunks(foreign, digest), absl::StatusCode::kInvalidArgument,
                "contributor 1; this is transaction");
  REQUIRE_OK(carried.Send((*upload)->transaction(), chunks));
  REQUIRE_OK((*upload)->SetChunks(chunks, digest));
  REQUIRE_ERROR((*upload)->SetChunks(chunks, digest), absl::StatusCode::kFailedPrecondition,
                "content already");
  const auto decision = (*upload)->Commit(deadline);
  REQUIRE_OK(decision);
  REQUIRE(decision->version == VersionId(1));
  near.AwaitServing(1);
  near.RequireHolds(next);
  for (auto& rank : near.ranks) REQUIRE(rank->worker().status().carried_bytes > 0);
}

TEST_CASE("an async publish that was declared is served before its chunks are in the store") {
  Carried carried("declared");
  ServedModel& served = carried.served;
  TestInstance& near = carried.near;
  OpenPublish publish = carried.BeginEarly(0);
  v1::Decision decision;
  REQUIRE(publish.Commit(&decision).ok());
  REQUIRE(decision.outcome() == v1::OUTCOME_SERVED_NOT_DURABLE);
  REQUIRE(decision.head().durable_version() == 0);
  near.AwaitServing(1);
  near.RequireHolds(publish.next);
  REQUIRE(publish.Put().ok());
  REQUIRE(WaitUntil([&] {
    v1::Status status;
    REQUIRE(served.stub->GetStatus(ServedModel::Context().get(), {}, &status).ok());
    return status.head().durable_version() == 1;
  }));
  // It is a version like any other: told again, read by a rank that starts, and kept.
  v1::AskRequest ask;
  ask.set_id(publish.id);
  REQUIRE(served.stub->Ask(ServedModel::Context().get(), ask, &decision).ok());
  REQUIRE(decision.outcome() == v1::OUTCOME_COMMITTED);
  REQUIRE(decision.version().version() == 1);
  served.versions[1] = publish.next;
  served.StopServer();
  served.StartServer();
  TestInstance late(served, "late", 1);
  late.Start();
  late.AwaitServing(1);
  late.RequireHolds(publish.next);
  near.AwaitServing(1);
  REQUIRE(served.Publish("next", served.Changed(publish.next, 0.1), &decision).ok());
  near.AwaitServing(2);
  near.RequireHolds(served.versions.at(2));
  for (auto& rank : near.ranks) REQUIRE(rank->log().find("poisoned") == std::string::npos);
}

TEST_CASE("a declared publish whose chunks never come, or are others, is taken back") {
  Carried carried("declared and lost", 2, /*stage_micros=*/1'500'000);
  ServedModel& served = carried.served;
  TestInstance& near = carried.near;
  OpenPublish publish = carried.BeginEarly(0);
  v1::Decision decision;
  bool is_served = true;
  SECTION("they never come") { publish.chunks[0].clear(); }
  SECTION("half of them come") { publish.chunks[0].resize(publish.chunks[0].size() / 2); }
  SECTION("they have other bits") {
    PatchDigester ignored(served.manifest());
    NaiveTensors other = publish.next;
    for (auto& [name, tensor] : other) {
      for (size_t i = 0; i < tensor.bytes.size(); i += 2) {
        if (tensor.bytes[i] != served.versions.at(0).at(name).bytes[i]) tensor.bytes[i] ^= 4;
      }
    }
    publish.chunks[0] =
        served.Chunks(served.versions.at(0), other, publish.transaction.value(), &ignored);
    publish.chunks[0].resize(publish.commits[0].chunks());
  }
  SECTION("the sums are others, so that no rank agrees") {
    is_served = false;
    publish.commits[0].mutable_sums()->set_lanes(0, 1);
  }
  const grpc::Status committed = publish.Commit(&decision);
  if (is_served) {
    REQUIRE(committed.ok());
    REQUIRE(decision.outcome() == v1::OUTCOME_SERVED_NOT_DURABLE);
    near.AwaitServing(1);
    publish.Put();
  } else {
    REQUIRE(committed.error_code() == grpc::ABORTED);
  }
  near.AwaitServing(0);
  near.RequireHolds(served.versions.at(0));
  // Nothing is in the way of the next.
  REQUIRE(served.Publish("next", served.Changed(served.versions.at(0), 0.1), &decision).ok());
  const uint64_t version = decision.version().version();
  near.AwaitServing(version);
  near.RequireHolds(served.versions.at(version));
  for (auto& rank : near.ranks) REQUIRE(rank->log().find("poisoned") == std::string::npos);
}

TEST_CASE("a rollback does not wait long for chunks that never come") {
  Carried carried("declared and rolled back");
  ServedModel& served = carried.served;
  TestInstance& near = carried.near;
  v1::Decision decision;
  REQUIRE(served.Publish("first", served.Changed(served.versions.at(0), 0.1), &decision).ok());
  near.AwaitServing(1);
  carried.AwaitReached(2);
  OpenPublish publish = carried.BeginEarly(1);
  REQUIRE(publish.Commit(&decision).ok());
  REQUIRE(decision.outcome() == v1::OUTCOME_SERVED_NOT_DURABLE);
  near.AwaitServing(2);
  const auto begun = std::chrono::steady_clock::now();
  REQUIRE(served.Rollback("v0", &decision).error_code() == grpc::ABORTED);
  REQUIRE(std::chrono::steady_clock::now() - begun < 8s);
  near.AwaitServing(1);
  near.RequireHolds(served.versions.at(1));
  REQUIRE(WaitUntil([&] { return served.Rollback("v0", &decision).ok(); }));
  near.AwaitServing(0);
  near.RequireHolds(served.versions.at(0));
}

TEST_CASE("a declared publish waits for its chunks where somebody needs them") {
  Carried carried("declared and needed", 1);
  TestInstance& near = carried.near;
  TestInstance plain(carried.served, "plain", 1);
  plain.Start();
  plain.AwaitServing(0);
  OpenPublish publish = carried.BeginEarly(0);
  v1::Decision decision;
  std::thread committing([&] { CHECK(publish.Commit(&decision).ok()); });
  std::this_thread::sleep_for(200ms);
  CHECK(near.Serves(0));
  CHECK(plain.Serves(0));
  CHECK(publish.Put().ok());
  committing.join();
  for (TestInstance* instance : {&near, &plain}) {
    instance->AwaitServing(1);
    instance->RequireHolds(publish.next);
  }
}

TEST_CASE(
    "D04 a second publisher is refused by name, and takes its place when the first has gone") {
  Carried carried("carried twice", 1);
  auto second = TransferLead::Start(carried.served.connect(), MakeLocalTransferPort(), {});
  REQUIRE_OK(second);
  REQUIRE(WaitUntil([&] {
    return (*second)->status().error.find("one publisher at a time") != std::string::npos;
  }));
  carried.leads[0].reset();
  REQUIRE_OK((*second)->AwaitRanks(1, Deadline::After(10 * kSecond)));
  // After a restart of the server everybody finds together again, under a later epoch.
  const uint64_t before = (*second)->status().epoch;
  carried.served.StopServer();
  carried.served.StartServer();
  REQUIRE(WaitUntil([&] { return (*second)->status().epoch > before; }));
}

}  // namespace wstore::testing
