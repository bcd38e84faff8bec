// Many threads: chunks, status, audits and an engine that reads, all at once.
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "tests/conformance/replica/instance.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"

namespace wstore::testing {
namespace {

TEST_CASE("replica threads: staged and audited while the engine serves, applied at safe points") {
  std::mt19937_64 random(TestSeed("replica threads"));
  const Manifest manifest =
      MakeManifest({{"a", Dtype::kBF16, {300, 500}}, {"b", Dtype::kF32, {1000, 30}}});
  Publisher publisher(manifest, RandomModel(manifest, random));
  Instance instance(manifest, publisher.key(), {WholeLayout(manifest)}, {.threads = 3});
  Replica& replica = instance.replica(0);
  instance.Load(publisher);

  std::atomic<bool> stop{false};
  std::mutex safe_point;  // the engine holds it while it reads
  std::atomic<uint64_t> passes{0};
  std::thread engine([&] {
    while (!stop) {
      std::lock_guard<std::mutex> lock(safe_point);
      for (uint32_t buffer = 0; buffer < 2; ++buffer) {
        const std::vector<uint8_t> bytes = instance.ReadBuffer(0, buffer);
        passes += std::accumulate(bytes.begin(), bytes.end(), uint64_t{1});
      }
    }
  });
  std::atomic<uint64_t> mixed{0};
  std::thread observer([&] {
    // Moves never go back, and a version has one digest: a mixture of two statuses would show.
    uint64_t last_move = 0;
    std::map<uint64_t, Digest> digests;
    while (!stop) {
      const ReplicaStatus status = replica.status();
      if (status.move.value() < last_move) ++mixed;
      last_move = status.move.value();
      if (!status.version.has_value()) continue;
      const auto& [version, digest] = *status.version;
      if (digests.emplace(version.value(), digest).first->second != digest) ++mixed;
    }
  });
  std::atomic<uint64_t> audits{0};
  std::thread auditor([&] {
    while (!stop) {
      const absl::Status status = replica.Audit().status();
      if (status.ok() || status.code() == absl::StatusCode::kAborted) ++audits;
    }
  });

  for (int round = 0; round < 5; ++round) {
    const Update update = publisher.Publish(RandomChanges(manifest, 6000, random), 2);
    REQUIRE_OK(instance.Begin(update));
    std::vector<std::thread> senders;
    std::atomic<uint64_t> refused{0};
    for (size_t sender = 0; sender < 3; ++sender) {
      senders.emplace_back([&, sender] {
        // Every chunk comes at least twice.
        for (size_t i = 0; i < update.chunks.size(); ++i) {
          if ((i + sender) % 3 == 0) continue;
          if (!replica.StageChunk(update.chunks[i]).ok()) ++refused;
        }
      });
    }
    for (std::thread& sender : senders) sender.join();
    REQUIRE(refused == 0);
    REQUIRE_OK(instance.Finish(update));
    std::lock_guard<std::mutex> lock(safe_point);
    REQUIRE_OK(instance.Apply(update));
    if (round % 3 == 2) {
      REQUIRE_OK(instance.Abort(update));
      REQUIRE(instance.Holds(publisher.model()));
    } else {
      REQUIRE_OK(instance.Commit(update));
      publisher.Commit(update);
      REQUIRE(instance.Holds(publisher.model()));
    }
  }
  stop = true;
  engine.join();
  observer.join();
  auditor.join();
  REQUIRE(mixed == 0);
  REQUIRE(audits > 0);
  REQUIRE(passes > 0);
}

TEST_CASE("replica threads: an update aborted, and memory given away, while it is staged") {
  std::mt19937_64 random(TestSeed("replica abort race"));
  const Manifest manifest = MakeManifest({{"a", Dtype::kBF16, {300, 500}}});
  Publisher publisher(manifest, RandomModel(manifest, random));
  Instance instance(manifest, publisher.key(), {WholeLayout(manifest)}, {.threads = 2});
  Replica& replica = instance.replica(0);
  instance.Load(publisher);
  for (int round = 0; round < 12; ++round) {
    const Update update = publisher.Publish(RandomChanges(manifest, 6000, random));
    REQUIRE_OK(instance.Begin(update));
    std::atomic<bool> started{false};
    std::thread sender([&] {
      started = true;
      for (const std::string& chunk : update.chunks) {
        if (!replica.StageChunk(chunk).ok()) return;
      }
      (void)replica.FinishStaging(update.summary);
    });
    while (!started) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(Below(random, 6000)));
    if (round % 2 == 0) {
      REQUIRE_OK(replica.Abort(update.header.transaction));
      sender.join();
    } else {
      REQUIRE_OK(replica.Suspend());
      sender.join();
      REQUIRE_OK(replica.Resume(instance.buffers(0)));
      REQUIRE_OK(instance.Prove(publisher));
    }
    // What came too late for the abort is a new attempt's rest, and goes with it.
    REQUIRE_OK(replica.Abort(update.header.transaction));
    REQUIRE(replica.status().state == ReplicaState::kReady);
    REQUIRE(instance.Holds(publisher.model()));
  }
}

}  // namespace
}  // namespace wstore::testing
