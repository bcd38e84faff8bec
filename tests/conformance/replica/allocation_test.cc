// The Nth allocation fails, for every N until the run is clean, once and for ever. Host memory
// only: the allocator of the whole program is replaced.
#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/conformance/replica/instance.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"

namespace {

std::atomic<int64_t> allocations_left{INT64_MAX};  // before one fails
std::atomic<bool> fails_for_ever{false};
std::atomic<bool> has_failed{false};

void* Allocate(size_t size) {
  const int64_t left = allocations_left.fetch_sub(1);
  if (left <= 0 && (left == 0 || fails_for_ever)) {
    has_failed = true;
    return nullptr;
  }
  return std::malloc(size == 0 ? 1 : size);
}

}  // namespace

void* operator new(size_t size) {
  void* const memory = Allocate(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new[](size_t size) { return operator new(size); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return Allocate(size); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return Allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

namespace wstore::testing {
namespace {

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

// Calls `step` with allocations failing from the nth on. Assertions need memory, so none is made
// inside.
template <typename Step>
absl::Status WithFailure(int64_t nth, bool for_ever, Step&& step) {
  fails_for_ever = for_ever;
  has_failed = false;
  allocations_left = nth - 1;
  absl::Status status;
  bool has_thrown = false;
  try {
    status = step();
  } catch (...) {
    has_thrown = true;
  }
  allocations_left = INT64_MAX;
  REQUIRE_FALSE(has_thrown);
  return status;
}

// Calls `step` with failures at every allocation in turn, until it runs clean. Where it fails, it
// says so; `check` finds all as it was, and makes it ready for the next try.
template <typename Step, typename Check>
void FailEach(const char* what, bool for_ever, Step&& step, Check&& check) {
  for (int64_t nth = 1;; ++nth) {
    CAPTURE(what, for_ever, nth);
    REQUIRE(nth < 10000);
    const absl::Status status = WithFailure(nth, for_ever, step);
    if (!has_failed) {
      REQUIRE_OK(status);
      return;
    }
    // A thread that could not be started fails unseen.
    REQUIRE((status.ok() || status.code() == kExhausted));
    check();
  }
}

TEST_CASE("replica memory: the Nth allocation fails") {
  const bool for_ever = GENERATE(false, true);
  std::mt19937_64 random(TestSeed("replica allocations"));
  const Manifest manifest = MakeManifest(
      {{"a", Dtype::kBF16, {300, 230}}, {"b", Dtype::kF32, {40, 5}}, {"c", Dtype::kU8, {900}}});
  Publisher publisher(manifest, RandomModel(manifest, random));
  Instance instance(manifest, publisher.key(), {WholeLayout(manifest)}, {});
  instance.Load(publisher);
  Replica& replica = instance.replica(0);
  const auto is_old = [&] {
    REQUIRE(replica.status().version == publisher.head());
    REQUIRE(instance.Holds(publisher.model()));
    REQUIRE(instance.events(0).empty());
  };

  const auto layout = std::make_shared<const Layout>(WholeLayout(manifest));
  FailEach(
      "attach", for_ever,
      [&] {
        ReplicaOptions options;
        options.threads = 2;
        return Replica::Attach(manifest, publisher.key(), {layout, nullptr, 0}, instance.buffers(0),
                               std::move(options))
            .status();
      },
      [] {});
  FailEach(
      "audit", for_ever, [&] { return replica.Audit().status(); }, is_old);
  const std::vector<Fingerprint> sums = publisher.sums();
  FailEach(
      "prove", for_ever,
      [&] { return replica.ProveAlone(publisher.head(), publisher.move(), sums); }, is_old);

  const Update update = publisher.Publish(RandomChanges(manifest, 5000, random));
  FailEach(
      "begin", for_ever, [&] { return replica.BeginUpdate(update.header).status(); }, is_old);
  for (const std::string& chunk : update.chunks) {
    FailEach(
        "stage", for_ever, [&] { return replica.StageChunk(chunk); }, is_old);
  }
  const ModelSource old_source(publisher.model());
  const ModelSource new_source(update.result);
  const auto from = MakeDense(manifest, old_source);
  const auto to = MakeDense(manifest, new_source);
  const auto difference = MakeDiff(manifest, *from, *to);
  const auto begin_again = [&] {
    is_old();
    REQUIRE_OK(instance.Abort(update));
    REQUIRE_OK(instance.Begin(update));
  };
  begin_again();
  FailEach(
      "stage all", for_ever, [&] { return replica.StageAll(*difference).status(); }, begin_again);
  begin_again();
  REQUIRE_OK(instance.StageChunks(update));
  // Finishing drops the update where it fails.
  FailEach(
      "finish", for_ever, [&] { return replica.FinishStaging(update.summary).status(); },
      [&] {
        is_old();
        // There is a slower way to the digest that needs less.
        if (replica.status().state != ReplicaState::kReady) REQUIRE_OK(instance.Abort(update));
        REQUIRE(replica.status().state == ReplicaState::kReady);
        REQUIRE_OK(instance.Begin(update));
        REQUIRE_OK(instance.StageChunks(update));
      });
  REQUIRE(replica.status().state == ReplicaState::kApproved);

  // From here on no memory is needed at all.
  const TransactionNumber transaction = update.header.transaction;
  REQUIRE_OK(WithFailure(1, true, [&] { return replica.Apply(transaction); }));
  REQUIRE(instance.Holds(update.result));
  REQUIRE_OK(WithFailure(1, true, [&] { return replica.Abort(transaction); }));
  is_old();
  REQUIRE_OK(instance.Stage(update));
  REQUIRE_OK(WithFailure(1, true, [&] { return replica.Apply(transaction); }));
  instance.ReserveEvents();
  REQUIRE_OK(WithFailure(1, true, [&] { return replica.Commit(transaction); }));
  REQUIRE(instance.Holds(update.result));
  publisher.Commit(update);

  // An apply that finds other weights than were checked poisons the replica, even if it cannot say
  // why.
  const Update next = publisher.Publish({{{2, 5}, 1}});
  REQUIRE_OK(instance.Stage(next));
  instance.Flip(0, 2, 5, 0x10);
  REQUIRE_FALSE(WithFailure(1, true, [&] { return replica.Apply(next.header.transaction); }).ok());
  REQUIRE(replica.status().state == ReplicaState::kPoisoned);
}

}  // namespace
}  // namespace wstore::testing
