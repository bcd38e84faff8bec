#include "store/service/fleet.h"

#include "tests/support/random.h"
#include "tests/unit/service/fake_fleet.h"

namespace wstore::testing {
namespace {

using protocol::AnswerKind;
using Code = absl::StatusCode;

service::BeginPublish From(uint32_t contributors) {
  service::BeginPublish request;
  request.contributors = contributors;
  return request;
}

TEST_CASE("publishes without a fleet commit, repeat, and are refused, as their ids say") {
  FakeFleet fleet;
  fleet.WaitUntilReady();
  const uint64_t epoch = fleet.fleet->head().epoch;
  const NaiveTensors one = fleet.fixture.store.Changed(fleet.fixture.versions.at(0), 0.02);
  service::FleetAnswer answer = fleet.Publish("one", one);
  REQUIRE_OK(answer.status);
  REQUIRE(answer.kind == AnswerKind::kCommitted);
  REQUIRE(answer.to.version == VersionId(1));
  REQUIRE(answer.head.head == answer.to);

  // The same id again, with the same content, with other content, and for something else.
  service::BeginPublish again;
  again.id = "one";
  again.patch_digest = fleet.fixture.live->store()->version(VersionId(1))->patch_digest;
  answer = fleet.Begin(again);
  REQUIRE(answer.kind == AnswerKind::kRepeated);
  REQUIRE(answer.to.version == VersionId(1));
  again.patch_digest->bytes[0] ^= 1;
  REQUIRE_ERROR(fleet.Begin(again).status, Code::kAlreadyExists, "other content");
  REQUIRE_ERROR(fleet.Rollback("one", "v0").status, Code::kAlreadyExists, "publish");

  // A21: a trainer that restarted with an empty counter.
  service::BeginPublish stale;
  stale.id = "stale";
  stale.expected.parent = VersionId(0);
  REQUIRE_ERROR(fleet.Begin(stale).status, Code::kFailedPrecondition, "head is v1 now");
  REQUIRE(fleet.Publish("same", one).kind == AnswerKind::kUnchanged);
  answer = fleet.Publish("two", fleet.fixture.store.Changed(one, 0.02), From(3));
  REQUIRE(answer.kind == AnswerKind::kCommitted);
  REQUIRE(answer.to.version.value() > 1);

  LaterAnswer asked;
  fleet.fleet->Await("one", asked.Callback());
  REQUIRE(fleet.Get(asked).to.version == VersionId(1));
  LaterAnswer unknown;
  fleet.fleet->Await("never", unknown.Callback());
  REQUIRE_ERROR(fleet.Get(unknown).status, Code::kNotFound, "never");

  const service::FleetAnswer back = fleet.Rollback("op", "v1");
  REQUIRE_OK(back.status);
  REQUIRE(back.head.hold);
  REQUIRE_ERROR(fleet.Publish("held", one).status, Code::kFailedPrecondition, "hold");
  LaterStatus resumed;
  fleet.fleet->SetHold(false, "", {}, resumed.Callback());
  REQUIRE_OK(fleet.Get(resumed));
  REQUIRE(fleet.Publish("three", fleet.fixture.store.Changed(one, 0.02)).kind ==
          AnswerKind::kCommitted);

  // The record of it all, refused attempts included.
  fleet.StopServer(1'000'000);
  size_t refused = 0;
  for (const MoveInfo& move : fleet.fixture.live->store()->moves()) {
    refused += move.outcome == "refused" ? 1 : 0;
  }
  REQUIRE(refused == 4);
  fleet.fixture.RequireAllVersions();
  fleet.StartServer();
  fleet.WaitUntilReady();
  REQUIRE(fleet.fleet->head().epoch == epoch + 1);
  answer = fleet.Begin(again);
  REQUIRE(answer.kind == AnswerKind::kRefused);
}

TEST_CASE("A22 a fleet follows publishes and rollbacks, and a late rank catches up") {
  FakeFleet fleet(FastOptions(), TestSeed("fleet"));
  const auto base = fleet.fixture.live->store()->head();
  for (uint32_t i = 0; i < 2; ++i) fleet.AddRank("blue", i, 2, VersionId(0), base.move);
  fleet.AddRank("green", 0, 1, VersionId(0), base.move);
  fleet.PumpUntil([&] { return fleet.AllServe({base.move, base.version, base.chain_digest}); });
  NaiveTensors model = fleet.fixture.versions.at(0);
  service::FleetAnswer answer;
  for (int i = 1; i <= 3; ++i) {
    model = fleet.fixture.store.Changed(model, 0.02);
    answer = fleet.Publish("step " + std::to_string(i), model, From(static_cast<uint32_t>(i)));
    REQUIRE_OK(answer.status);
    REQUIRE(answer.kind == AnswerKind::kCommitted);
    fleet.PumpUntil([&] { return fleet.AllServe(answer.to); });
    for (auto& rank : fleet.ranks) REQUIRE(rank->Holds(model));
    const auto info = fleet.fixture.live->store()->version(answer.to.version);
    REQUIRE(info->verified == Verified::kInstalled);
  }
  // From base files, while the others serve v3.
  FakeRank& late = fleet.AddRank("late", 0, 1, VersionId(0), base.move);
  REQUIRE_FALSE(late.serving());
  fleet.PumpUntil([&] { return fleet.AllServe(answer.to); });
  REQUIRE(late.Holds(model));

  const service::FleetAnswer back = fleet.Rollback("op", "v1");
  REQUIRE_OK(back.status);
  fleet.PumpUntil([&] { return fleet.AllServe(back.to); });
  for (auto& rank : fleet.ranks) REQUIRE(rank->Holds(fleet.fixture.versions.at(1)));

  Later<std::vector<service::WorkerRow>> rows;
  fleet.fleet->ListWorkers(rows.Callback());
  REQUIRE(rows.Get().size() == 4);
  for (const service::WorkerRow& row : rows.Get()) REQUIRE(row.state == "current");
  REQUIRE(rows.Get()[3].rank.instance == "late");
}

TEST_CASE("A01 a rank with a flipped bit stops the publish by name, and everything is as before") {
  FakeFleet fleet;
  const auto base = fleet.fixture.live->store()->head();
  fleet.AddRank("blue", 0, 1, VersionId(0), base.move);
  FakeRank& bad = fleet.AddRank("green", 0, 1, VersionId(0), base.move);
  fleet.PumpUntil([&] { return fleet.AllServe({base.move, base.version, base.chain_digest}); });
  // Every element changes, so that the damaged one is looked at.
  bad.FlipBit("layer.0.bias");
  NaiveTensors next = fleet.fixture.versions.at(0);
  for (char& byte : next.at("layer.0.bias").bytes) byte = static_cast<char>(byte ^ 1);
  const service::FleetAnswer answer = fleet.Publish("one", next);
  REQUIRE(answer.kind == AnswerKind::kAborted);
  REQUIRE_ERROR(answer.status, Code::kAborted, "green");
  REQUIRE(fleet.fleet->head().head.version == VersionId(0));
  REQUIRE(fleet.ranks[0]->Holds(fleet.fixture.versions.at(0)));
  fleet.PumpUntil([&] { return fleet.ranks[0]->serving(); });
  fleet.StopServer(1'000'000);
  const MoveInfo last = fleet.fixture.live->store()->moves().back();
  REQUIRE(last.outcome == "aborted");
  REQUIRE(last.actor == "trainer");
}

TEST_CASE("a rank that hangs is fenced, and a rollback does not wait for it for ever") {
  FakeFleet fleet;
  const auto base = fleet.fixture.live->store()->head();
  fleet.AddRank("blue", 0, 1, VersionId(0), base.move);
  FakeRank& hung = fleet.AddRank("green", 0, 1, VersionId(0), base.move);
  fleet.PumpUntil([&] { return fleet.AllServe({base.move, base.version, base.chain_digest}); });
  hung.frozen = true;
  const NaiveTensors next = fleet.fixture.store.Changed(fleet.fixture.versions.at(0), 0.02);
  const service::FleetAnswer answer = fleet.Publish("one", next);
  REQUIRE_OK(answer.status);
  REQUIRE(answer.kind == AnswerKind::kCommitted);
  REQUIRE_FALSE(hung.serving());
  fleet.PumpUntil([&] { return fleet.AllServe(answer.to); });
  hung.frozen = false;
  fleet.PumpUntil([&] { return fleet.AllServe(answer.to); });
  REQUIRE(hung.Holds(next));
}

TEST_CASE("E10 a server that stops during a publish aborts it, and its next start is clean") {
  FakeFleet fleet;
  fleet.WaitUntilReady();
  service::BeginPublish request;
  request.id = "one";
  const service::FleetAnswer begun = fleet.Begin(request);
  REQUIRE(begun.kind == AnswerKind::kBegun);
  LaterAnswer decided;
  fleet.fleet->AwaitTransaction(begun.transaction, decided.Callback());
  fleet.StopServer(5'000'000);
  REQUIRE_ERROR(decided.Get().status, Code::kAborted, "stopping");
  fleet.StartServer();
  fleet.WaitUntilReady();
  const NaiveTensors next = fleet.fixture.store.Changed(fleet.fixture.versions.at(0), 0.02);
  const service::FleetAnswer answer = fleet.Publish("one", next);
  REQUIRE(answer.kind == AnswerKind::kCommitted);
  REQUIRE(answer.to.version.value() > begun.to.version.value());
  REQUIRE(answer.transaction.value() > begun.transaction.value());
}

TEST_CASE("a publish that need not be durable is served, then durable") {
  FakeFleet fleet;
  const auto base = fleet.fixture.live->store()->head();
  fleet.AddRank("blue", 0, 1, VersionId(0), base.move);
  fleet.PumpUntil([&] { return fleet.AllServe({base.move, base.version, base.chain_digest}); });
  const NaiveTensors next = fleet.fixture.store.Changed(fleet.fixture.versions.at(0), 0.02);
  service::BeginPublish request;
  request.durability = protocol::Durability::kAsync;
  const service::FleetAnswer answer = fleet.Publish("one", next, request);
  REQUIRE_OK(answer.status);
  REQUIRE(answer.kind == AnswerKind::kServedNotDurable);
  fleet.PumpUntil([&] { return fleet.fleet->head().durable; });
  fleet.PumpUntil([&] { return fleet.AllServe(answer.to); });
  REQUIRE(fleet.fleet->head().durable_version == answer.to.version);
  for (auto& rank : fleet.ranks) rank->Disconnect();
  fleet.StopServer(0);
  fleet.fixture.RequireAllVersions();
}

TEST_CASE("an audit is judged once all ranks of the instance have sent theirs") {
  FakeFleet fleet;
  const auto base = fleet.fixture.live->store()->head();
  for (uint32_t i = 0; i < 2; ++i) fleet.AddRank("blue", i, 2, VersionId(0), base.move);
  fleet.PumpUntil([&] { return fleet.AllServe({base.move, base.version, base.chain_digest}); });
  const auto send = [&](FakeRank& rank, uint64_t name) {
    const auto proof = rank.replica().Audit();
    REQUIRE_OK(proof);
    std::vector<CellSums> cells;
    for (uint32_t i = 0; i < proof->cells.size(); ++i) cells.push_back({i, {{}, proof->cells[i]}});
    fleet.fleet->Audit(rank.process(), name, {base.version, base.chain_digest}, cells, true);
  };
  send(*fleet.ranks[0], 1);
  send(*fleet.ranks[1], 2);
  fleet.PumpUntil([&] { return fleet.ranks[1]->verdict().has_value(); });
  const service::AuditVerdict right = *fleet.ranks[1]->verdict();
  REQUIRE_OK(right.status);
  REQUIRE(right.audit == 2);
  fleet.ranks[0]->FlipBit("embed.weight");
  send(*fleet.ranks[0], 3);
  send(*fleet.ranks[1], 4);
  fleet.PumpUntil([&] { return fleet.ranks[1]->verdict()->audit == 4; });
  REQUIRE_ERROR(fleet.ranks[1]->verdict()->status, Code::kDataLoss, "embed.weight");
}

}  // namespace
}  // namespace wstore::testing
