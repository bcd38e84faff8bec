// Server, trainer and ranks on networks of their own, which lose packets and fall apart. After each
// fault the fleet is judged as in fleet_fault_test.cc.
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "tests/fault/fault_fixture.h"
#include "tests/fault/net_namespaces.h"
#include "tests/support/random.h"

namespace wstore::testing {
namespace {

const std::vector<std::string> kLeaves = {"a", "b", "trainer"};

FaultFixture::Network Describe(const NetNamespaces& namespaces) {
  // Ranks meet in a folder that is named after the address, which other fleets may share.
  const std::string port = ":" + std::to_string(10'000 + getpid() % 50'000);
  FaultFixture::Network network;
  network.listen = "0.0.0.0" + port;
  network.launchers["server"] = namespaces.Launcher("");
  for (const std::string& leaf : kLeaves) {
    network.launchers[leaf] = namespaces.Launcher(leaf);
    network.addresses[leaf] = namespaces.HubAddress(leaf) + port;
  }
  return network;
}

std::chrono::milliseconds Random(std::mt19937_64& random, uint64_t most_ms) {
  return std::chrono::milliseconds(random() % most_ms);
}

// A fleet on such a network, which is given one fault after another.
class NetworkFixture : public FaultFixture {
 public:
  explicit NetworkFixture(NetNamespaces& namespaces)
      : FaultFixture(Describe(namespaces)), namespaces_(namespaces) {}

  // One publish, in whose course `harm` is done, which is repaired in the end. Returns the time
  // from its begin to the commit.
  template <typename Harm>
  void PublishDuring(const std::string& fault, const Harm& harm) {
    const std::string id = std::to_string(ids_.size()) + " " + fault;
    INFO(id);
    const std::string checkpoint = NextCheckpoint();
    const std::unique_ptr<ChildProcess> trainer = StartPublish(checkpoint, id);
    harm();
    // It ends within its deadline, whatever the network does.
    REQUIRE(trainer->Wait(12 * kSecond).has_value());
    PublishUntilCommitted(checkpoint, id);
    ids_.insert(id);
    REQUIRE_OK(namespaces_.SetLoss(0));
    for (const std::string& leaf : kLeaves) REQUIRE_OK(namespaces_.SetLink(leaf, true));
    RequireWhole(ids_);
    RequireHeadIs(checkpoint);
  }

  void LosePackets(double probability) {
    REQUIRE_OK(namespaces_.SetLoss(probability));
    PublishDuring("loss " + std::to_string(probability), [] {});
  }

  // These links are down for a while.
  void CutOff(const std::vector<std::string>& leaves, std::mt19937_64& random) {
    PublishDuring("partition", [&] {
      std::this_thread::sleep_for(Random(random, 500));
      for (const std::string& leaf : leaves) REQUIRE_OK(namespaces_.SetLink(leaf, false));
      std::this_thread::sleep_for(Random(random, 3000));
      for (const std::string& leaf : leaves) REQUIRE_OK(namespaces_.SetLink(leaf, true));
    });
  }

  // The instance is away until the publish is committed without it.
  void CutOffForGood(const std::string& instance, std::mt19937_64& random) {
    PublishDuring("partition for good", [&] {
      std::this_thread::sleep_for(Random(random, 500));
      REQUIRE_OK(namespaces_.SetLink(instance, false));
    });
  }

  void RestartServerBehindLoss(std::mt19937_64& random) {
    REQUIRE_OK(namespaces_.SetLoss(0.1));
    PublishDuring("restart of the server behind loss", [&] {
      std::this_thread::sleep_for(Random(random, 1000));
      fleet().server().Signal(SIGKILL);
      REQUIRE_OK(fleet().StartServer());
    });
  }

 private:
  NetNamespaces& namespaces_;
  std::set<std::string> ids_;
};

TEST_CASE("A network that loses packets harms nothing") {
  const auto namespaces = NetNamespaces::Create(kLeaves);
  if (!namespaces.ok()) SKIP_TEST(namespaces.status().message());
  NetworkFixture fixture(**namespaces);
  for (const double probability : {0.02, 0.15}) fixture.LosePackets(probability);
}

TEST_CASE("A network that falls apart harms nothing") {
  const auto namespaces = NetNamespaces::Create(kLeaves);
  if (!namespaces.ok()) SKIP_TEST(namespaces.status().message());
  std::mt19937_64 random(TestSeed("partitions"));
  NetworkFixture fixture(**namespaces);
  fixture.CutOff({kLeaves[random() % 2]}, random);
  fixture.CutOffForGood("b", random);
  fixture.CutOff({"trainer"}, random);
}

// How often a rank has said that it stopped serving.
size_t Pauses(const FaultFixture& fixture, const std::string& rank) {
  std::ifstream log(fixture.fleet().log_path(rank));
  size_t pauses = 0;
  for (std::string line; std::getline(log, line);) {
    pauses += line.find("\"event\":\"paused\"") != std::string::npos ? 1 : 0;
  }
  return pauses;
}

TEST_CASE("A cut off instance that serves without a lease keeps the fleet where it is") {
  const auto namespaces = NetNamespaces::Create(kLeaves);
  if (!namespaces.ok()) SKIP_TEST(namespaces.status().message());
  NetworkFixture fixture(**namespaces);
  LocalFleet& fleet = fixture.fleet();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    REQUIRE_OK(fleet.StartRank("b", rank, {"--on-lost-lease", "serve"}));
  }
  for (uint32_t rank = 0; rank < 2; ++rank) REQUIRE_OK(fleet.AwaitServing("b", rank, kWait));
  fixture.AwaitCurrent("v0");
  const size_t pauses = Pauses(fixture, "b-0");
  REQUIRE_OK((*namespaces)->SetLink("b", false));
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // lease and skew are 0.7 s

  // It cannot be fenced, so nobody goes on without it; and what it serves is known.
  const std::string checkpoint = fixture.NextCheckpoint();
  const auto trainer = fixture.StartPublish(checkpoint, "away");
  const std::optional<int> told = trainer->Wait(12 * kSecond);
  INFO(ReadFile(trainer->options().out_path));
  REQUIRE((told == kAborted || told == kUnavailable));
  REQUIRE(fixture.Head() == "v0");
  auto workers = fleet.Must({"workers"});
  REQUIRE_OK(workers);
  INFO(workers->dump(1));
  size_t may_serve = 0;
  for (const nlohmann::json& worker : *workers) {
    const bool is_away = worker["instance"] == "b";
    REQUIRE(worker["may_serve_when_lost"] == is_away);
    REQUIRE((worker["state"] == "lost") == is_away);
    may_serve += is_away ? 1 : 0;
  }
  REQUIRE(may_serve == 2);
  REQUIRE(Pauses(fixture, "b-0") == pauses);

  REQUIRE_OK((*namespaces)->SetLink("b", true));
  fixture.PublishUntilCommitted(checkpoint, "away");
  fixture.RequireWhole({"away"});
  fixture.RequireHeadIs(checkpoint);
}

TEST_CASE("Networks that lose packets and fall apart, many times", "[.][long][network]") {
  const auto namespaces = NetNamespaces::Create(kLeaves);
  if (!namespaces.ok()) SKIP_TEST(namespaces.status().message());
  std::mt19937_64 random(TestSeed("network faults, long"));
  NetworkFixture fixture(**namespaces);
  for (int round = 0; round < 5; ++round) {
    fixture.LosePackets(0.05 * static_cast<double>(1 + random() % 5));
    fixture.CutOff({"a"}, random);
    fixture.CutOff({"a", "b"}, random);
    fixture.CutOff(kLeaves, random);
    fixture.CutOffForGood(kLeaves[random() % 2], random);
    fixture.RestartServerBehindLoss(random);
  }
}

}  // namespace
}  // namespace wstore::testing
