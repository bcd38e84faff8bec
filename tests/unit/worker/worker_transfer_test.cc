// Ranks that take chunks from a publisher past the server, within one process.
#include <cstring>

#include "tests/support/random.h"
#include "tests/unit/worker/served_model.h"
#include "wstore/chunk_header.h"
#include "wstore/client.h"
#include "wstore/local_transfer.h"
#include "wstore/transfer_lead.h"
#include "wstore/worker.h"

namespace wstore::testing {
namespace {

constexpr int64_t kSecond = 1'000'000;

// Chunks side by side, as a differ leaves them, but for some that lie elsewhere.
class Arena {
 public:
  explicit Arena(const std::vector<std::string>& chunks) {
    uint64_t size = 0;
    for (const std::string& chunk : chunks) size += (chunk.size() + 15) / 16 * 16 + 16;
    bytes_.resize(size / 16 + 1);
    uint64_t at = 0;
    for (size_t i = 0; i < chunks.size(); ++i) {
      if (i % 3 == 2) at += 16;
      char* const to = reinterpret_cast<char*>(bytes_.data()) + at;
      std::memcpy(to, chunks[i].data(), chunks[i].size());
      chunks_.push_back({to, chunks[i].size()});
      at += (chunks[i].size() + 15) / 16 * 16;
    }
  }
  const std::vector<DeviceChunk>& chunks() const { return chunks_; }

 private:
  struct alignas(16) Block {
    char bytes[16];
  };
  std::vector<Block> bytes_;
  std::vector<DeviceChunk> chunks_;
};

// A port of another machine: it cannot be reached.
class FarPort final : public TransferPort {
 public:
  TransferHello hello() const override { return {"elsewhere", "another device", 0, {}}; }
  absl::StatusOr<std::string> NewUniqueId() override { return absl::UnimplementedError("none"); }
  absl::StatusOr<std::unique_ptr<FrameReceiver>> Join(const TransferPlan&, Deadline,
                                                      std::function<bool()>) override {
    return absl::UnimplementedError("none");
  }
  absl::StatusOr<std::unique_ptr<FrameSender>> Lead(const TransferPlan&, Deadline,
                                                    std::function<bool()>) override {
    return absl::UnimplementedError("none");
  }
};

struct Carried {
  explicit Carried(uint64_t seed) : served(seed) {
    auto started = TransferLead::Start(served.connect(), MakeLocalTransferPort(), {});
    REQUIRE_OK(started);
    lead = *std::move(started);
    served.carry = [this](TransactionNumber transaction, const std::vector<std::string>& chunks) {
      arena = std::make_unique<Arena>(chunks);
      sent = Send(transaction, arena->chunks());
    };
  }
  absl::Status Send(TransactionNumber transaction, const std::vector<DeviceChunk>& chunks) {
    return lead->Send(transaction, chunks, Deadline::After(5 * kSecond));
  }
  static void Reach(TestInstance& instance) {
    for (auto& rank : instance.ranks) rank->options.transfer = MakeLocalTransferPort();
  }

  ServedModel served;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<TransferLead> lead;
  absl::Status sent;
};

}  // namespace

TEST_CASE("chunks come past the server to those that can be reached, and are served alike") {
  Carried carried(TestSeed("carried"));
  ServedModel& served = carried.served;
  TestInstance near(served, "near", 2);
  TestInstance far(served, "far", 1);
  TestInstance plain(served, "plain", 1);
  Carried::Reach(near);
  far.ranks[0]->options.transfer = std::make_shared<FarPort>();
  near.Start();
  far.Start();
  plain.Start();
  for (TestInstance* instance : {&near, &far, &plain}) instance->AwaitServing(0);
  REQUIRE_OK(carried.lead->AwaitRanks(2, Deadline::After(10 * kSecond)));
  v1::Decision decision;
  for (uint64_t version = 1; version <= 3; ++version) {
    REQUIRE(served
                .Publish(std::to_string(version),
                         served.Changed(served.versions.at(version - 1), 0.2), &decision)
                .ok());
    REQUIRE_OK(carried.sent);
    for (TestInstance* instance : {&near, &far, &plain}) {
      instance->AwaitServing(version);
      instance->RequireHolds(served.versions.at(version));
    }
  }
  for (auto& rank : near.ranks) {
    INFO(rank->log());
    REQUIRE(WaitUntil([&] { return rank->worker().status().carried_bytes > 0; }));
  }
  REQUIRE(far.ranks[0]->worker().status().carried_bytes == 0);
  REQUIRE(WaitUntil([&] { return carried.lead->status().ranks.size() == 3; }));
  const TransferLeadStatus status = carried.lead->status();
  REQUIRE(status.ranks[0].name == "far/0");
  REQUIRE(status.ranks[0].route == TransferRoute::kService);
  // A rank that comes later is in the next group.
  TestInstance late(served, "late", 1);
  Carried::Reach(late);
  late.Start();
  late.AwaitServing(3);
  REQUIRE_OK(carried.lead->AwaitRanks(3, Deadline::After(10 * kSecond)));
  REQUIRE(served.Publish("4", served.Changed(served.versions.at(3), 0.2), &decision).ok());
  REQUIRE_OK(carried.sent);
  late.AwaitServing(4);
  late.RequireHolds(served.versions.at(4));
  REQUIRE(WaitUntil([&] { return late.ranks[0]->worker().status().carried_bytes > 0; }));
}

TEST_CASE("A18 chunks that do not come, or come damaged, are fetched from the server") {
  Carried carried(TestSeed("carried damage"));
  ServedModel& served = carried.served;
  TestInstance near(served, "near", 2);
  Carried::Reach(near);
  near.Start();
  near.AwaitServing(0);
  REQUIRE_OK(carried.lead->AwaitRanks(2, Deadline::After(10 * kSecond)));
  v1::Decision decision;
  SECTION("none are sent, and the publisher gives the group up") {
    served.carry = [&](TransactionNumber, const std::vector<std::string>&) {
      carried.lead.reset();
    };
  }
  SECTION("a byte is another") {
    served.carry = [&](TransactionNumber transaction, std::vector<std::string> chunks) {
      chunks.back()[chunks.back().size() / 2] ^= 1;
      carried.arena = std::make_unique<Arena>(chunks);
      carried.sent = carried.Send(transaction, carried.arena->chunks());
    };
  }
  SECTION("half of them are sent") {
    served.carry = [&](TransactionNumber transaction, std::vector<std::string> chunks) {
      chunks.resize(chunks.size() / 2);
      carried.arena = std::make_unique<Arena>(chunks);
      carried.sent = carried.Send(transaction, carried.arena->chunks());
    };
  }
  SECTION("they are of another transaction") {
    served.carry = [&](TransactionNumber transaction, std::vector<std::string> chunks) {
      for (std::string& chunk : chunks) {
        ReplaceHeader(TransactionNumber(transaction.value() + 1), 0, &chunk);
      }
      carried.arena = std::make_unique<Arena>(chunks);
      carried.sent = carried.Send(transaction, carried.arena->chunks());
    };
  }
  REQUIRE(served.Publish("1", served.Changed(served.versions.at(0), 0.2), &decision).ok());
  near.AwaitServing(1);
  near.RequireHolds(served.versions.at(1));
  // Without anybody being taken out of service.
  for (auto& rank : near.ranks) {
    INFO(rank->log());
    REQUIRE(rank->log().find("event=out") == std::string::npos);
  }
  // Whatever it was, the next one is whole.
  served.carry = nullptr;
  const uint64_t head = near.ranks[0]->worker().status().version->version.value();
  REQUIRE(served.Publish("next", served.Changed(served.versions.at(head), 0.1), &decision).ok());
  const uint64_t last = decision.version().version();
  near.AwaitServing(last);
  near.RequireHolds(served.versions.at(last));
}

TEST_CASE("a trainer sends its chunks to the ranks, and copies of them to the store") {
  Carried carried(TestSeed("carried upload"));
  ServedModel& served = carried.served;
  TestInstance near(served, "near", 2);
  Carried::Reach(near);
  near.Start();
  near.AwaitServing(0);
  REQUIRE_OK(carried.lead->AwaitRanks(2, Deadline::After(10 * kSecond)));
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
  const Arena arena(chunks);
  REQUIRE_OK(carried.Send((*upload)->transaction(), arena.chunks()));
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

namespace {

// A publish that is declared before its chunks are put.
struct EarlyPublish {
  EarlyPublish(ServedModel& model, uint64_t from, double density)
      : served(model), next(model.Changed(model.versions.at(from), density)) {
    v1::BeginRequest begin;
    begin.set_id("early");
    begin.set_durability(v1::DURABILITY_ASYNC);
    begin.set_carried(true);
    v1::BeginResponse begun;
    REQUIRE(served.stub->Begin(ServedModel::Context().get(), begin, &begun).ok());
    transaction = TransactionNumber(begun.transaction());
    PatchDigester digester(served.manifest());
    const NaiveTensors& before = served.versions.at(from);
    chunks = served.Chunks(before, next, begun.transaction(), &digester);
    commit.set_transaction(begun.transaction());
    commit.set_chunks(chunks.size());
    commit.set_digest(ToBytes(digester.Finish()));
    commit.set_content_follows(true);
    commit.mutable_sums();
    v1::GetStatusRequest request;
    v1::Status status;
    REQUIRE(served.stub->GetStatus(ServedModel::Context().get(), request, &status).ok());
    Declare(before, status.head().base_digest());
  }

  // Element by element.
  void Declare(const NaiveTensors& before, const std::string& base_digest) {
    Digest digest;
    std::memcpy(digest.bytes.data(), base_digest.data(), digest.bytes.size());
    const FingerprintKey key(digest);
    const auto at = [](const std::string& bytes, size_t offset) {
      return absl::Span<const uint8_t>(reinterpret_cast<const uint8_t*>(&bytes[offset]), 2);
    };
    for (TensorIndex i = 0; i < served.manifest().size(); ++i) {
      const std::string& name = served.manifest().tensor(i).spec.name;
      const std::string& old = before.at(name).bytes;
      const std::string& now = next.at(name).bytes;
      const TensorFingerprinter fingerprinter(key, name);
      TouchedSums sums;
      for (size_t offset = 0; offset < old.size(); offset += 2) {
        if (std::memcmp(&old[offset], &now[offset], 2) == 0) continue;
        sums.before += fingerprinter.Sum(offset, at(old, offset));
        sums.after += fingerprinter.Sum(offset, at(now, offset));
        commit.set_elements(commit.elements() + 1);
      }
      if (old == now) continue;
      commit.mutable_sums()->add_of(i);
      for (const Fingerprint& sum : {sums.before, sums.after}) {
        for (const uint64_t lane : sum.lanes) commit.mutable_sums()->add_lanes(lane);
      }
    }
  }

  grpc::Status Put() {
    auto context = ServedModel::Context();
    const auto stream = served.stub->Put(context.get());
    v1::PutRequest request;
    request.set_transaction(transaction.value());
    for (size_t i = 0; i < chunks.size(); ++i) {
      request.set_sequence(i);
      request.set_chunk(chunks[i]);
      stream->Write(request);
    }
    stream->WritesDone();
    v1::PutResponse response;
    while (stream->Read(&response)) {
    }
    return stream->Finish();
  }

  grpc::Status Commit(v1::Decision* decision) {
    return served.stub->Commit(ServedModel::Context().get(), commit, decision);
  }

  ServedModel& served;
  const NaiveTensors next;
  TransactionNumber transaction;
  std::vector<std::string> chunks;
  v1::CommitRequest commit;
};

}  // namespace

TEST_CASE("an async publish that was declared is served before its chunks are in the store") {
  Carried carried(TestSeed("declared"));
  ServedModel& served = carried.served;
  TestInstance near(served, "near", 2);
  Carried::Reach(near);
  near.Start();
  near.AwaitServing(0);
  REQUIRE_OK(carried.lead->AwaitRanks(2, Deadline::After(10 * kSecond)));
  EarlyPublish publish(served, 0, 0.2);
  const Arena arena(publish.chunks);
  REQUIRE_OK(carried.Send(publish.transaction, arena.chunks()));
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
  ask.set_id("early");
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
  Carried carried(TestSeed("declared and lost"));
  ServedModel& served = carried.served;
  served.StopServer();
  served.options.coordinator.timing.stage_deadline = 1'500'000;
  served.StartServer();
  TestInstance near(served, "near", 2);
  Carried::Reach(near);
  near.Start();
  near.AwaitServing(0);
  REQUIRE_OK(carried.lead->AwaitRanks(2, Deadline::After(10 * kSecond)));
  EarlyPublish publish(served, 0, 0.2);
  const Arena arena(publish.chunks);
  v1::Decision decision;
  bool is_served = true;
  SECTION("they never come") { publish.chunks.clear(); }
  SECTION("half of them come") { publish.chunks.resize(publish.chunks.size() / 2); }
  SECTION("they have other bits") {
    PatchDigester ignored(served.manifest());
    NaiveTensors other = publish.next;
    for (auto& [name, tensor] : other) {
      for (size_t i = 0; i < tensor.bytes.size(); i += 2) {
        if (tensor.bytes[i] != served.versions.at(0).at(name).bytes[i]) tensor.bytes[i] ^= 4;
      }
    }
    publish.chunks =
        served.Chunks(served.versions.at(0), other, publish.transaction.value(), &ignored);
    publish.chunks.resize(publish.commit.chunks());
  }
  SECTION("the sums are others, so that no rank agrees") {
    is_served = false;
    publish.commit.mutable_sums()->set_lanes(0, 1);
  }
  REQUIRE_OK(carried.Send(publish.transaction, arena.chunks()));
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
  Carried carried(TestSeed("declared and rolled back"));
  ServedModel& served = carried.served;
  TestInstance near(served, "near", 2);
  Carried::Reach(near);
  near.Start();
  near.AwaitServing(0);
  v1::Decision decision;
  REQUIRE(served.Publish("first", served.Changed(served.versions.at(0), 0.1), &decision).ok());
  near.AwaitServing(1);
  REQUIRE_OK(carried.lead->AwaitRanks(2, Deadline::After(10 * kSecond)));
  EarlyPublish publish(served, 1, 0.2);
  const Arena arena(publish.chunks);
  REQUIRE_OK(carried.Send(publish.transaction, arena.chunks()));
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
  Carried carried(TestSeed("declared and needed"));
  ServedModel& served = carried.served;
  TestInstance near(served, "near", 1);
  TestInstance plain(served, "plain", 1);
  Carried::Reach(near);
  near.Start();
  plain.Start();
  for (TestInstance* instance : {&near, &plain}) instance->AwaitServing(0);
  REQUIRE_OK(carried.lead->AwaitRanks(1, Deadline::After(10 * kSecond)));
  EarlyPublish publish(served, 0, 0.2);
  const Arena arena(publish.chunks);
  REQUIRE_OK(carried.Send(publish.transaction, arena.chunks()));
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
  Carried carried(TestSeed("carried twice"));
  TestInstance near(carried.served, "near", 1);
  Carried::Reach(near);
  near.Start();
  REQUIRE_OK(carried.lead->AwaitRanks(1, Deadline::After(10 * kSecond)));
  auto second = TransferLead::Start(carried.served.connect(), MakeLocalTransferPort(), {});
  REQUIRE_OK(second);
  REQUIRE(WaitUntil([&] {
    return (*second)->status().error.find("one publisher at a time") != std::string::npos;
  }));
  carried.lead.reset();
  REQUIRE_OK((*second)->AwaitRanks(1, Deadline::After(10 * kSecond)));
  // After a restart of the server everybody finds together again, under a later epoch.
  const uint64_t before = (*second)->status().epoch;
  carried.served.StopServer();
  carried.served.StartServer();
  REQUIRE(WaitUntil([&] { return (*second)->status().epoch > before; }));
}

}  // namespace wstore::testing
