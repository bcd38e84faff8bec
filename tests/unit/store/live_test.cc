#include "store/live.h"

#include "tests/support/random.h"
#include "tests/unit/store/live_fixture.h"
#include "wstore/patch_digest.h"

namespace wstore::testing {
namespace {

using Code = absl::StatusCode;
using Part = LiveFixture::Part;

TEST_CASE("a publish streamed with interruptions becomes the version that was sent") {
  LiveFixture fixture(TestSeed("live"));
  LiveStore& live = *fixture.live;
  const NaiveTensors next = fixture.store.Changed(fixture.versions.at(0), 0.05);
  const LiveNumbers numbers = fixture.Reserve();
  LivePublish publish;
  publish.message = "step 1";
  publish.meta = {{"step", "1"}};
  REQUIRE_OK(live.BeginContent(numbers.transaction, publish));
  const Part part = fixture.MakePart(fixture.versions.at(0), next, numbers.transaction, 0, 1);
  REQUIRE(part.chunks.size() > 3);
  {
    const auto content = *live.FindContent(numbers.transaction);
    REQUIRE_ERROR(content->Put(0, 1, part.chunks[1]), Code::kOutOfRange, "the next one is 0");
    REQUIRE_OK(content->Put(0, 0, part.chunks[0]));
    REQUIRE_OK(content->Put(0, 0, part.chunks[0]));
    REQUIRE_ERROR(content->Put(0, 0, part.chunks[1]), Code::kAlreadyExists, "another");
    REQUIRE_ERROR(content->Put(0, 1, part.chunks[2]), Code::kInvalidArgument, "does not follow");
    std::string damaged = part.chunks[1];
    damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 4);
    REQUIRE_ERROR(content->Put(0, 1, damaged), Code::kDataLoss, "");
    REQUIRE_ERROR(content->Put(1, 0, part.chunks[0]), Code::kInvalidArgument, "contributor 1");
    REQUIRE(*content->next_sequence(0) == 1);
    REQUIRE_ERROR(content->Finish(0, part.summary), Code::kInvalidArgument, "1 have come");
    for (size_t i = 1; i < part.chunks.size(); ++i) REQUIRE_OK(content->Put(0, i, part.chunks[i]));
    REQUIRE_OK(content->Finish(0, part.summary));
    REQUIRE_OK(content->Finish(0, part.summary));
    ContributorSummary other = part.summary;
    other.digest.bytes[0] ^= 1;
    REQUIRE_ERROR(content->Finish(0, other), Code::kAlreadyExists, "another summary");
    REQUIRE_OK(content->Put(0, 0, part.chunks[0]));
    REQUIRE_ERROR(content->Put(0, part.chunks.size(), part.chunks[0]), Code::kFailedPrecondition,
                  "too late");
  }
  const auto content = live.CompleteContent(numbers.transaction);
  REQUIRE_OK(content);
  REQUIRE(content->patch_digest == part.summary.digest);
  REQUIRE(content->verified == Verified::kNone);
  REQUIRE(*content->touched == *part.summary.sums);
  REQUIRE(live.store()->head().version == VersionId(0));
  LiveRecord record = fixture.RecordOf(numbers, VersionId(0), *content);
  record.id = "step-1";
  record.installed = true;
  REQUIRE_OK(live.Write(record));

  const auto info = live.store()->version(numbers.version);
  REQUIRE_OK(info);
  REQUIRE(info->chain_digest == content->chain_digest);
  REQUIRE(info->verified == Verified::kInstalled);
  REQUIRE(info->message == "step 1");
  REQUIRE(info->meta == Metadata{{"step", "1"}});
  REQUIRE(info->transaction_id == "step-1");
  REQUIRE(live.store()->moves().back().peer == "uid 7");
  REQUIRE(live.store()->head().version == numbers.version);
  REQUIRE_ERROR(live.FindContent(numbers.transaction), Code::kNotFound, "ended");
  fixture.versions[1] = next;
  fixture.Publish(fixture.store.Changed(next, 0.01));
  fixture.RequireAllVersions();
}

TEST_CASE("contributors that share tiles are joined to what one would have sent") {
  const uint64_t seed = TestSeed("live-joined");
  LiveFixture fixture(seed);
  StoreFixture embedded(seed);
  const NaiveTensors next = fixture.store.Changed(fixture.versions.at(0), 0.02);
  fixture.Publish(next, 3);
  REQUIRE_OK(embedded.Publish(next));
  const auto live = fixture.live->store()->version(VersionId(1));
  const auto plain = embedded.store().version(VersionId(1));
  REQUIRE_OK(live);
  REQUIRE_OK(plain);
  REQUIRE(live->patch_digest == plain->patch_digest);
  REQUIRE(live->chain_digest == plain->chain_digest);
  REQUIRE(live->fingerprint == plain->fingerprint);
  REQUIRE(live->elements == plain->elements);
  fixture.RequireAllVersions();
}

TEST_CASE("content that is not what was declared is refused by name") {
  LiveFixture fixture;
  LiveStore& live = *fixture.live;
  const NaiveTensors& base = fixture.versions.at(0);
  const NaiveTensors next = fixture.store.Changed(base, 0.02);
  const LiveNumbers numbers = fixture.Reserve();
  const TransactionNumber tx = numbers.transaction;
  LivePublish publish;
  Part part;

  SECTION("two contributors changed one element") {
    publish.contributors = 2;
    REQUIRE_OK(live.BeginContent(tx, publish));
    fixture.Send(fixture.MakePart(base, next, tx, 0, 2), tx, 0);
    NaiveTensors other = base;
    other.at("embed.weight") = next.at("embed.weight");
    Part all = fixture.MakePart(base, other, tx, 1, 2);
    const Part overlapping = fixture.MakePart(base, other, tx, 0, 1);
    // The same chunks under the name of the second contributor.
    all.chunks.clear();
    PatchDigester digester(live.manifest());
    uint16_t next_part = 0;
    for (const std::string& bytes : overlapping.chunks) {
      const auto chunk = ChunkView::Parse(bytes, live.manifest());
      ChunkBuilder builder(live.manifest());
      for (const EncodedTile& tile : chunk->tiles()) {
        builder.AddTile(tile);
        digester.Add(tile.place, tile.form, tile.changed, TileDigest(tile));
      }
      all.chunks.push_back(builder.Finish({tx, ChunkKey{1, 0, next_part++}}));
    }
    all.summary = overlapping.summary;
    fixture.Send(all, tx, 1);
    REQUIRE_ERROR(live.CompleteContent(tx), Code::kInvalidArgument,
                  "in 'embed.weight'; contributors there: 0, 1");
  }
  SECTION("another digest") {
    publish.contributors = 2;
    REQUIRE_OK(live.BeginContent(tx, publish));
    fixture.Send(fixture.MakePart(base, next, tx, 0, 2), tx, 0);
    part = fixture.MakePart(base, next, tx, 1, 2);
    part.summary.digest.bytes[3] ^= 1;
    fixture.Send(part, tx, 1);
    REQUIRE_ERROR(live.CompleteContent(tx), Code::kInvalidArgument, "contributor 1");
  }
  SECTION("another digest of a single contributor") {
    REQUIRE_OK(live.BeginContent(tx, publish));
    part = fixture.MakePart(base, next, tx, 0, 1);
    part.summary.digest.bytes[3] ^= 1;
    fixture.Send(part, tx, 0);
    REQUIRE_ERROR(live.CompleteContent(tx), Code::kInvalidArgument, "the patch set");
  }
  SECTION("sums of the wrong tensors") {
    REQUIRE_OK(live.BeginContent(tx, publish));
    part = fixture.MakePart(base, next, tx, 0, 1);
    part.summary.sums->erase(part.summary.sums->begin());
    fixture.Send(part, tx, 0);
    REQUIRE_ERROR(live.CompleteContent(tx), Code::kInvalidArgument, "'embed.weight'");
  }
  SECTION("sums of other bits, where they are to be checked") {
    publish.check_sums = true;
    REQUIRE_OK(live.BeginContent(tx, publish));
    part = fixture.MakePart(base, next, tx, 0, 1);
    part.summary.sums->front().sums.before.lanes[0] ^= 1;
    fixture.Send(part, tx, 0);
    REQUIRE_ERROR(live.CompleteContent(tx), Code::kDataLoss, "'embed.weight'");
  }
  SECTION("a contributor that has not finished") {
    REQUIRE_OK(live.BeginContent(tx, publish));
    REQUIRE_ERROR(live.CompleteContent(tx), Code::kFailedPrecondition, "not finished");
  }
  LiveRecord record;
  record.transaction = tx;
  REQUIRE_ERROR(live.Write(record), Code::kFailedPrecondition, "not complete");
  live.DiscardContent(tx);
  REQUIRE_ERROR(live.Write(record), Code::kNotFound, "ended");
  fixture.Publish(next);
  fixture.RequireAllVersions();
}

TEST_CASE("sums that nobody declares are taken from the parent's bits") {
  LiveFixture fixture;
  LiveStore& live = *fixture.live;
  const NaiveTensors next = fixture.store.Changed(fixture.versions.at(0), 0.02);
  const LiveNumbers numbers = fixture.Reserve();
  REQUIRE_OK(live.BeginContent(numbers.transaction, {}));
  Part part = fixture.MakePart(fixture.versions.at(0), next, numbers.transaction, 0, 1);
  const TouchedByTensor sums = *std::exchange(part.summary.sums, std::nullopt);
  fixture.Send(part, numbers.transaction, 0);
  const auto content = live.CompleteContent(numbers.transaction);
  REQUIRE_OK(content);
  REQUIRE(*content->touched == sums);
  REQUIRE(content->verified == Verified::kMaterialised);
}

// Publishes `to` on head, with sums that are checked against the bits.
void PublishChecked(LiveFixture& fixture, const NaiveTensors& to) {
  const VersionId head = fixture.live->store()->head().version;
  const LiveNumbers numbers = fixture.Reserve();
  LivePublish publish;
  publish.parent = head;
  publish.check_sums = true;
  REQUIRE_OK(fixture.live->BeginContent(numbers.transaction, publish));
  const Part part =
      fixture.MakePart(fixture.versions.at(head.value()), to, numbers.transaction, 0, 1);
  fixture.Send(part, numbers.transaction, 0);
  const auto content = fixture.live->CompleteContent(numbers.transaction);
  REQUIRE_OK(content);
  REQUIRE(content->verified == Verified::kMaterialised);
  REQUIRE(*content->touched == *part.summary.sums);
  REQUIRE_OK(fixture.live->Write(fixture.RecordOf(numbers, head, *content)));
  fixture.versions[numbers.version.value()] = to;
}

TEST_CASE("sums of what small sets touch are right on top of a chain, one after the other") {
  LiveFixture fixture(TestSeed("live-touched"));
  const auto head = [&] {
    return fixture.versions.at(fixture.live->store()->head().version.value());
  };
  for (int i = 0; i < 3; ++i) fixture.Publish(fixture.store.Changed(head(), 0.02));
  // The last element of the first `count` tensors: tiles that are not kept yet, that are, and some
  // of both.
  for (const int count : {1, 1, 3, 2}) {
    NaiveTensors next = head();
    int changed = 0;
    for (auto& [name, tensor] : next) {
      if (tensor.bytes.empty() || changed == count) continue;
      tensor.bytes.back() = static_cast<char>(tensor.bytes.back() ^ (1 << count));
      ++changed;
    }
    PublishChecked(fixture, next);
  }
  // What another version changes is not taken for what was kept.
  fixture.Publish(fixture.store.Changed(head(), 0.3));
  PublishChecked(fixture, fixture.store.Changed(head(), 0.001));
  REQUIRE_OK(fixture.live->Reopen());
  PublishChecked(fixture, fixture.store.Changed(head(), 0.001));
  fixture.RequireAllVersions();
}

TEST_CASE("who waits for content is told of all that comes, and of its end") {
  LiveFixture fixture(TestSeed("live-watched"));
  const LiveNumbers numbers = fixture.Reserve();
  REQUIRE_OK(fixture.live->BeginContent(numbers.transaction, {}));
  const NaiveTensors next = fixture.store.Changed(fixture.versions.at(0), 0.05);
  const Part part = fixture.MakePart(fixture.versions.at(0), next, numbers.transaction, 0, 1);
  const auto content = *fixture.live->FindContent(numbers.transaction);
  int told = 0;
  const uint64_t watch = content->Watch([&told] { ++told; });
  REQUIRE_OK(content->Put(0, 0, part.chunks[0]));
  REQUIRE(told == 1);
  REQUIRE_OK(content->Put(0, 0, part.chunks[0]));  // nothing new
  REQUIRE(told == 1);
  content->Announce();
  REQUIRE(told == 2);
  REQUIRE(!content->is_discarded());
  fixture.live->DiscardContent(numbers.transaction);
  REQUIRE(content->is_discarded());
  REQUIRE(told == 3);
  content->Unwatch(watch);
  content->Announce();
  REQUIRE(told == 3);
}

TEST_CASE("content that changes nothing is no version") {
  LiveFixture fixture;
  const LiveNumbers numbers = fixture.Reserve();
  REQUIRE_OK(fixture.live->BeginContent(numbers.transaction, {}));
  fixture.Send(
      fixture.MakePart(fixture.versions.at(0), fixture.versions.at(0), numbers.transaction, 0, 1),
      numbers.transaction, 0);
  const auto content = fixture.live->CompleteContent(numbers.transaction);
  REQUIRE_OK(content);
  REQUIRE(content->elements == 0);
}

TEST_CASE("content past a limit is refused and can be discarded") {
  LiveStore::Options options;
  options.content.max_size_bytes = 3000;
  LiveFixture fixture(1, options);
  const LiveNumbers numbers = fixture.Reserve();
  REQUIRE_OK(fixture.live->BeginContent(numbers.transaction, {}));
  const Part part =
      fixture.MakePart(fixture.versions.at(0), fixture.store.Changed(fixture.versions.at(0), 0.5),
                       numbers.transaction, 0, 1);
  const auto content = *fixture.live->FindContent(numbers.transaction);
  REQUIRE_ERROR(content->Put(0, 0, part.chunks[0]), Code::kResourceExhausted, "3000 bytes in all");
  REQUIRE(*content->next_sequence(0) == 0);
}

TEST_CASE("a store's view names moves, outcomes, numbers and hold, also after reopening") {
  LiveFixture fixture;
  const auto first = fixture.live->View();
  REQUIRE_OK(first);
  REQUIRE(first->epoch == 0);
  REQUIRE(first->moves.size() == 1);
  REQUIRE(first->moves[0].head.chain_digest == fixture.live->store()->head().chain_digest);
  REQUIRE(first->next.transaction == TransactionNumber(1));
  REQUIRE_FALSE(first->hold);

  REQUIRE_OK(fixture.live->SyncEpoch(5, {}));
  const LiveRecord v1 =
      fixture.Publish(fixture.store.Changed(fixture.versions.at(0), 0.01), 1, "one");
  const LiveRecord v2 =
      fixture.Publish(fixture.store.Changed(fixture.versions.at(1), 0.01), 1, "two");
  LiveNumbers numbers = fixture.Reserve();
  LiveRecord rollout;
  rollout.kind = LiveKind::kRollout;
  rollout.id = "try";
  rollout.transaction = numbers.transaction;
  rollout.from = v2.to.version;
  rollout.to = v2.to;
  rollout.move = numbers.move;
  rollout.trial = LiveTrial{v1.to, {"blue", "green"}};
  REQUIRE_OK(fixture.live->Write(rollout));
  numbers = fixture.Reserve();
  LiveRecord rollback;
  rollback.kind = LiveKind::kRollback;
  rollback.id = "back";
  rollback.transaction = numbers.transaction;
  rollback.from = v2.to.version;
  rollback.to = v1.to;
  rollback.move = numbers.move;
  rollback.for_all = false;
  rollback.hold = true;
  REQUIRE_OK(fixture.live->Write(rollback));
  numbers = fixture.Reserve();  // numbers that are never used

  fixture.Open();
  const auto view = fixture.live->View();
  REQUIRE_OK(view);
  REQUIRE(view->epoch == 5);
  REQUIRE(view->hold);
  REQUIRE(view->next.transaction.value() == numbers.transaction.value() + 1);
  REQUIRE(view->next.version.value() == numbers.version.value() + 1);
  REQUIRE(view->next.move.value() == numbers.move.value() + 1);
  REQUIRE(view->moves.size() == 5);
  REQUIRE(view->moves[3].trial->instances == std::vector<std::string>{"blue", "green"});
  REQUIRE(view->moves[3].trial->candidate.version == v1.to.version);
  REQUIRE(view->moves[3].head.version == v2.to.version);
  REQUIRE(view->moves[4].head.version == v1.to.version);
  REQUIRE_FALSE(view->moves[4].for_all);
  REQUIRE_FALSE(view->moves[4].trial);
  REQUIRE(view->outcomes.size() == 4);
  REQUIRE(view->outcomes[1].id == "two");
  REQUIRE(view->outcomes[1].kind == LiveKind::kPublish);
  REQUIRE(view->outcomes[1].move == v2.move);
  REQUIRE(view->outcomes[2].kind == LiveKind::kRollout);
  REQUIRE(view->outcomes[2].to.version == v1.to.version);
  const auto outcome = fixture.live->FindOutcome("back");
  REQUIRE(outcome.has_value());
  REQUIRE(outcome->kind == LiveKind::kRollback);
  REQUIRE(outcome->move == rollback.move);
  REQUIRE_FALSE(fixture.live->FindOutcome("none").has_value());
  REQUIRE_OK(fixture.live->SyncEpoch(6, {}));
}

TEST_CASE("attempts are recorded once, and hold is idempotent") {
  LiveFixture fixture;
  LiveAttempt attempt;
  attempt.why = "publish";
  attempt.id = "x";
  attempt.reason = absl::AbortedError("a rank said no");
  attempt.refused = false;
  attempt.caller = {"trainer", "uid 7"};
  REQUIRE_OK(fixture.live->RecordAttempt(attempt));
  REQUIRE_OK(fixture.live->RecordAttempt(attempt));
  REQUIRE_OK(fixture.live->SetHold(true, "look", {"operator", ""}));
  REQUIRE_OK(fixture.live->SetHold(true, "look again", {"operator", ""}));
  fixture.Open();
  const std::vector<MoveInfo> moves = fixture.live->store()->moves();
  REQUIRE(moves.size() == 1);
  REQUIRE(moves[0].outcome == "aborted");
  REQUIRE(moves[0].message == "a rank said no");
  REQUIRE(fixture.live->store()->status().hold->reason == "look");
  REQUIRE_OK(fixture.live->SetHold(false, "", {}));
  REQUIRE_FALSE(fixture.live->View()->hold);
}

TEST_CASE("a decision that is not synced yet is there, and reopening discards what is open") {
  LiveFixture fixture;
  const NaiveTensors next = fixture.store.Changed(fixture.versions.at(0), 0.02);
  const LiveNumbers numbers = fixture.Reserve();
  REQUIRE_OK(fixture.live->BeginContent(numbers.transaction, {}));
  fixture.Send(fixture.MakePart(fixture.versions.at(0), next, numbers.transaction, 0, 1),
               numbers.transaction, 0);
  const auto content = fixture.live->CompleteContent(numbers.transaction);
  REQUIRE_OK(content);
  LiveRecord record = fixture.RecordOf(numbers, VersionId(0), *content);
  record.sync = false;
  REQUIRE_OK(fixture.live->Write(record));
  REQUIRE(fixture.live->store()->head().version == numbers.version);
  REQUIRE_OK(fixture.live->Sync());
  REQUIRE_OK(fixture.live->Sync());
  fixture.versions[numbers.version.value()] = next;

  const LiveNumbers open = fixture.Reserve();
  REQUIRE_OK(fixture.live->BeginContent(open.transaction, {}));
  const auto staged = *fixture.live->FindContent(open.transaction);
  REQUIRE_OK(fixture.live->Reopen());
  REQUIRE(fixture.live->store()->head().version == numbers.version);
  REQUIRE_ERROR(fixture.live->FindContent(open.transaction), Code::kNotFound, "");
  REQUIRE(*staged->next_sequence(0) == 0);  // whoever has it may still look at it
  REQUIRE(fixture.live->View()->next.transaction.value() == open.transaction.value() + 1);
  fixture.RequireAllVersions();
}

}  // namespace
}  // namespace wstore::testing
