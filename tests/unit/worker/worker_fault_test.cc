// Ranks that follow a server, with faults.
#include "tests/support/random.h"
#include "tests/unit/worker/served_model.h"
#include "wstore/worker.h"

namespace wstore::testing {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("A01 A16 a rank with a flipped bit is refused, named, and comes back whole") {
  ServedModel served(TestSeed("worker flipped"));
  TestInstance good(served, "good", 2);
  TestInstance bad(served, "bad", 1);
  good.Start();
  bad.Start();
  good.AwaitServing(0);
  bad.AwaitServing(0);
  bad.ranks[0]->FlipBit();
  const uint64_t damaged = bad.ranks[0]->Sum();
  // An update of that very bit's element, and of all others.
  v1::Decision decision;
  const NaiveTensors next = served.Changed(served.versions.at(0), 1.0);
  const grpc::Status status = served.Publish("1", next, &decision);
  INFO(status.error_message());
  // Either it was not installed anywhere, or without the one that refused.
  if (status.ok()) {
    good.AwaitServing(1);
  } else {
    REQUIRE(status.error_code() == grpc::ABORTED);
    REQUIRE_THAT(status.error_message(), Contains("rank 0") && Contains("instance bad"));
    good.RequireHolds(served.versions.at(0));
  }
  REQUIRE(bad.ranks[0]->released_sums().count(damaged) <= 1);
  // It finds out that its memory is not what it says, and writes it anew.
  REQUIRE(
      WaitUntil([&] { return bad.ranks[0]->log().find("event=poisoned") != std::string::npos; }));
  const uint64_t head = status.ok() ? 1 : 0;
  bad.AwaitServing(head);
  bad.RequireHolds(served.versions.at(head));
  REQUIRE(served.Publish("2", served.Changed(served.versions.at(head), 0.1), &decision).ok());
  const uint64_t last = decision.version().version();
  good.AwaitServing(last);
  bad.AwaitServing(last);
  good.RequireHolds(served.versions.at(last));
  bad.RequireHolds(served.versions.at(last));
  good.RequireNoFault();
}

TEST_CASE("an audit that is asked for finds a flipped bit in a rank of two") {
  ServedModel served(TestSeed("worker audit"));
  TestInstance two(served, "two", 2);
  two.Start();
  two.AwaitServing(0);
  two.ranks[1]->FlipBit();
  v1::VerifyWorkersResponse verified;
  REQUIRE(served.stub->VerifyWorkers(ServedModel::Context().get(), {}, &verified).ok());
  REQUIRE(verified.audits_size() == 2);
  REQUIRE_FALSE(verified.audits(1).ok());
  REQUIRE(verified.audits(1).answered());
  REQUIRE_THAT(verified.audits(1).error(), Contains("two") && Contains("audit"));
  REQUIRE(
      WaitUntil([&] { return two.ranks[1]->log().find("event=poisoned") != std::string::npos; }));
  two.AwaitServing(0);
  two.RequireHolds(served.versions.at(0));
}

TEST_CASE("A22 a rank of two that is started again catches up while publishes go on") {
  ServedModel served(TestSeed("worker restart"));
  TestInstance two(served, "two", 2, /*in_step=*/false);
  TestInstance other(served, "other", 1);
  two.Start();
  other.Start();
  two.AwaitServing(0);
  other.AwaitServing(0);
  v1::Decision decision;
  for (uint64_t version = 1; version <= 2; ++version) {
    REQUIRE(served
                .Publish(std::to_string(version),
                         served.Changed(served.versions.at(version - 1), 0.05), &decision)
                .ok());
  }
  two.AwaitServing(2);
  two.Restart(1);
  REQUIRE(served.Publish("3", served.Changed(served.versions.at(2), 0.05), &decision).ok());
  two.AwaitServing(3);
  other.AwaitServing(3);
  two.RequireHolds(served.versions.at(3));
  REQUIRE(two.ranks[1]->events().front().from.version == VersionId(0));

  // The server has forgotten what the base's sums are in these layouts: the rank loads what the
  // other one holds.
  served.StopServer();
  served.StartServer();
  two.AwaitServing(3);
  two.Restart(0);
  two.AwaitServing(3);
  two.RequireHolds(served.versions.at(3));
  REQUIRE(served.Publish("4", served.Changed(served.versions.at(3), 0.05), &decision).ok());
  two.AwaitServing(4);
  two.RequireHolds(served.versions.at(4));
}

TEST_CASE("ranks stop serving by themselves without a server, and follow the next one") {
  ServedModel served(TestSeed("worker server restart"));
  TestInstance two(served, "two", 2);
  two.Start();
  two.AwaitServing(0);
  v1::Decision decision;
  REQUIRE(served.Publish("1", served.Changed(served.versions.at(0), 0.05), &decision).ok());
  two.AwaitServing(1);
  const uint64_t epoch = two.ranks[0]->worker().status().epoch;
  const auto stopped = std::chrono::steady_clock::now();
  served.StopServer();
  REQUIRE(WaitUntil(
      [&] { return !two.ranks[0]->worker().MayServe() && !two.ranks[1]->worker().MayServe(); }));
  const auto took = std::chrono::steady_clock::now() - stopped;
  REQUIRE(took < 2s);  // a lease of 0.6 s, and the server's stop
  // The weights stay what they are.
  two.RequireHolds(served.versions.at(1));
  served.StartServer();
  two.AwaitServing(1);
  REQUIRE(two.ranks[0]->worker().status().epoch > epoch);
  REQUIRE(served.Publish("2", served.Changed(served.versions.at(1), 0.05), &decision).ok());
  two.AwaitServing(2);
  two.RequireHolds(served.versions.at(2));
  two.RequireNoFault();
  REQUIRE(two.ranks[0]->events().size() == 2);
}

TEST_CASE("ranks that have voted vote again to a server that is started again") {
  ServedModel served(TestSeed("worker votes again"));
  served.StopServer();
  served.options.coordinator.timing.lease = 5'000'000;
  served.options.coordinator.timing.apply_deadline = 6'000'000;
  served.options.coordinator.timing.hold_deadline = 7'000'000;
  served.StartServer();
  TestInstance two(served, "two", 2);
  std::atomic<int> staged = 0;
  std::atomic<int> voted = 0;
  std::atomic<bool> may_vote = false;
  for (uint32_t i = 0; i < 2; ++i) {
    two.ranks[i]->options.on_step = [&, i](std::string_view step) {
      if (step == "staged") ++staged;
      // The second gives its vote into a connection that is gone.
      while (step == "staged" && i == 1 && !may_vote) std::this_thread::sleep_for(1ms);
      if (step == "voted") ++voted;
    };
  }
  two.Start();
  two.AwaitServing(0);
  v1::Decision decision;
  REQUIRE(
      served.Publish("1", served.Changed(served.versions.at(0), 0.05), &decision, v1::POLICY_EACH)
          .ok());
  REQUIRE(WaitUntil([&] { return staged == 2 && voted == 1; }));
  served.StopServer();
  auto started = service::Server::Start(served.options);
  REQUIRE_OK(started);
  served.server = *std::move(started);
  may_vote = true;
  two.AwaitServing(1);
  two.RequireHolds(served.versions.at(1));
  REQUIRE(staged == 2);  // nothing had to be done again
  two.RequireNoFault();
}

TEST_CASE("an engine that does not come to a safe point is fenced, and follows when it does") {
  ServedModel served(TestSeed("worker stuck"));
  TestInstance stuck(served, "stuck", 1);
  TestInstance other(served, "other", 1);
  stuck.Start();
  other.Start();
  stuck.AwaitServing(0);
  other.AwaitServing(0);
  stuck.ranks[0]->engine_is_stuck = true;
  v1::Decision decision;
  const grpc::Status status =
      served.Publish("1", served.Changed(served.versions.at(0), 0.2), &decision);
  INFO(status.error_message());
  REQUIRE(status.ok());
  // It was out before anybody was told that the new version is there.
  REQUIRE_FALSE(stuck.ranks[0]->worker().MayServe());
  stuck.RequireHolds(served.versions.at(0));
  const uint64_t released = stuck.ranks[0]->released;
  other.AwaitServing(1);
  std::this_thread::sleep_for(100ms);
  stuck.RequireHolds(served.versions.at(0));  // not under a running engine
  stuck.ranks[0]->engine_is_stuck = false;
  stuck.AwaitServing(1);
  stuck.RequireHolds(served.versions.at(1));
  stuck.RequireNoFault();
  REQUIRE(stuck.ranks[0]->released_sums().size() <= 2);
  REQUIRE(released <= stuck.ranks[0]->released);
}

TEST_CASE("a start without all ranks, or over another base, says what is wrong") {
  ServedModel served(TestSeed("worker refused"));
  auto groups = MakeThreadGroups(2);
  TestRank alone(served, served.Layouts(2)[0]);
  alone.options.connect = served.connect();
  alone.options.instance = "alone";
  alone.options.group = std::move(groups[0]);
  REQUIRE_ERROR(alone.Start(Deadline::After(100'000)), absl::StatusCode::kDeadlineExceeded,
                "did not come: 1");
  TestRank nameless(served, served.Layouts(1)[0]);
  nameless.options.connect = served.connect();
  REQUIRE_ERROR(nameless.Start(Deadline::After(1'000'000)), absl::StatusCode::kInvalidArgument, "");
  nameless.options.connect.address = "unix:" + served.path("nowhere.sock");
  REQUIRE_ERROR(nameless.Start(Deadline::After(300'000)), absl::StatusCode::kUnavailable,
                "nowhere.sock");
}

}  // namespace
}  // namespace wstore::testing
