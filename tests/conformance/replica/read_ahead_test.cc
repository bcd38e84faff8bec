// Memory that is read for an update while its chunks come in.
#include <algorithm>
#include <thread>

#include "tests/conformance/replica/instance.h"
#include "tests/conformance/replica/rig.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"

namespace wstore::testing {
namespace {

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr auto kInternal = absl::StatusCode::kInternal;
// Every chunk is read as it comes.
constexpr uint64_t kEach = 1;

void RequireSame(const StagedReport& a, const StagedReport& b) {
  REQUIRE(a.elements == b.elements);
  REQUIRE(a.size_bytes == b.size_bytes);
  REQUIRE((a.total == b.total));
  REQUIRE(a.cells.size() == b.cells.size());
  for (size_t i = 0; i < a.cells.size(); ++i) {
    REQUIRE(a.cells[i].cell == b.cells[i].cell);
    REQUIRE((a.cells[i].sums == b.cells[i].sums));
  }
}

}  // namespace

TEST_CASE("replica read ahead: reports are those of memory that is read in the end") {
  std::mt19937_64 random(TestSeed("replica read ahead"));
  const Manifest manifest =
      MakeManifest({{"a", Dtype::kBF16, {400, 400}}, {"b", Dtype::kF32, {700, 90}}});
  Publisher publisher(manifest, RandomModel(manifest, random));
  for (const uint32_t contributors : {1, 3}) {
    const Update update = publisher.Publish(RandomChanges(manifest, 50000, random), contributors);
    std::vector<StagedReport> reports;
    for (const uint64_t groups : {UINT64_MAX, kEach, uint64_t{4}}) {
      for (const size_t threads : {size_t{1}, size_t{4}}) {
        CAPTURE(contributors, groups, threads);
        Instance instance(manifest, publisher.key(), {WholeLayout(manifest)},
                          {.read_ahead_groups = groups});
        instance.Load(publisher);
        REQUIRE_OK(instance.Begin(update));
        std::vector<std::string> chunks = update.chunks;
        if (threads > 1) std::shuffle(chunks.begin(), chunks.end(), random);
        std::vector<absl::Status> staged(threads);
        std::vector<std::thread> staging;
        for (size_t i = 0; i < threads; ++i) {
          staging.emplace_back([&, i] {
            // Each chunk comes twice, from two threads.
            for (size_t at = 0; at < chunks.size(); ++at) {
              const bool is_mine = at % threads == i || (at + 1) % threads == i;
              if (is_mine) staged[i].Update(instance.replica(0).StageChunk(chunks[at]));
            }
          });
        }
        for (std::thread& thread : staging) thread.join();
        for (const absl::Status& status : staged) REQUIRE_OK(status);
        const auto report = instance.replica(0).FinishStaging(update.summary);
        REQUIRE_OK(report);
        reports.push_back(*report);
        REQUIRE_OK(instance.Apply(update));
        REQUIRE(instance.Holds(update.result));
      }
    }
    for (const StagedReport& report : reports) RequireSame(report, reports[0]);
  }
}

TEST_CASE("replica read ahead: weights that change afterwards are put back as they were found") {
  Rig rig(TestSeed("replica read ahead, foreign"), 1, kEach);
  const Update update = rig.NewUpdate();
  const auto changed = Difference(rig.manifest, rig.publisher.model(), update.result);
  const auto& [tensor, element] = changed.begin()->first;
  REQUIRE_OK(rig.instance->Begin(update));
  for (const std::string& chunk : update.chunks) REQUIRE_OK(rig.replica().StageChunk(chunk));
  rig.instance->Flip(0, tensor, element * rig.manifest.tensor(tensor).element_bytes, 0x01);
  const std::vector<uint8_t> found = rig.instance->ReadBuffer(0, tensor);
  REQUIRE_OK(rig.replica().FinishStaging(update.summary));
  REQUIRE_ERROR(rig.instance->Apply(update), kDataLoss, "someone else changed these weights");
  REQUIRE(rig.instance->ReadBuffer(0, tensor) == found);
  REQUIRE(rig.replica().status().state == ReplicaState::kPoisoned);
}

TEST_CASE("replica read ahead: what could not be read is read in the end") {
  Rig rig(TestSeed("replica read ahead, fails"), 1, kEach);
  const Update update = rig.NewUpdate();
  REQUIRE_OK(rig.instance->Begin(update));
  rig.backend().Fail(BackendCall::kRead, absl::InternalError("the device is busy"));
  for (const std::string& chunk : update.chunks) REQUIRE_OK(rig.replica().StageChunk(chunk));
  const bool heals = GENERATE(true, false);
  if (heals) rig.backend().Heal();
  const auto report = rig.replica().FinishStaging(update.summary);
  if (!heals) {
    REQUIRE_ERROR(report, kInternal, "the device is busy");
    REQUIRE(rig.replica().status().state == ReplicaState::kReady);
    REQUIRE(rig.instance->Holds(rig.publisher.model()));
    return;
  }
  REQUIRE_OK(report);
  REQUIRE_OK(rig.instance->Apply(update));
  REQUIRE(rig.instance->Holds(update.result));
}

}  // namespace wstore::testing
