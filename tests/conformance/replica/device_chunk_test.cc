// Chunks that lie where the weights are, staged there.
#include <thread>
#include <vector>

#include "tests/conformance/replica/rig.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "transfer/codec/chunk_layout.h"
#include "wstore/chunk.h"

namespace wstore::testing {
namespace {

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

absl::Status StageInPlace(Rig& rig, absl::Span<const std::string> chunks) {
  return rig.replica().StageDeviceChunks(rig.instance->Place(chunks));
}

void FinishAndCommit(Rig& rig, const Update& update) {
  REQUIRE_OK(rig.instance->Finish(update));
  REQUIRE_OK(rig.instance->Apply(update));
  REQUIRE_OK(rig.instance->Commit(update));
  rig.publisher.Commit(update);
  REQUIRE(rig.instance->Holds(rig.publisher.model()));
}

void StageInPlaceAndCommit(Rig& rig, const Update& update) {
  REQUIRE_OK(rig.instance->Begin(update));
  REQUIRE_OK(StageInPlace(rig, update.chunks));
  FinishAndCommit(rig, update);
}

}  // namespace

TEST_CASE("replica in place: reports and weights are those of chunks that came as bytes",
          "[small]") {
  Rig rig(TestSeed("replica in place"));
  const Update update = rig.NewUpdate();
  std::vector<StagedReport> reports;
  for (const bool in_place : {false, true}) {
    REQUIRE_OK(rig.instance->Begin(update));
    if (in_place) {
      REQUIRE_OK(StageInPlace(rig, update.chunks));
    } else {
      for (const std::string& chunk : update.chunks) REQUIRE_OK(rig.replica().StageChunk(chunk));
    }
    const auto report = rig.replica().FinishStaging(update.summary);
    REQUIRE_OK(report);
    reports.push_back(*report);
    REQUIRE_OK(rig.instance->Apply(update));
    REQUIRE(rig.instance->Holds(update.result));
    REQUIRE_OK(rig.instance->Abort(update));
    REQUIRE(rig.instance->Holds(rig.publisher.model()));
  }
  REQUIRE(reports[0].elements == reports[1].elements);
  REQUIRE(reports[0].size_bytes == reports[1].size_bytes);
  REQUIRE((reports[0].total == reports[1].total));
  REQUIRE(reports[0].cells.size() == reports[1].cells.size());
  for (size_t i = 0; i < reports[0].cells.size(); ++i) {
    REQUIRE(reports[0].cells[i].cell == reports[1].cells[i].cell);
    REQUIRE((reports[0].cells[i].sums == reports[1].cells[i].sums));
  }
}

TEST_CASE("replica in place: from several threads at a time that have called nothing before") {
  constexpr size_t kThreads = 4;
  Rig rig(TestSeed("replica in place, threads"), 1, /*read_ahead_groups=*/1);
  for (int round = 0; round < 3; ++round) {
    const Update update = rig.NewUpdate();
    REQUIRE_OK(rig.instance->Begin(update));
    const std::vector<DeviceChunk> placed = rig.instance->Place(update.chunks);
    std::vector<absl::Status> statuses(kThreads);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (size_t i = t; i < placed.size(); i += kThreads) {
          statuses[t].Update(rig.replica().StageDeviceChunks({&placed[i], 1}));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const absl::Status& status : statuses) REQUIRE_OK(status);
    FinishAndCommit(rig, update);
  }
}

TEST_CASE("replica in place: doubled, late, foreign, forged and in other ways wrong", "[small]") {
  Rig rig(TestSeed("replica in place, wrong"));
  Replica& replica = rig.replica();
  const Update update = rig.NewUpdate();
  const Update other = rig.NewUpdate();
  REQUIRE_ERROR(StageInPlace(rig, update.chunks), kPrecondition, "no update is pending");
  REQUIRE_OK(rig.instance->Begin(update));
  REQUIRE_OK(replica.StageDeviceChunks({}));
  REQUIRE_OK(StageInPlace(rig, {update.chunks[0], update.chunks[1], update.chunks[0]}));
  REQUIRE_OK(replica.StageChunk(update.chunks[0]));
  REQUIRE_ERROR(StageInPlace(rig, other.chunks), kPrecondition,
                "transaction " + std::to_string(other.header.transaction.value()));
  // The same key with other content.
  std::vector<ContributorContent> ignored;
  const auto forged =
      EncodeChanges(rig.manifest, RandomChanges(rig.manifest, 25, rig.random),
                    {.transaction = update.header.transaction, .tiles_per_chunk = 1}, &ignored);
  REQUIRE_ERROR(StageInPlace(rig, {forged[0]}), absl::StatusCode::kAlreadyExists, "other content");
  std::vector<DeviceChunk> placed = rig.instance->Place({update.chunks[2]});
  placed[0].data = static_cast<const uint8_t*>(placed[0].data) + 8;
  REQUIRE_ERROR(replica.StageDeviceChunks(placed), kInvalid, "multiple of 16");
  placed[0] = {nullptr, 64};
  REQUIRE_ERROR(replica.StageDeviceChunks(placed), kInvalid, "at address 0");
  placed = rig.instance->Place({update.chunks[2]});
  placed[0].size_bytes = kChunkMaxBytes + 8;
  REQUIRE_ERROR(replica.StageDeviceChunks(placed), kInvalid, "the limit is");
  // Those before one that is refused are staged.
  std::string damaged = update.chunks[3];
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 1);
  REQUIRE_ERROR(StageInPlace(rig, {update.chunks[2], damaged, update.chunks[4]}), kDataLoss,
                "checksum");
  REQUIRE_ERROR(replica.FinishStaging(update.summary), kDataLoss, "3 of 8");
  REQUIRE_OK(StageInPlace(rig, update.chunks));
  REQUIRE_OK(rig.instance->Finish(update));
  REQUIRE_OK(StageInPlace(rig, update.chunks));  // late
  REQUIRE_OK(rig.instance->Apply(update));
  REQUIRE_OK(rig.instance->Commit(update));
  REQUIRE_OK(StageInPlace(rig, update.chunks));
  REQUIRE(rig.instance->Holds(update.result));
}

TEST_CASE("replica in place: what is refused is refused as from bytes") {
  Rig rig(TestSeed("replica in place, damaged"));
  const Update update = rig.NewUpdate();
  REQUIRE_OK(rig.instance->Begin(update));
  const std::string& chunk = update.chunks[0];
  std::vector<std::string> damaged;
  for (size_t size = 0; size < chunk.size(); size += 7) damaged.push_back(chunk.substr(0, size));
  damaged.push_back(chunk + std::string(8, '\0'));
  for (size_t i = 0; i < chunk.size(); ++i) {
    std::string copy = chunk;
    copy[i] = static_cast<char>(copy[i] ^ (1 << rig.random() % 8));
    damaged.push_back(copy);
    const uint64_t checksum = ChunkChecksum(copy);
    std::memcpy(copy.data() + kChecksumAt, &checksum, sizeof(checksum));
    damaged.push_back(copy);
  }
  int refused = 0;
  for (const std::string& wrong : damaged) {
    // One that is right is of this chunk's key: it is taken only once, whichever way.
    const absl::Status as_bytes = rig.replica().StageChunk(wrong);
    const absl::Status in_place = StageInPlace(rig, {wrong});
    CAPTURE(as_bytes.ToString(), in_place.ToString());
    REQUIRE((as_bytes == in_place));
    refused += as_bytes.ok() ? 0 : 1;
  }
  REQUIRE(refused > static_cast<int>(chunk.size()));
}

TEST_CASE("replica in place: contributors' elements are told apart", "[small]") {
  Rig rig(TestSeed("replica in place, contributors"));
  const Changes changes = RandomChanges(rig.manifest, 300, rig.random);
  StageInPlaceAndCommit(rig, rig.publisher.Publish(changes, 3));

  // Contributor 1 changes an element that contributor 0 changes too.
  Update update = rig.publisher.Publish({{{0, 5}, 1}, {{0, 300}, 1}}, 2);
  const auto view = ChunkView::Parse(update.chunks[1], rig.manifest);
  REQUIRE_OK(view);
  ChunkBuilder builder(rig.manifest);
  const uint16_t offset = 5;
  const uint16_t value = 2;
  builder.AddTile({0, 0}, {&offset, 1}, reinterpret_cast<const uint8_t*>(&value));
  const ChunkHeader header = view->header();
  update.chunks[1] = builder.Finish(header);
  REQUIRE_OK(rig.instance->Begin(update));
  REQUIRE_OK(StageInPlace(rig, update.chunks));
  REQUIRE_ERROR(rig.replica().FinishStaging(update.summary), kInvalid,
                "element 5 of tensor 't0' is changed by two contributors");
  REQUIRE(rig.instance->Holds(rig.publisher.model()));
}

TEST_CASE("replica in place: several versions are gone back at once, and one", "[small]") {
  Rig rig(TestSeed("replica in place, back"));
  for (int i = 0; i < 3; ++i) StageInPlaceAndCommit(rig, rig.NewUpdate());
  const auto go_to = [&](uint64_t version, absl::Status expected) {
    const Update back = rig.publisher.Between(rig.publisher.head().version, VersionId(version),
                                              ChangeReason::kRollback);
    REQUIRE_OK(rig.instance->Begin(back));
    REQUIRE_OK(rig.replica().StageFromHistory(back.header.transaction));
    const absl::Status finished = rig.instance->Finish(back);
    REQUIRE(finished.code() == expected.code());
    if (!finished.ok()) return;
    REQUIRE_OK(rig.instance->Apply(back));
    REQUIRE_OK(rig.instance->Commit(back));
    rig.publisher.Commit(back);
    REQUIRE(rig.instance->Holds(rig.publisher.model()));
  };
  go_to(2, absl::OkStatus());
  StageInPlaceAndCommit(rig, rig.NewUpdate());
  go_to(0, absl::OkStatus());
}

}  // namespace wstore::testing
