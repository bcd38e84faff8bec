// Ranks that follow a server, without faults: real gRPC over a unix socket, a real store, real
// memory. Engines run in step, as with a collective in the middle of each step.
#include "wstore/worker.h"

#include "tests/support/random.h"
#include "tests/unit/worker/served_model.h"
#include "wstore/client.h"

namespace wstore::testing {
namespace {

TEST_CASE("A26 two instances of two ranks follow publishes and rollbacks, bit for bit") {
  ServedModel served(TestSeed("worker follow"));
  TestInstance blue(served, "blue", 2);
  TestInstance green(served, "green", 2);
  blue.Start();
  green.Start();
  blue.AwaitServing(0);
  green.AwaitServing(0);
  std::map<uint64_t, std::set<uint64_t>> sums;  // of rank 0's memory, by version
  const auto require_all = [&](uint64_t version) {
    blue.AwaitServing(version);
    green.AwaitServing(version);
    blue.RequireHolds(served.versions.at(version));
    green.RequireHolds(served.versions.at(version));
    sums[version].insert(blue.ranks[0]->Sum());
  };
  require_all(0);

  v1::Decision decision;
  for (uint64_t version = 1; version <= 3; ++version) {
    const NaiveTensors next = served.Changed(served.versions.at(version - 1), 0.02);
    const grpc::Status status = served.Publish("step " + std::to_string(version), next, &decision);
    INFO(status.error_message());
    REQUIRE(status.ok());
    REQUIRE(decision.version().version() == version);
    require_all(version);
  }
  // Once more under the same id: nothing happens.
  REQUIRE(served.Publish("step 3", served.versions.at(3), &decision).ok());
  REQUIRE(decision.outcome() == v1::OUTCOME_REPEATED);
  REQUIRE(served.Rollback("v1", &decision).ok());
  require_all(1);
  REQUIRE(served.Rollback("v0", &decision).ok());
  require_all(0);
  // Head moves; what it moves to is there already.
  REQUIRE(served.Rollback("v0", &decision).ok());
  require_all(0);
  const NaiveTensors last = served.Changed(served.versions.at(0), 0.5);
  REQUIRE(served.Publish("last", last, &decision, v1::POLICY_EACH).ok());
  require_all(4);
  v1::GetVersionRequest request;
  request.set_version("v3");
  v1::Version version;
  REQUIRE(served.stub->GetVersion(ServedModel::Context().get(), request, &version).ok());
  REQUIRE(version.verified() == "installed");

  // One event for each real change, and no other.
  using Change = std::pair<uint64_t, uint64_t>;
  const std::vector<Change> expected = {{0, 1}, {1, 2}, {2, 3}, {3, 1}, {1, 0}, {0, 4}};
  for (TestInstance* const instance : {&blue, &green}) {
    instance->RequireNoFault();
    for (auto& rank : instance->ranks) {
      std::vector<Change> seen;
      for (const ChangeEvent& event : rank->events()) {
        seen.emplace_back(event.from.version.value(), event.to.version.value());
      }
      REQUIRE(seen == expected);
      REQUIRE(rank->events()[3].reason == ChangeReason::kRollback);
      REQUIRE(rank->worker().status().changes == expected.size());
      REQUIRE(rank->released > 0);
    }
  }
  // Output was released of these versions, and of no other bits.
  std::set<uint64_t> all;
  for (const auto& [number, one] : sums) all.insert(one.begin(), one.end());
  for (const uint64_t sum : blue.ranks[0]->released_sums()) REQUIRE(all.count(sum) == 1);

  v1::VerifyWorkersResponse verified;
  REQUIRE(served.stub->VerifyWorkers(ServedModel::Context().get(), {}, &verified).ok());
  REQUIRE(verified.audits_size() == 4);
  for (const v1::WorkerAudit& audit : verified.audits()) {
    INFO(audit.instance() << "/" << audit.rank() << " " << audit.error());
    REQUIRE(audit.ok());
    REQUIRE(audit.version() == 4);
  }
  // Leaving frees the server from waiting for their leases.
  green.Stop();
  const auto before = std::chrono::steady_clock::now();
  REQUIRE(served.Publish("alone", served.versions.at(0), &decision).ok());
  REQUIRE(std::chrono::steady_clock::now() - before < 1s);
  blue.AwaitServing(5);
}

TEST_CASE(
    "A22 a late instance catches up from its base, and an engine of one rank needs no group") {
  ServedModel served(TestSeed("worker late"));
  TestInstance first(served, "first", 1);
  first.Start();
  first.AwaitServing(0);
  v1::Decision decision;
  for (uint64_t version = 1; version <= 4; ++version) {
    REQUIRE(served
                .Publish(std::to_string(version),
                         served.Changed(served.versions.at(version - 1), 0.01), &decision)
                .ok());
  }
  TestInstance late(served, "late", 2);
  late.Start();
  // The next publish comes while it catches up.
  REQUIRE(served.Publish("5", served.Changed(served.versions.at(4), 0.01), &decision).ok());
  late.AwaitServing(5);
  first.AwaitServing(5);
  late.RequireHolds(served.versions.at(5));
  first.RequireHolds(served.versions.at(5));
  REQUIRE(late.ranks[0]->events().front().from.version == VersionId(0));
  // Without files the weights come from the server, at head.
  TestInstance bare(served, "bare", 2);
  for (auto& rank : bare.ranks) rank->options.base = nullptr;
  bare.Start();
  bare.AwaitServing(5);
  bare.RequireHolds(served.versions.at(5));
  REQUIRE(bare.ranks[1]->events().empty());
}

TEST_CASE("a candidate is tried out on one instance, taken back, tried again, and made head") {
  ServedModel served(TestSeed("worker trial"));
  TestInstance blue(served, "blue", 1);
  TestInstance green(served, "green", 2);
  blue.Start();
  green.Start();
  blue.AwaitServing(0);
  green.AwaitServing(0);
  const auto connected = Client::Connect(served.connect(), "operator");
  REQUIRE_OK(connected);
  const auto& client = *connected;
  const auto soon = [] { return Deadline::After(20'000'000); };
  const NaiveTensors next = served.Changed(served.versions.at(0), 0.05);
  v1::Decision decision;
  REQUIRE(served.Publish("candidate", next, &decision, v1::POLICY_ALL, /*candidate=*/true).ok());
  REQUIRE(decision.move() == 0);
  const MoveOptions first = {"v1", "trial", "on one", false, false};

  REQUIRE_ERROR(client->Revert({"", "nothing", "", false, false}, soon()),
                absl::StatusCode::kFailedPrecondition, "no candidate is being tried out");
  REQUIRE_ERROR(client->Rollout(first, {"green", "red", "grey"}, soon()),
                absl::StatusCode::kNotFound, "red, grey");
  REQUIRE_ERROR(client->Rollout(first, {}, soon()), absl::StatusCode::kInvalidArgument, "1 to ");
  REQUIRE_ERROR(client->Rollout({"v0", "", "", false, false}, {"green"}, soon()),
                absl::StatusCode::kFailedPrecondition, "v0 is not a candidate");

  const auto tried = client->Rollout(first, {"green"}, soon());
  REQUIRE_OK(tried);
  REQUIRE(tried->version == VersionId(1));
  green.AwaitServing(1);
  blue.AwaitServing(0);
  green.RequireHolds(next);
  blue.RequireHolds(served.versions.at(0));
  REQUIRE(client->Head(soon())->head.version == VersionId(0));
  REQUIRE(client->Rollout(first, {"green"}, soon())->outcome == CommitResult::Outcome::kRepeated);
  const grpc::Status held = served.Publish("beside", next, &decision);
  REQUIRE(held.error_code() == grpc::FAILED_PRECONDITION);
  REQUIRE(held.error_message().find("v1 is being tried out on 1 instance") != std::string::npos);

  // The trial outlives the server.
  served.StopServer();
  served.StartServer();
  green.AwaitServing(1);
  blue.AwaitServing(0);
  REQUIRE_OK(client->Revert({"", "back", "no good", false, false}, soon()));
  green.AwaitServing(0);
  green.RequireHolds(served.versions.at(0));

  REQUIRE_OK(client->Rollout({"v1", "again", "", false, false}, {"blue"}, soon()));
  blue.AwaitServing(1);
  REQUIRE_OK(client->Promote({"v1", "promote", "", false, false}, soon()));
  blue.AwaitServing(1);
  green.AwaitServing(1);
  green.RequireHolds(next);
  blue.RequireHolds(next);
  REQUIRE(client->Head(soon())->head.version == VersionId(1));
  std::vector<std::string> why;
  const auto moves = client->Moves(SIZE_MAX, soon());
  REQUIRE_OK(moves);
  for (const MoveInfo& move : *moves) {
    if (move.outcome == "committed") why.push_back(move.why);
  }
  REQUIRE(why == std::vector<std::string>{"promote", "rollout", "revert", "rollout"});
  blue.RequireNoFault();
  green.RequireNoFault();
}

TEST_CASE("weights that are changed on purpose, given away or placed anew are proved again") {
  ServedModel served(TestSeed("worker withdrawn"));
  TestInstance one(served, "one", 1, false);
  one.Start();
  one.AwaitServing(0);
  v1::Decision decision;
  REQUIRE(served.Publish("1", served.Changed(served.versions.at(0), 0.05), &decision).ok());
  one.AwaitServing(1);
  TestRank& rank = *one.ranks[0];
  Worker& worker = rank.worker();
  // The engine of this test does not stand meanwhile: nothing is written until Prove.
  REQUIRE(WaitUntil([&] { return worker.Invalidate("a LoRA is merged").ok(); }));
  REQUIRE_FALSE(worker.MayServe());
  REQUIRE_FALSE(worker.status().version);
  REQUIRE_ERROR(worker.AwaitServing(Deadline::After(300'000)), absl::StatusCode::kDeadlineExceeded,
                "");
  worker.Prove();
  one.AwaitServing(1);
  // Changed and not changed back: it is written anew.
  REQUIRE(WaitUntil([&] { return worker.Invalidate("a LoRA is merged").ok(); }));
  rank.FlipBit();
  worker.Prove();
  one.AwaitServing(1);
  one.RequireHolds(served.versions.at(1));

  REQUIRE(WaitUntil([&] { return worker.Suspend().ok(); }));
  REQUIRE_FALSE(worker.MayServe());
  REQUIRE_OK(worker.Resume(rank.buffers()));
  one.AwaitServing(1);
  // Head moves meanwhile: what it holds is still what it was.
  REQUIRE(WaitUntil([&] { return worker.Suspend().ok(); }));
  REQUIRE(served.Publish("2", served.Changed(served.versions.at(1), 0.05), &decision).ok());
  REQUIRE_OK(worker.Resume(rank.buffers()));
  one.AwaitServing(2);
  one.RequireHolds(served.versions.at(2));
  const size_t events = rank.events().size();
  REQUIRE(WaitUntil([&] {
    return worker.Relayout(served.Layouts(1, 2)[0], rank.buffers(), Deadline::After(1'000'000))
        .ok();
  }));
  one.AwaitServing(2);
  one.RequireHolds(served.versions.at(2));
  REQUIRE(rank.events().size() == events);
}

}  // namespace
}  // namespace wstore::testing
