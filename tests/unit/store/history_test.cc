// Candidates, marks, and the record of what was refused.
#include "tests/unit/store/store_fixture.h"
#include "wstore/store.h"

namespace wstore::testing {
namespace {

using Outcome = CommitResult::Outcome;

TEST_CASE("a candidate is durable and not head until it is promoted") {
  StoreFixture fixture;
  REQUIRE_OK(fixture.Publish(fixture.Changed(fixture.version(0), 0.01)));
  BeginOptions candidate;
  candidate.candidate = true;
  const auto tried = fixture.Publish(fixture.Changed(fixture.version(1), 0.01), candidate);
  REQUIRE_OK(tried);
  REQUIRE(tried->version == VersionId(2));
  REQUIRE(tried->head == VersionId(1));
  fixture.Reopen();
  REQUIRE(fixture.store().head().version == VersionId(1));
  REQUIRE(fixture.store().version(VersionId(2))->candidate);
  fixture.RequireAllVersions();

  const auto promoted = fixture.store().Promote(VersionId(2));
  REQUIRE_OK(promoted);
  REQUIRE(promoted->outcome == Outcome::kCommitted);
  REQUIRE(fixture.store().head().version == VersionId(2));
  REQUIRE(fixture.store().moves().back().why == "promote");
  REQUIRE(fixture.store().Promote(VersionId(2))->outcome == Outcome::kUnchanged);
  fixture.Reopen();
  REQUIRE(fixture.store().head().version == VersionId(2));
  REQUIRE_FALSE(fixture.store().version(VersionId(2))->candidate);
  REQUIRE_ERROR(fixture.store().Promote(VersionId(1)), absl::StatusCode::kFailedPrecondition,
                "not a candidate");
  REQUIRE_ERROR(fixture.store().Promote(VersionId(7)), absl::StatusCode::kNotFound, "v7");
}

TEST_CASE("a candidate whose parent is no longer head is not promoted") {
  StoreFixture fixture;
  BeginOptions candidate;
  candidate.candidate = true;
  REQUIRE_OK(fixture.Publish(fixture.Changed(fixture.version(0), 0.01), candidate));
  REQUIRE_OK(fixture.Publish(fixture.Changed(fixture.version(0), 0.01)));
  REQUIRE(fixture.store().head().version == VersionId(2));
  REQUIRE_ERROR(fixture.store().Promote(VersionId(1)), absl::StatusCode::kFailedPrecondition,
                "v1 was made on v0, but head is v2");
  REQUIRE(fixture.store().moves().back().outcome == "refused");
  REQUIRE(fixture.store().head().version == VersionId(2));
}

TEST_CASE("a version marked bad is no rollback target and no parent, unless forced") {
  StoreFixture fixture;
  REQUIRE_OK(fixture.Publish(fixture.Changed(fixture.version(0), 0.01)));
  REQUIRE_OK(fixture.Publish(fixture.Changed(fixture.version(1), 0.01)));
  REQUIRE_OK(fixture.store().Mark(VersionId(1), true, "diverged"));
  fixture.Reopen();
  REQUIRE(fixture.store().version(VersionId(1))->bad == "diverged");
  RollbackOptions rollback;
  rollback.to = VersionId(1);
  REQUIRE_ERROR(fixture.store().Rollback(rollback), absl::StatusCode::kFailedPrecondition,
                "v1 is marked bad (diverged)");
  REQUIRE(fixture.store().head().version == VersionId(2));
  rollback.force = true;
  REQUIRE_OK(fixture.store().Rollback(rollback));
  REQUIRE_OK(fixture.store().Resume());
  const NaiveTensors next = fixture.Changed(fixture.version(1), 0.01);
  REQUIRE_ERROR(fixture.Publish(next), absl::StatusCode::kFailedPrecondition,
                "head v1 is marked bad");
  BeginOptions forced;
  forced.force = true;
  REQUIRE_OK(fixture.Publish(next, forced));
  REQUIRE_OK(fixture.store().Mark(VersionId(1), false, ""));
  rollback.force = false;
  REQUIRE_OK(fixture.store().Rollback(rollback));
  REQUIRE_ERROR(fixture.store().Mark(VersionId(9), true, "x"), absl::StatusCode::kNotFound, "v9");
}

TEST_CASE("refused attempts are history, once each") {
  StoreFixture fixture;
  REQUIRE_OK(fixture.Publish(fixture.Changed(fixture.version(0), 0.01)));
  BeginOptions stale;
  stale.parent = VersionId(0);
  stale.transaction_id = "late";
  for (int i = 0; i < 3; ++i) {
    REQUIRE_ERROR(fixture.Publish(fixture.version(1), stale), absl::StatusCode::kFailedPrecondition,
                  "v0");
  }
  fixture.Reopen();
  const auto moves = fixture.store().moves();
  REQUIRE(moves.size() == 2);
  REQUIRE(moves[1].outcome == "refused");
  REQUIRE(moves[1].move == MoveNumber(0));
  REQUIRE(moves[1].why == "publish");
  REQUIRE(moves[1].transaction_id == "late");
  REQUIRE(moves[1].actor == "tester");
  REQUIRE_THAT(moves[1].message, Catch::Matchers::Contains("made for v0"));
  // The numbers of real moves have no gaps from it.
  REQUIRE_OK(fixture.Publish(fixture.Changed(fixture.version(1), 0.01)));
  REQUIRE(fixture.store().head().move == MoveNumber(2));
}

}  // namespace
}  // namespace wstore::testing
