// What each failure leaves: the old version, the new one, or a replica that says it is poisoned.
#include "common/status_macros.h"
#include "tests/conformance/replica/rig.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"

namespace wstore::testing {
namespace {

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

TEST_CASE("A01 a replica whose weights are wrong refuses by name and is untouched", "[small]") {
  Rig rig(TestSeed("A01"));
  const Update v5 = rig.NewUpdate();
  // One byte of what the update changes, in tensor t3.
  const Changes changes = Difference(rig.manifest, rig.publisher.model(), v5.result);
  const uint64_t element = changes.lower_bound({3, 0})->first.second;
  rig.instance->Flip(0, 3, element * 4 + 1, 0x04);
  const std::vector<uint8_t> wrong = rig.instance->ReadBuffer(0, 3);
  REQUIRE_ERROR(rig.instance->Stage(v5), kDataLoss, "tensor 't3'");
  REQUIRE(rig.instance->ReadBuffer(0, 3) == wrong);
  REQUIRE(rig.replica().status().state == ReplicaState::kReady);
  REQUIRE(rig.replica().status().version == rig.publisher.head());

  // The others went on; the next version is refused here, with both sides' values.
  rig.publisher.Commit(v5);
  const Update v6 = rig.NewUpdate();
  REQUIRE_ERROR(rig.instance->Stage(v6), kPrecondition, "needs version v1 (");
  REQUIRE_ERROR(rig.instance->Stage(v6), kPrecondition, "the replica has v0 (");
  REQUIRE(rig.instance->ReadBuffer(0, 3) == wrong);
  REQUIRE(rig.instance->events(0).empty());
  // An audit finds it too, and what serves wrong weights serves no longer.
  REQUIRE_ERROR(rig.replica().ProveAlone(
                    rig.publisher.name(VersionId(0)), MoveNumber(100),
                    SumsOf(rig.manifest, rig.publisher.key(), rig.publisher.model(VersionId(0)))),
                kDataLoss, "tensor 't3'");
  REQUIRE(rig.replica().status().state == ReplicaState::kPoisoned);
  REQUIRE_FALSE(rig.replica().status().version.has_value());

  // Repaired, it replays both.
  ModelSource source(rig.publisher.model(VersionId(0)));
  REQUIRE_OK(rig.replica().Load(*MakeDense(rig.manifest, source)));
  REQUIRE_OK(rig.replica().ProveAlone(
      rig.publisher.name(VersionId(0)), v5.header.parent_move,
      SumsOf(rig.manifest, rig.publisher.key(), rig.publisher.model(VersionId(0)))));
  REQUIRE_OK(rig.instance->Run(v5));
  REQUIRE_OK(rig.instance->Run(v6));
  REQUIRE(rig.instance->Holds(v6.result));
}

TEST_CASE("A02 a write that fails after three of eight leaves the old version", "[small]") {
  Rig rig(TestSeed("A02"));
  const Update update = rig.NewUpdate();
  REQUIRE(update.chunks.size() == 8);
  REQUIRE_OK(rig.instance->Stage(update));
  rig.backend().FailWrite(4, WriteFault::kRefused, /*for_ever=*/false);
  REQUIRE_ERROR(rig.instance->Apply(update), absl::StatusCode::kInternal,
                "v0 (" + ToHex(rig.publisher.head().chain_digest).substr(0, 12) +
                    ") is in place, bit for bit");
  REQUIRE(rig.instance->Holds(rig.publisher.model()));
  REQUIRE(rig.replica().status().version == rig.publisher.head());
  REQUIRE(rig.instance->events(0).empty());
  // Sent again, it is applied; a third time, there is nothing to do.
  REQUIRE_OK(rig.instance->Run(update));
  REQUIRE(rig.instance->Holds(update.result));
  REQUIRE_FALSE(*rig.replica().BeginUpdate(update.header));
  REQUIRE_OK(rig.instance->StageChunks(update));
  REQUIRE_OK(rig.instance->Apply(update));
  REQUIRE_OK(rig.instance->Commit(update));
  REQUIRE(rig.instance->Holds(update.result));
  REQUIRE(rig.instance->events(0).size() == 1);
}

TEST_CASE("A16 where one of three fails, it is as before, and so are the others", "[small]") {
  Rig rig(TestSeed("A16"), 3);
  const Update update = rig.NewUpdate();
  REQUIRE_OK(rig.instance->Stage(update));
  rig.backends[1]->FailWrite(5, WriteFault::kMisread, false);
  std::vector<absl::Status> applied;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    applied.push_back(rig.instance->replica(rank).Apply(update.header.transaction));
  }
  REQUIRE_OK(applied[0]);
  REQUIRE_ERROR(applied[1], kDataLoss, "other bits were read back than written");
  REQUIRE_OK(applied[2]);
  // In doubt, no version is shown.
  REQUIRE(rig.instance->replica(0).status().state == ReplicaState::kApplied);
  REQUIRE_FALSE(rig.instance->replica(0).status().version.has_value());
  REQUIRE(rig.instance->replica(1).status().version == rig.publisher.head());
  REQUIRE_OK(rig.instance->Abort(update));
  REQUIRE(rig.instance->Holds(rig.publisher.model()));
  for (uint32_t rank = 0; rank < 3; ++rank) {
    REQUIRE(rig.instance->replica(rank).status().version == rig.publisher.head());
    REQUIRE(rig.instance->events(rank).empty());
  }
}

// Fails the nth write of an update and of its undoing, for every n until the run is clean.
TEST_CASE("replica faults: the Nth write fails, once and for ever") {
  const WriteFault fault = GENERATE(WriteFault::kRefused, WriteFault::kUnknown,
                                    WriteFault::kMisread, WriteFault::kCorrupted);
  const bool for_ever = GENERATE(false, true);
  const bool abort = GENERATE(false, true);  // the update is taken back after it was applied
  CAPTURE(fault, for_ever, abort);
  const uint64_t seed = TestSeed("replica Nth write");
  bool is_clean = false;
  for (uint64_t nth = 1; !is_clean; ++nth) {
    CAPTURE(nth);
    REQUIRE(nth < 100);
    Rig rig(seed);
    const Update update = rig.NewUpdate();
    REQUIRE_OK(rig.instance->Stage(update));
    // Flips a bit of every element, so of those being written too.
    rig.backend().set_corrupt([&] {
      for (uint32_t buffer = 0; buffer < 8; ++buffer) {
        std::vector<uint8_t> bytes = rig.instance->ReadBuffer(0, buffer);
        for (uint8_t& byte : bytes) byte ^= 0x20;
        rig.instance->device().Write(bytes.data(), bytes.size(),
                                     rig.instance->buffers(0)[buffer].data);
      }
    });
    rig.backend().FailWrite(nth, fault, for_ever);
    absl::Status status = rig.instance->Apply(update);
    const bool is_applied = status.ok();
    if (is_applied) status = abort ? rig.instance->Abort(update) : rig.instance->Commit(update);
    is_clean = !rig.backend().has_failed();

    const ReplicaStatus now = rig.replica().status();
    switch (now.state) {
      case ReplicaState::kReady: {
        const bool is_new = status.ok() && !abort;
        REQUIRE(now.version == (is_new
                                    ? VersionName{update.header.to, update.summary.to_chain_digest}
                                    : rig.publisher.head()));
        REQUIRE(rig.instance->Holds(is_new ? update.result : rig.publisher.model()));
        REQUIRE(rig.instance->events(0).size() == (is_new ? 1 : 0));
        break;
      }
      case ReplicaState::kPoisoned:
        REQUIRE_ERROR(status, kDataLoss, "the replica is poisoned");
        REQUIRE_FALSE(now.version.has_value());
        REQUIRE_FALSE(rig.replica().detail().empty());
        REQUIRE(rig.instance->events(0).empty());
        REQUIRE_ERROR(rig.replica().BeginUpdate(update.header), kPrecondition, "is poisoned");
        // Only where it could not be helped.
        REQUIRE((fault == WriteFault::kUnknown || fault == WriteFault::kCorrupted || for_ever ||
                 (abort && fault == WriteFault::kMisread)));
        break;
      default:
        FAIL("the replica is " << ReplicaStateName(now.state));
    }
    // A single refusal never costs more than the update.
    if (fault == WriteFault::kRefused && !for_ever) REQUIRE(now.state == ReplicaState::kReady);
    if (is_clean) REQUIRE_OK(status);
  }
}

// Publishes a version, and goes back by the replica's own history.
absl::Status PublishAndGoBack(Rig& rig, const Update& update) {
  RETURN_IF_ERROR(rig.instance->Run(update));
  rig.publisher.Commit(update);
  const Update back = rig.publisher.Between(VersionId(1), VersionId(0), ChangeReason::kRollback);
  RETURN_IF_ERROR(rig.instance->Begin(back));
  RETURN_IF_ERROR(rig.replica().StageFromHistory(back.header.transaction));
  RETURN_IF_ERROR(rig.instance->Finish(back));
  RETURN_IF_ERROR(rig.instance->Apply(back));
  RETURN_IF_ERROR(rig.instance->Commit(back));
  rig.publisher.Commit(back);
  return absl::OkStatus();
}

TEST_CASE("replica faults: the Nth call of the backend fails, once and for ever") {
  const bool for_ever = GENERATE(false, true);
  const uint64_t read_ahead_groups = GENERATE(UINT64_MAX, uint64_t{1});
  const uint64_t seed = TestSeed("replica Nth call");
  bool is_clean = false;
  for (uint64_t nth = 1; !is_clean; ++nth) {
    CAPTURE(for_ever, read_ahead_groups, nth);
    REQUIRE(nth < 100);
    Rig rig(seed, 1, read_ahead_groups);
    const Update update = rig.NewUpdate();
    rig.backend().FailAny(nth, for_ever);
    const absl::Status status = PublishAndGoBack(rig, update);
    is_clean = !rig.backend().has_failed();
    if (is_clean) {
      REQUIRE_OK(status);
      continue;
    }
    // What cannot be read ahead is read in the end.
    if (status.ok() && read_ahead_groups == 1 && !for_ever) {
      REQUIRE(rig.instance->Holds(rig.publisher.model(VersionId(0))));
      continue;
    }
    REQUIRE_FALSE(status.ok());
    const ReplicaStatus now = rig.replica().status();
    if (now.state == ReplicaState::kPoisoned) {
      // What was written could not be taken back: every write was refused by then.
      REQUIRE(for_ever);
      REQUIRE_FALSE(now.version.has_value());
      continue;
    }
    REQUIRE((now.state == ReplicaState::kReady || now.state == ReplicaState::kStaging));
    REQUIRE(now.version == rig.publisher.head());
    REQUIRE(rig.instance->Holds(rig.publisher.model()));
    REQUIRE(rig.instance->events(0).size() == rig.publisher.head().version.value());
    // Once it is well, it goes on from where it is.
    rig.backend().Heal();
    if (const auto pending = rig.replica().pending(); pending.has_value()) {
      REQUIRE_OK(rig.replica().Abort(pending->transaction));
    }
    if (rig.publisher.versions() == 1) {
      REQUIRE_OK(PublishAndGoBack(rig, update));
      REQUIRE(rig.instance->Holds(rig.publisher.model(VersionId(0))));
    } else {
      const Update next = rig.NewUpdate();
      REQUIRE_OK(rig.instance->Run(next));
      REQUIRE(rig.instance->Holds(next.result));
    }
  }
}

TEST_CASE("replica faults: weights that someone else changes between check and apply") {
  Rig rig(TestSeed("replica foreign change"));
  const Update update = rig.NewUpdate();
  REQUIRE_OK(rig.instance->Stage(update));
  const auto changed = Difference(rig.manifest, rig.publisher.model(), update.result);
  const auto& [tensor, element] = std::next(changed.begin(), changed.size() / 2)->first;
  rig.instance->Flip(0, tensor, element * rig.manifest.tensor(tensor).element_bytes, 0x01);
  std::vector<std::vector<uint8_t>> found;
  for (uint32_t buffer = 0; buffer < 8; ++buffer) {
    found.push_back(rig.instance->ReadBuffer(0, buffer));
  }
  REQUIRE_ERROR(rig.instance->Apply(update), kDataLoss, "someone else changed these weights");
  REQUIRE(rig.replica().status().state == ReplicaState::kPoisoned);
  for (uint32_t buffer = 0; buffer < 8; ++buffer) {
    REQUIRE(rig.instance->ReadBuffer(0, buffer) == found[buffer]);
  }
  // Untouched elements are for audits to find: they are no part of an update.
  Rig other(TestSeed("replica foreign change elsewhere"));
  const Update small = other.publisher.Publish({{{0, 5}, 1}});
  REQUIRE_OK(other.instance->Stage(small));
  other.instance->Flip(0, 0, 2 * 6, 0x01);
  REQUIRE_OK(other.instance->Apply(small));
  REQUIRE_OK(other.instance->Commit(small));
}

TEST_CASE("replica faults: what a backend cannot do is passed on and changes nothing") {
  Rig rig(TestSeed("replica backend"));
  const Update update = rig.NewUpdate();
  const absl::Status full = absl::ResourceExhaustedError("no device memory");
  REQUIRE_OK(rig.instance->Begin(update));
  rig.backend().Fail(BackendCall::kAcceptPiece, full);
  REQUIRE_ERROR(rig.replica().StageChunk(update.chunks[0]), full.code(), "no device memory");
  rig.backend().Heal();
  REQUIRE_OK(rig.instance->StageChunks(update));
  rig.backend().Fail(BackendCall::kRead, full);
  REQUIRE_ERROR(rig.replica().FinishStaging(update.summary), full.code(), "no device memory");
  REQUIRE(rig.replica().status().state == ReplicaState::kReady);
  rig.backend().Heal();
  rig.backend().Fail(BackendCall::kPrepare, full);
  REQUIRE_ERROR(rig.instance->Stage(update), full.code(), "no device memory");
  REQUIRE(rig.replica().status().state == ReplicaState::kReady);
  rig.backend().Heal();
  REQUIRE_OK(rig.instance->Run(update));
  rig.publisher.Commit(update);

  rig.backend().Fail(BackendCall::kLoad, full);
  ModelSource source(rig.publisher.model());
  REQUIRE_ERROR(rig.replica().Load(*MakeDense(rig.manifest, source)), full.code(), "no device");
  REQUIRE(rig.replica().status().state == ReplicaState::kUnproven);
  REQUIRE_THAT(rig.replica().detail(), Catch::Matchers::Contains("loading failed"));
  rig.backend().Heal();
  REQUIRE_OK(rig.replica().Load(*MakeDense(rig.manifest, source)));
  REQUIRE_OK(rig.instance->Prove(rig.publisher));

  REQUIRE_OK(rig.replica().Suspend());
  rig.backend().Fail(BackendCall::kBind, full);
  REQUIRE_ERROR(rig.replica().Resume(rig.instance->buffers(0)), full.code(), "no device");
  REQUIRE(rig.replica().status().state == ReplicaState::kSuspended);
  rig.backend().Heal();
  REQUIRE_OK(rig.replica().Resume(rig.instance->buffers(0)));
  REQUIRE_OK(rig.instance->Prove(rig.publisher));
  REQUIRE(rig.instance->Holds(update.result));
}

}  // namespace
}  // namespace wstore::testing
