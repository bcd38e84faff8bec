#include "wstore/store.h"

#include "tests/support/random.h"
#include "tests/unit/store/store_fixture.h"

namespace wstore::testing {
namespace {

using Outcome = CommitResult::Outcome;

TEST_CASE("a new store has the base as v0") {
  StoreFixture fixture;
  const StoreStatus status = fixture.store().status();
  REQUIRE(status.state == "ok");
  REQUIRE(status.head.version == VersionId(0));
  REQUIRE(status.head.move == MoveNumber(0));
  REQUIRE(status.base.tensors == 8);
  REQUIRE(status.base.elements == 96000 + 96 + 9216 + 70000 + 99 + 12 + 1);
  REQUIRE(fixture.store().versions().size() == 1);
  REQUIRE(fixture.store().moves().empty());
  fixture.RequireAllVersions();
}

TEST_CASE("versions are published, survive a reopening and export bit for bit") {
  const uint64_t seed = TestSeed("store");
  StoreFixture fixture(seed);
  uint64_t expected = 0;
  for (const double density : {0.01, 0.5, 0.0001, 1.0}) {
    const auto result = fixture.Publish(fixture.Changed(fixture.version(expected), density));
    REQUIRE_OK(result);
    REQUIRE(result->outcome == Outcome::kCommitted);
    REQUIRE(result->version == VersionId(++expected));
    REQUIRE(result->head == result->version);
  }
  fixture.RequireAllVersions();
  const auto before = fixture.store().versions();
  fixture.Reopen();
  const auto after = fixture.store().versions();
  REQUIRE(after.size() == before.size());
  for (size_t i = 0; i < after.size(); ++i) {
    REQUIRE(after[i].chain_digest == before[i].chain_digest);
    REQUIRE(after[i].patch_digest == before[i].patch_digest);
    REQUIRE(after[i].fingerprint == before[i].fingerprint);
    REQUIRE(after[i].elements == before[i].elements);
  }
  REQUIRE(fixture.store().head().version == VersionId(4));
  fixture.RequireAllVersions();
}

TEST_CASE("a checkpoint that does not differ makes no version") {
  StoreFixture fixture;
  const auto result = fixture.Publish(fixture.version(0));
  REQUIRE_OK(result);
  REQUIRE(result->outcome == Outcome::kUnchanged);
  REQUIRE(result->version == VersionId(0));
  REQUIRE(fixture.store().versions().size() == 1);
  REQUIRE_OK(fixture.Publish(fixture.Changed(fixture.version(0), 0.1)));
  REQUIRE(fixture.store().head().version == VersionId(1));
}

TEST_CASE("a rollback moves head, holds publishing, and the next publish has a new number") {
  StoreFixture fixture;
  for (int i = 0; i < 4; ++i) {
    REQUIRE_OK(fixture.Publish(fixture.Changed(fixture.version(i), 0.01)));
  }
  RollbackOptions rollback;
  rollback.to = VersionId(2);
  rollback.message = "loss went up";
  rollback.transaction_id = "op-1";
  const auto moved = fixture.store().Rollback(rollback);
  REQUIRE_OK(moved);
  REQUIRE(moved->outcome == Outcome::kCommitted);
  REQUIRE(fixture.store().head().version == VersionId(2));
  REQUIRE(fixture.store().status().state == "hold");
  REQUIRE_ERROR(fixture.Publish(fixture.Changed(fixture.version(2), 0.01)),
                absl::StatusCode::kFailedPrecondition, "on hold");

  // The same rollback again is the same rollback; the id is not for another one.
  const auto again = fixture.store().Rollback(rollback);
  REQUIRE_OK(again);
  REQUIRE(again->outcome == Outcome::kRepeated);
  REQUIRE(again->transaction == moved->transaction);
  rollback.to = VersionId(1);
  REQUIRE_ERROR(fixture.store().Rollback(rollback), absl::StatusCode::kAlreadyExists, "op-1");

  fixture.Reopen();
  REQUIRE(fixture.store().status().state == "hold");
  REQUIRE_OK(fixture.store().Resume());
  const auto next = fixture.Publish(fixture.Changed(fixture.version(2), 0.01));
  REQUIRE_OK(next);
  REQUIRE(next->version == VersionId(5));
  const auto info = fixture.store().version(VersionId(5));
  REQUIRE_OK(info);
  REQUIRE(info->parent == VersionId(2));
  const auto moves = fixture.CommittedMoves();
  REQUIRE(moves.size() == 6);
  REQUIRE(moves[4].why == "rollback");
  REQUIRE(moves[4].from == VersionId(4));
  REQUIRE(moves[4].to == VersionId(2));
  REQUIRE(moves[4].message == "loss went up");
  REQUIRE(moves[5].from == VersionId(2));
  fixture.RequireAllVersions();

  rollback = RollbackOptions();
  rollback.to = VersionId(5);
  REQUIRE(fixture.store().Rollback(rollback)->outcome == Outcome::kUnchanged);
  REQUIRE(fixture.store().status().state == "ok");
  rollback.to = VersionId(9);
  REQUIRE_ERROR(fixture.store().Rollback(rollback), absl::StatusCode::kNotFound, "v5");
}

// What the store says of a difference is what the two versions' bytes say: sums over each tensor
// with all but its changed elements zero.
void RequireDescribed(StoreFixture& fixture, VersionId from, VersionId to) {
  const auto info = fixture.store().DescribeDifference(from, to);
  REQUIRE_OK(info);
  const auto back = fixture.store().DescribeDifference(to, from);
  REQUIRE_OK(back);
  REQUIRE(info->patch_digest == back->patch_digest);
  const Manifest& manifest = fixture.store().manifest();
  const FingerprintKey key(fixture.store().head().base_digest);
  uint64_t elements = 0;
  size_t touched = 0;
  for (TensorIndex i = 0; i < manifest.size(); ++i) {
    const Manifest::Tensor& tensor = manifest.tensor(i);
    const std::string& old_bytes = fixture.version(from.value()).at(tensor.spec.name).bytes;
    const std::string& new_bytes = fixture.version(to.value()).at(tensor.spec.name).bytes;
    std::vector<uint8_t> before(old_bytes.size());
    std::vector<uint8_t> after(old_bytes.size());
    const uint64_t elements_so_far = elements;
    for (size_t at = 0; at < old_bytes.size(); at += tensor.element_bytes) {
      if (old_bytes.compare(at, tensor.element_bytes, new_bytes, at, tensor.element_bytes) == 0)
        continue;
      std::memcpy(&before[at], &old_bytes[at], tensor.element_bytes);
      std::memcpy(&after[at], &new_bytes[at], tensor.element_bytes);
      ++elements;
    }
    if (elements == elements_so_far) continue;
    INFO(tensor.spec.name);
    const TensorFingerprinter fingerprinter(key, tensor.spec.name);
    REQUIRE(touched < info->touched.size());
    REQUIRE(info->touched[touched].tensor == i);
    REQUIRE(info->touched[touched].sums ==
            TouchedSums{fingerprinter.Sum(0, before), fingerprinter.Sum(0, after)});
    ++touched;
  }
  REQUIRE(info->touched.size() == touched);
  REQUIRE(info->elements == elements);
}

// The elements in which two versions differ, compared one by one: tensor and index, XOR bits.
using Differences = std::map<std::pair<std::string, uint64_t>, std::string>;
Differences NaiveDifferences(const NaiveTensors& from, const NaiveTensors& to) {
  Differences differences;
  for (const auto& [name, tensor] : from) {
    const uint64_t width = WidthOf(tensor);
    const std::string& other = to.at(name).bytes;
    for (uint64_t at = 0; at < tensor.bytes.size(); at += width) {
      std::string bits;
      for (uint64_t i = at; i < at + width; ++i) {
        bits.push_back(static_cast<char>(tensor.bytes[i] ^ other[i]));
      }
      if (bits != std::string(width, '\0')) differences[{name, at / width}] = bits;
    }
  }
  return differences;
}

TEST_CASE(
    "differences compose across rollbacks and branches, in both directions, each element once") {
  StoreFixture fixture;
  for (int i = 0; i < 3; ++i) {
    REQUIRE_OK(fixture.Publish(fixture.Changed(fixture.version(i), 0.02)));
  }
  RollbackOptions rollback;
  rollback.to = VersionId(1);
  REQUIRE_OK(fixture.store().Rollback(rollback));
  REQUIRE_OK(fixture.store().Resume());
  REQUIRE_OK(fixture.Publish(fixture.Changed(fixture.version(1), 0.02)));
  const Manifest& manifest = fixture.store().manifest();
  for (uint64_t from = 0; from <= 4; ++from) {
    for (uint64_t to = 0; to <= 4; ++to) {
      INFO("v" << from << " to v" << to);
      const auto difference = fixture.store().Difference(VersionId(from), VersionId(to));
      REQUIRE_OK(difference);
      Differences found;
      uint64_t changes = 0;
      for (uint32_t span = 0; span < manifest.spans(); ++span) {
        REQUIRE_OK((*difference)->ReadSpan(span, [&](const ChunkView& chunk) {
          TileChanges decoded;
          for (const EncodedTile& tile : chunk.tiles()) {
            DecodeTile(tile, &decoded);
            const char* bits = reinterpret_cast<const char*>(decoded.values.data());
            for (const uint16_t offset : decoded.offsets) {
              found[{manifest.tensor(tile.place.tensor).spec.name,
                     tile.place.tile * kTileElements + offset}] = {bits, tile.element_bytes};
              bits += tile.element_bytes;
              ++changes;
            }
          }
          return absl::OkStatus();
        }));
      }
      REQUIRE(changes == found.size());
      REQUIRE((found == NaiveDifferences(fixture.version(from), fixture.version(to))));
      RequireDescribed(fixture, VersionId(from), VersionId(to));
    }
  }
}

TEST_CASE("A21 stale parents and repeated ids: numbers come from the journal") {
  StoreFixture fixture;
  const NaiveTensors first = fixture.Changed(fixture.version(0), 0.01);
  BeginOptions options;
  options.transaction_id = "step-1";
  options.message = "one";
  REQUIRE_OK(fixture.Publish(first, options));
  REQUIRE_OK(fixture.Publish(fixture.Changed(first, 0.01)));
  fixture.Reopen();

  // A trainer that starts over with v0 as its parent.
  BeginOptions stale;
  stale.parent = VersionId(0);
  REQUIRE_ERROR(fixture.Publish(first, stale), absl::StatusCode::kFailedPrecondition,
                "made for v0, but head is v2 now");

  // The same id and content: the first outcome, although head has moved.
  const auto repeated = fixture.Publish(first, options);
  REQUIRE_OK(repeated);
  REQUIRE(repeated->outcome == Outcome::kRepeated);
  REQUIRE(repeated->version == VersionId(1));
  REQUIRE(repeated->head == VersionId(2));
  // Other content under the same id.
  REQUIRE_ERROR(fixture.Publish(fixture.Changed(first, 0.01), options),
                absl::StatusCode::kAlreadyExists, "'step-1' was committed as v1");
  // An id of a publish is not for a rollback.
  RollbackOptions rollback;
  rollback.to = VersionId(1);
  rollback.transaction_id = "step-1";
  REQUIRE_ERROR(fixture.store().Rollback(rollback), absl::StatusCode::kAlreadyExists, "publish");
  REQUIRE(fixture.store().versions().size() == 3);
  REQUIRE(fixture.CommittedMoves().size() == 2);
  fixture.RequireAllVersions();
}

TEST_CASE("a publish names what it was made for, and anything else is refused") {
  StoreFixture fixture;
  REQUIRE_OK(fixture.Publish(fixture.Changed(fixture.version(0), 0.01)));
  const HeadInfo head = fixture.store().head();
  const NaiveTensors next = fixture.Changed(fixture.version(1), 0.01);
  BeginOptions wrong;
  wrong.base_digest = head.chain_digest;
  REQUIRE_ERROR(fixture.store().Begin(wrong), absl::StatusCode::kFailedPrecondition,
                ToHex(head.base_digest));
  wrong = BeginOptions();
  wrong.parent_chain_digest = head.base_digest;
  REQUIRE_ERROR(fixture.store().Begin(wrong), absl::StatusCode::kFailedPrecondition,
                ToHex(head.chain_digest));
  wrong = BeginOptions();
  wrong.move = MoveNumber(0);
  REQUIRE_ERROR(fixture.store().Begin(wrong), absl::StatusCode::kFailedPrecondition,
                "made for head move 0, but head is v1 now (move 1)");
  BeginOptions right;
  right.parent = head.version;
  right.parent_chain_digest = head.chain_digest;
  right.base_digest = head.base_digest;
  right.move = head.move;
  REQUIRE_OK(fixture.Publish(next, right));
}

TEST_CASE("of two open transactions the first to commit wins and the other is told") {
  StoreFixture fixture;
  auto one = fixture.store().Begin({});
  auto two = fixture.store().Begin({});
  REQUIRE_OK(one);
  REQUIRE_OK(two);
  REQUIRE((*one)->number() != (*two)->number());
  REQUIRE_OK((*one)->SetCheckpoint(fixture.Checkpoint(fixture.Changed(fixture.version(0), 0.01))));
  REQUIRE_OK((*two)->SetCheckpoint(fixture.Checkpoint(fixture.Changed(fixture.version(0), 0.01))));
  REQUIRE_OK((*two)->Commit());
  REQUIRE_ERROR((*one)->Commit(), absl::StatusCode::kFailedPrecondition, "head is v1");
  REQUIRE_ERROR((*one)->Commit(), absl::StatusCode::kFailedPrecondition, "has ended");
  REQUIRE(fixture.store().versions().size() == 2);

  // v0, v1, back to v0: a transaction from the first time at v0 is stale, though head is v0 again.
  auto from_v1 = fixture.store().Begin({});
  REQUIRE_OK(from_v1);
  RollbackOptions rollback;
  rollback.to = VersionId(0);
  REQUIRE_OK(fixture.store().Rollback(rollback));
  rollback.to = VersionId(1);
  REQUIRE_OK(fixture.store().Rollback(rollback));
  REQUIRE_OK(fixture.store().Resume());
  REQUIRE_OK(
      (*from_v1)->SetCheckpoint(fixture.Checkpoint(fixture.Changed(fixture.version(0), 0.01))));
  REQUIRE_ERROR((*from_v1)->Commit(), absl::StatusCode::kFailedPrecondition, "head move");
}

TEST_CASE("a second process is refused and a read-only one looks on") {
  StoreFixture fixture;
  REQUIRE_OK(fixture.Publish(fixture.Changed(fixture.version(0), 0.01)));
  REQUIRE_ERROR(Store::Open(fixture.store_path(), {}), absl::StatusCode::kUnavailable,
                std::to_string(getpid()));
  OpenOptions look;
  look.read_only = true;
  const auto reader = Store::Open(fixture.store_path(), look);
  REQUIRE_OK(reader);
  REQUIRE((*reader)->head().version == VersionId(1));
  REQUIRE_ERROR((*reader)->Begin({}), absl::StatusCode::kFailedPrecondition, "look only");
  REQUIRE_ERROR((*reader)->Hold("x"), absl::StatusCode::kFailedPrecondition, "look only");
  const auto report = (*reader)->Verify({});
  REQUIRE_OK(report);
  REQUIRE(report->ok());
}

TEST_CASE("tags name versions and nothing else") {
  StoreFixture fixture;
  REQUIRE_OK(fixture.Publish(fixture.Changed(fixture.version(0), 0.01)));
  REQUIRE_OK(fixture.store().Tag("good/one", VersionId(1)));
  REQUIRE(*fixture.store().Resolve("good/one") == VersionId(1));
  REQUIRE_OK(fixture.store().Tag("good/one", VersionId(0)));
  fixture.Reopen();
  REQUIRE(*fixture.store().Resolve("good/one") == VersionId(0));
  REQUIRE(*fixture.store().Resolve("head") == VersionId(1));
  REQUIRE(*fixture.store().Resolve("v1") == VersionId(1));
  REQUIRE_ERROR(fixture.store().Resolve("v7"), absl::StatusCode::kNotFound, "v1");
  REQUIRE_ERROR(fixture.store().Resolve("good"), absl::StatusCode::kNotFound, "good/one");
  REQUIRE_ERROR(fixture.store().Tag("x", VersionId(3)), absl::StatusCode::kNotFound, "v3");
  for (const char* bad : {"", "v3", "head", "-x", "a b", "ü", "a\n"}) {
    INFO(bad);
    REQUIRE_ERROR(fixture.store().Tag(bad, VersionId(0)), absl::StatusCode::kInvalidArgument,
                  "cannot be a tag");
  }
}

TEST_CASE("init refuses a directory that is in use and a path without a checkpoint") {
  StoreFixture fixture;
  REQUIRE_ERROR(Store::Create(fixture.store_path(), fixture.base_file(), {}),
                absl::StatusCode::kAlreadyExists, "already");
  REQUIRE_ERROR(Store::Create(fixture.path("base"), fixture.base_file(), {}),
                absl::StatusCode::kAlreadyExists, "not empty");
  REQUIRE_ERROR(Store::Create(fixture.path("other"), fixture.path("nothing"), {}),
                absl::StatusCode::kNotFound, "nothing");
  REQUIRE_FALSE(std::filesystem::exists(fixture.path("other")));
  REQUIRE_ERROR(Store::Open(fixture.path("nothing"), {}), absl::StatusCode::kNotFound, "nothing");
}

}  // namespace
}  // namespace wstore::testing
