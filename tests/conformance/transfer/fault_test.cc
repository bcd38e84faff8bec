// Chunks that come wrong or not at all, and trainers that go: nothing of it is installed, nobody is
// taken out of service, and the publish goes on.
#include <functional>

#include "tests/conformance/transfer/rig.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "wstore/chunk_header.h"

namespace wstore::testing {
namespace {

using Chunks = std::vector<std::string>;

struct Delivery {
  const char* what;
  // What comes in place of the chunks.
  std::function<Chunks(const OpenPublish&)> make;
  bool is_refused = true;  // by the service, which looks at each
};

const std::vector<Delivery>& WrongDeliveries() {
  static const auto* const all = new std::vector<Delivery>{
      {"a byte is another",
       [](const OpenPublish& publish) {
         Chunks chunks = publish.chunks[0];
         chunks.back()[chunks.back().size() / 2] ^= 1;
         return chunks;
       }},
      {"one is cut short",
       [](const OpenPublish& publish) {
         Chunks chunks = publish.chunks[0];
         chunks[1].resize(chunks[1].size() / 2);
         return chunks;
       }},
      {"they are of another transaction",
       [](const OpenPublish& publish) {
         Chunks chunks = publish.chunks[0];
         for (std::string& chunk : chunks) {
           ReplaceHeader(TransactionNumber(publish.transaction.value() + 1), 0, &chunk);
         }
         return chunks;
       }},
      {"they are of another contributor",
       [](const OpenPublish& publish) {
         Chunks chunks = publish.chunks[0];
         for (std::string& chunk : chunks) ReplaceHeader(publish.transaction, 1, &chunk);
         return chunks;
       }},
      {"half of them come",
       [](const OpenPublish& publish) {
         Chunks chunks = publish.chunks[0];
         chunks.resize(chunks.size() / 2);
         return chunks;
       },
       false},
      {"none come", [](const OpenPublish&) { return Chunks(); }, false},
  };
  return *all;
}

struct FaultRig : TransferRig {
  explicit FaultRig(const char* what)
      : TransferRig(TestSeed(what), 1, /*frame_bytes=*/10 << 10), near(served, "near", 2) {
    Reach(near);
    near.Start();
    near.AwaitServing(0);
    AwaitReached(2);
  }
  OpenPublish Begin() {
    const uint64_t head = served.versions.rbegin()->first;
    OpenPublish publish = TransferRig::Begin(head, served.Changed(served.versions.at(head), 0.2));
    REQUIRE(publish.chunks[0].size() >= 4);
    return publish;
  }
  // The right chunks are in the store. All serve it, and have served all the time.
  void RequireCommits(OpenPublish& publish) {
    REQUIRE(publish.Put().ok());
    v1::Decision decision;
    const grpc::Status status = publish.Commit(&decision);
    INFO(status.error_message());
    REQUIRE(status.ok());
    REQUIRE(decision.outcome() == v1::OUTCOME_COMMITTED);
    RequireServes(decision.version().version());
  }
  void RequireServes(uint64_t version) {
    near.AwaitServing(version);
    near.RequireHolds(served.versions.at(version));
    for (auto& rank : near.ranks) {
      INFO(rank->log());
      REQUIRE(rank->log().find("event=out") == std::string::npos);
      REQUIRE(rank->log().find("poisoned") == std::string::npos);
    }
    near.RequireNoFault();
  }

  TestInstance near;
};

}  // namespace

TEST_CASE(
    "A18 transfer: chunks that come damaged, foreign, twice or not at all are not installed") {
  FaultRig rig("transfer damage");
  for (const Delivery& delivery : WrongDeliveries()) {
    INFO(delivery.what);
    OpenPublish publish = rig.Begin();
    const absl::Status delivered = rig.Deliver(publish, delivery.make(publish));
    INFO(delivered.ToString());
    REQUIRE(delivered.ok() == (rig.transport.has_port() || !delivery.is_refused));
    rig.RequireCommits(publish);
    rig.AwaitReached(2);
  }
  INFO("they come twice");
  OpenPublish publish = rig.Begin();
  for (int i = 0; i < 2; ++i) REQUIRE_OK(rig.Deliver(publish, publish.chunks[0]));
  rig.RequireCommits(publish);
}

TEST_CASE("transfer: a trainer that goes, or takes a publish back, leaves all as it was") {
  FaultRig rig("transfer trainers");
  {
    INFO("aborted after its chunks were sent");
    OpenPublish publish = rig.Begin();
    REQUIRE_OK(rig.Deliver(publish, publish.chunks[0]));
    REQUIRE(publish.Put().ok());
    REQUIRE(publish.Abort().ok());
    rig.RequireServes(0);
  }
  for (const int64_t frames : {0, 1}) {
    INFO("its transfer breaks after " << frames << " frames");
    OpenPublish publish = rig.Begin();
    if (rig.transport.has_port()) {
      rig.port->BreakAfter(frames);
      REQUIRE_ERROR(rig.Deliver(publish, publish.chunks[0]), absl::StatusCode::kUnavailable,
                    "it breaks here");
      rig.port->BreakAfter(INT64_MAX);
    }
    rig.RequireCommits(publish);
    rig.AwaitReached(2);
  }
  {
    INFO("it is gone after one frame, and another takes the publish on");
    OpenPublish publish = rig.Begin();
    if (rig.transport.has_port()) {
      rig.port->BreakAfter(1);
      REQUIRE_FALSE(rig.Deliver(publish, publish.chunks[0]).ok());
      rig.port->BreakAfter(INT64_MAX);
      rig.Lead(0);
    }
    rig.RequireCommits(publish);
    rig.AwaitReached(2);
  }
  {
    INFO("it is gone before it has put any, and the publish with it");
    OpenPublish publish = rig.Begin();
    REQUIRE_OK(rig.Deliver(publish, publish.chunks[0]));
    rig.Lead(0);
    REQUIRE(publish.Abort().ok());
    rig.RequireServes(rig.served.versions.rbegin()->first);
    rig.AwaitReached(2);
  }
  const uint64_t head = rig.served.versions.rbegin()->first;
  const auto [version, bytes] =
      rig.Publish(head, rig.served.Changed(rig.served.versions.at(head), 0.1));
  rig.RequireServes(version);
}

}  // namespace wstore::testing
