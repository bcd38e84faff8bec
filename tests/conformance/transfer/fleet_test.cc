// A fleet that follows its trainers, whichever way their chunks come.
#include <thread>

#include "tests/conformance/transfer/rig.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"

namespace wstore::testing {
namespace {

uint64_t CarriedTo(TestInstance& instance, size_t rank = 0) {
  return instance.ranks[rank]->worker().status().carried_bytes;
}

// One element of one tensor.
NaiveTensors Nudged(NaiveTensors tensors) {
  tensors.begin()->second.bytes[5] ^= 0x40;
  return tensors;
}

}  // namespace

TEST_CASE("transfer: versions reach all ranks bit for bit, and what was carried is counted") {
  TransferRig rig(TestSeed("transfer versions"), 1, /*frame_bytes=*/10 << 10);
  ServedModel& served = rig.served;
  TestInstance near(served, "near", 2);
  TestInstance plain(served, "plain", 1);
  TestInstance far(served, "far", 1);
  std::vector<TestInstance*> fleet = {&near, &plain, &far};
  rig.Reach(near);
  far.ranks[0]->options.transfer = std::make_shared<FarPort>();
  for (TestInstance* instance : fleet) instance->Start();
  for (TestInstance* instance : fleet) instance->AwaitServing(0);
  rig.AwaitReached(2);
  uint64_t carried = 0;
  const auto all_hold = [&](uint64_t version) {
    for (TestInstance* instance : fleet) {
      instance->AwaitServing(version);
      instance->RequireHolds(served.versions.at(version));
    }
    for (const size_t rank : {0u, 1u}) REQUIRE(CarriedTo(near, rank) == carried);
    for (TestInstance* instance : {&plain, &far}) REQUIRE(CarriedTo(*instance) == 0);
  };
  const auto publish = [&](uint64_t from, const NaiveTensors& to,
                           v1::Durability durability = v1::DURABILITY_SYNC) {
    OpenPublish::Options how;
    how.durability = durability;
    const auto [version, bytes] = rig.Publish(from, to, how);
    carried += bytes;
    all_hold(version);
    return version;
  };
  // Of one chunk, of many in several frames, and of none.
  REQUIRE(publish(0, Nudged(served.versions.at(0))) == 1);
  REQUIRE(publish(1, served.Changed(served.versions.at(1), 0.2)) == 2);
  REQUIRE(publish(2, served.versions.at(2)) == 2);
  REQUIRE(publish(2, served.Changed(served.versions.at(2), 0.1), v1::DURABILITY_ASYNC) > 2);
  v1::Decision decision;
  REQUIRE(served.Rollback("v1", &decision).ok());
  all_hold(1);
  uint64_t head = publish(1, served.Changed(served.versions.at(1), 0.2));

  // One that comes later has what was carried since; one that leaves is not waited for.
  TestInstance late(served, "late", 1);
  rig.Reach(late);
  late.Start();
  late.AwaitServing(head);
  rig.AwaitReached(3);
  fleet.push_back(&late);
  const uint64_t before = carried;
  head = publish(head, served.Changed(served.versions.at(head), 0.2));
  REQUIRE(CarriedTo(late) == carried - before);
  late.Stop();
  fleet.pop_back();
  rig.AwaitReached(2);
  publish(head, served.Changed(served.versions.at(head), 0.2));
  for (TestInstance* instance : fleet) instance->RequireNoFault();
}

TEST_CASE("transfer: several contributors make one version") {
  TransferRig rig(TestSeed("transfer contributors"), 3);
  ServedModel& served = rig.served;
  TestInstance near(served, "near", 2);
  rig.Reach(near);
  near.Start();
  near.AwaitServing(0);
  rig.AwaitReached(2);
  uint64_t carried = 0;
  for (uint64_t version = 1; version <= 3; ++version) {
    OpenPublish::Options how;
    how.is_declared = version >= 2;
    if (version == 3) how.durability = v1::DURABILITY_ASYNC;
    const auto [made, bytes] =
        rig.Publish(version - 1, served.Changed(served.versions.at(version - 1), 0.2), how);
    REQUIRE(made == version);
    carried += bytes;
    near.AwaitServing(version);
    near.RequireHolds(served.versions.at(version));
    REQUIRE(CarriedTo(near) == carried);
  }
  near.RequireNoFault();
}

TEST_CASE("transfer: a publish is declared before its chunks are in the store") {
  TransferRig rig(TestSeed("transfer declared"));
  ServedModel& served = rig.served;
  TestInstance near(served, "near", 2);
  rig.Reach(near);
  near.Start();
  near.AwaitServing(0);
  rig.AwaitReached(2);
  for (const v1::Durability durability : {v1::DURABILITY_SYNC, v1::DURABILITY_ASYNC}) {
    const uint64_t from = served.versions.rbegin()->first;
    OpenPublish::Options how;
    how.durability = durability;
    how.is_declared = true;
    OpenPublish publish = rig.Begin(from, served.Changed(served.versions.at(from), 0.2), how);
    if (rig.transport.has_port()) REQUIRE_OK(rig.Deliver(publish, publish.chunks[0]));
    v1::Decision decision;
    grpc::Status committed;
    std::thread committing([&] { committed = publish.Commit(&decision); });
    std::this_thread::sleep_for(50ms);
    const grpc::Status put = publish.Put();
    committing.join();
    REQUIRE(put.ok());
    INFO(committed.error_message());
    REQUIRE(committed.ok());
    const uint64_t version = decision.version().version();
    REQUIRE(version == from + 1);
    served.versions[version] = publish.next;
    near.AwaitServing(version);
    near.RequireHolds(publish.next);
    REQUIRE(WaitUntil([&] {
      v1::Status status;
      REQUIRE(served.stub->GetStatus(ServedModel::Context().get(), {}, &status).ok());
      return status.head().durable_version() == version;
    }));
  }
  near.RequireNoFault();
}

}  // namespace wstore::testing
