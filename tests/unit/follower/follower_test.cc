#include "wstore/follower.h"

#include <cstring>

#include "tests/support/random.h"
#include "tests/unit/store/store_fixture.h"
#include "wstore/layout_builder.h"

namespace wstore::testing {
namespace {

// Two ranks: the rows of embed.weight and layer.0.weight are split, all else is on both.
class Engine {
 public:
  explicit Engine(StoreFixture& fixture)
      : fixture_(fixture),
        manifest_(fixture.store().manifest()),
        key_(fixture.store().head().base_digest) {
    for (uint32_t rank = 0; rank < 2; ++rank) layouts_.push_back(LayoutOf(rank));
    regions_ = std::make_shared<const RegionMap>(
        *RegionMap::Create(manifest_, std::vector<const Layout*>{&*layouts_[0], &*layouts_[1]}));
    for (uint32_t rank = 0; rank < 2; ++rank) Attach(rank);
    follower_ = std::make_unique<Follower>(
        fixture.store(), std::vector<Replica*>{replicas_[0].get(), replicas_[1].get()});
  }

  Follower& follower() { return *follower_; }
  Replica& replica(uint32_t rank) { return *replicas_[rank]; }
  const std::vector<ChangeEvent>& events(uint32_t rank) const { return events_[rank]; }

  // The bytes of a tensor as a rank has them.
  std::string& bytes(uint32_t rank, const std::string& tensor) {
    const std::vector<LayoutBuffer>& buffers = layouts_[rank]->buffers();
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (buffers[i].name == tensor) return memory_[rank][i];
    }
    FAIL("no buffer " << tensor);
    throw 0;
  }

  // What an engine would load by itself.
  void Write(const NaiveTensors& model) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      for (const auto& [name, tensor] : model) {
        std::string part = Part(rank, name, tensor.bytes);
        std::copy(part.begin(), part.end(), bytes(rank, name).begin());
      }
    }
  }

  bool Holds(uint32_t rank, const NaiveTensors& model) {
    for (const auto& [name, tensor] : model) {
      if (bytes(rank, name) != Part(rank, name, tensor.bytes)) return false;
    }
    return true;
  }
  bool Holds(const NaiveTensors& model) { return Holds(0, model) && Holds(1, model); }

 private:
  static bool IsSplit(const std::string& name) {
    return name == "embed.weight" || name == "layer.0.weight";
  }
  static std::string Part(uint32_t rank, const std::string& name, const std::string& whole) {
    const size_t half = whole.size() / 2;
    return IsSplit(name) ? whole.substr(rank * half, half) : whole;
  }

  std::shared_ptr<const Layout> LayoutOf(uint32_t rank) {
    LayoutBuilder builder(manifest_);
    for (const Manifest::Tensor& tensor : manifest_.tensors()) {
      TensorSpec spec = tensor.spec;
      StridedView from = builder.Tensor(spec.name);
      if (IsSplit(spec.name)) {
        spec.shape[0] /= 2;
        from = from.Slice(0, rank * spec.shape[0], (rank + 1) * spec.shape[0]);
      }
      builder.Place(from, builder.Buffer(spec));
    }
    auto layout = builder.Build(1);
    REQUIRE_OK(layout);
    return std::make_shared<const Layout>(*std::move(layout));
  }

  void Attach(uint32_t rank) {
    std::vector<LocalBuffer> buffers;
    for (uint32_t i = 0; i < layouts_[rank]->buffers().size(); ++i) {
      memory_[rank].emplace_back(layouts_[rank]->buffer_bytes(i), '\x5a');
    }
    for (std::string& buffer : memory_[rank]) buffers.push_back({buffer.data(), buffer.size()});
    ReplicaOptions options;
    options.threads = 2;
    options.on_change = [this, rank](const ChangeEvent& event) { events_[rank].push_back(event); };
    auto replica = Replica::Attach(manifest_, key_, {layouts_[rank], regions_, rank}, buffers,
                                   std::move(options));
    REQUIRE_OK(replica);
    replicas_.push_back(*std::move(replica));
  }

  StoreFixture& fixture_;
  const Manifest& manifest_;
  const FingerprintKey key_;
  std::vector<std::shared_ptr<const Layout>> layouts_;
  std::shared_ptr<const RegionMap> regions_;
  std::vector<std::string> memory_[2];
  std::vector<ChangeEvent> events_[2];
  std::vector<std::unique_ptr<Replica>> replicas_;
  std::unique_ptr<Follower> follower_;
};

// Publishes `count` versions, each on the one before.
void PublishMore(StoreFixture& fixture, int count) {
  for (int i = 0; i < count; ++i) {
    const uint64_t head = fixture.store().head().version.value();
    REQUIRE_OK(fixture.Publish(fixture.Changed(fixture.version(head), 0.02)));
  }
}

void RollBack(StoreFixture& fixture, uint64_t to) {
  RollbackOptions options;
  options.to = VersionId(to);
  REQUIRE_OK(fixture.store().Rollback(options));
  REQUIRE_OK(fixture.store().Resume());
}

VersionId MustFollow(Engine& engine) {
  const absl::StatusOr<VersionId> at = engine.follower().Follow();
  REQUIRE_OK(at);
  return *at;
}

TEST_CASE("Replicas follow publishes and rollbacks, in any order") {
  const uint64_t seed = TestSeed("follower");
  StoreFixture fixture(seed);
  Engine engine(fixture);
  REQUIRE_OK(engine.follower().Load());
  REQUIRE(engine.Holds(fixture.version(0)));
  PublishMore(fixture, 1);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 25; ++i) {
    INFO("step " << i);
    const uint64_t versions = fixture.store().versions().size();
    if (random() % 2 == 0) {
      PublishMore(fixture, 1 + static_cast<int>(random() % 3));
    } else {
      RollBack(fixture, random() % versions);
    }
    if (random() % 3 == 0) continue;  // several moves at once
    const VersionId head = fixture.store().head().version;
    REQUIRE(MustFollow(engine) == head);
    REQUIRE(engine.Holds(fixture.version(head.value())));
    for (uint32_t rank = 0; rank < 2; ++rank) {
      REQUIRE(engine.replica(rank).status().version->version == head);
      REQUIRE(engine.replica(rank).status().move == fixture.store().head().move);
    }
    REQUIRE(MustFollow(engine) == head);  // nothing more to do
  }
}

TEST_CASE("A26 each move of the weights is told once, with its reason") {
  StoreFixture fixture;
  Engine engine(fixture);
  REQUIRE_OK(engine.follower().Load());
  PublishMore(fixture, 1);
  MustFollow(engine);
  PublishMore(fixture, 2);
  MustFollow(engine);
  RollBack(fixture, 1);
  MustFollow(engine);
  // Back and forth while nobody looks: head has moved, the weights have not.
  RollBack(fixture, 0);
  RollBack(fixture, 1);
  MustFollow(engine);
  REQUIRE(engine.replica(0).status().move == fixture.store().head().move);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    std::vector<std::string> told;
    for (const ChangeEvent& event : engine.events(rank)) {
      told.push_back(ToString(event.from.version) + ">" + ToString(event.to.version) + " " +
                     std::string(ChangeReasonName(event.reason)));
    }
    REQUIRE(told == std::vector<std::string>{"v0>v1 publish", "v1>v3 catch-up", "v3>v1 rollback"});
  }
}

TEST_CASE("What was prepared is dropped when head has moved since") {
  StoreFixture fixture;
  Engine engine(fixture);
  REQUIRE_OK(engine.follower().Load());
  PublishMore(fixture, 1);
  const auto is_due = engine.follower().Prepare();
  REQUIRE_OK(is_due);
  REQUIRE(*is_due);
  PublishMore(fixture, 1);
  REQUIRE_ERROR(engine.follower().Apply(), absl::StatusCode::kAborted,
                "head has moved from v1 to v2");
  REQUIRE(engine.Holds(fixture.version(0)));
  REQUIRE(engine.replica(0).status().state == ReplicaState::kReady);
  REQUIRE_OK(engine.follower().Apply());  // nothing is prepared
  // Preparing twice stages once; preparing after another move stages anew.
  REQUIRE_OK(engine.follower().Prepare());
  REQUIRE_OK(engine.follower().Prepare());
  RollBack(fixture, 1);
  REQUIRE_OK(engine.follower().Prepare());
  REQUIRE_OK(engine.follower().Apply());
  REQUIRE(engine.Holds(fixture.version(1)));
}

TEST_CASE("Weights that something else changed are found before anything is written") {
  StoreFixture fixture;
  Engine engine(fixture);
  REQUIRE_OK(engine.follower().Load());
  NaiveTensors next = fixture.version(0);
  next["layer.0.weight"].bytes[96 * 96 + 10] ^= 4;  // on rank 1
  next["layer.1.codes"].bytes[7] ^= 1;              // on both
  REQUIRE_OK(fixture.Publish(next));
  std::string expected;
  SECTION("a part: the tensor is named, and who holds parts of it") {
    engine.bytes(1, "layer.0.weight")[10] ^= 64;
    expected = "tensor 'layer.0.weight': the parts on ranks 0, 1 do not add up";
  }
  SECTION("a copy: the rank is named") {
    engine.bytes(1, "layer.1.codes")[7] ^= 64;
    expected = "tensor 'layer.1.codes': rank 1 differs from the right copies";
  }
  REQUIRE_ERROR(engine.follower().Prepare(), absl::StatusCode::kDataLoss, expected);
  REQUIRE(engine.Holds(0, fixture.version(0)));
  REQUIRE(engine.replica(0).status().version->version == VersionId(0));
  REQUIRE(engine.events(0).empty());
  REQUIRE_OK(engine.follower().Load());
  REQUIRE(engine.Holds(fixture.version(1)));
}

TEST_CASE("A16 all ranks or none: one rank fails to apply, the others take it back") {
  StoreFixture fixture;
  Engine engine(fixture);
  REQUIRE_OK(engine.follower().Load());
  NaiveTensors next = fixture.Changed(fixture.version(0), 0.02);
  next["embed.weight"].bytes[2 * 48000] ^= 4;  // the first element of rank 1
  REQUIRE_OK(fixture.Publish(next));
  REQUIRE_OK(engine.follower().Prepare());
  engine.bytes(1, "embed.weight")[0] ^= 64;
  const absl::Status failed = engine.follower().Apply();
  REQUIRE_FALSE(failed.ok());
  REQUIRE_THAT(std::string(failed.message()), Catch::Contains("rank 1"));
  REQUIRE(engine.Holds(0, fixture.version(0)));
  REQUIRE(engine.replica(0).status().version->version == VersionId(0));
  REQUIRE(engine.replica(1).status().state == ReplicaState::kPoisoned);
  REQUIRE(engine.events(0).empty());
  REQUIRE_ERROR(engine.follower().Prepare(), absl::StatusCode::kFailedPrecondition,
                "rank 1 is poisoned");
  REQUIRE_OK(engine.follower().Load());
  REQUIRE(engine.Holds(fixture.version(1)));
}

TEST_CASE("A22 what an engine loaded by itself is identified, and caught up") {
  StoreFixture fixture;
  PublishMore(fixture, 4);
  Engine engine(fixture);
  REQUIRE_ERROR(engine.follower().Prepare(), absl::StatusCode::kFailedPrecondition,
                "rank 0 is unproven");
  for (const uint64_t version : {1, 4, 0, 3}) {
    engine.Write(fixture.version(version));
    for (uint32_t rank = 0; rank < 2; ++rank) REQUIRE_OK(engine.replica(rank).Invalidate("test"));
    const auto found = engine.follower().Identify();
    REQUIRE_OK(found);
    REQUIRE(*found == VersionId(version));
    REQUIRE(MustFollow(engine) == VersionId(4));
    REQUIRE(engine.Holds(fixture.version(4)));
  }
  // One rank of another version than the other, and one wrong bit.
  engine.bytes(0, "layer.1.codes")[69999] ^= 1;
  for (uint32_t rank = 0; rank < 2; ++rank) REQUIRE_OK(engine.replica(rank).Invalidate("test"));
  const auto unknown = engine.follower().Identify();
  REQUIRE_ERROR(unknown, absl::StatusCode::kDataLoss, "layer.1.codes");
  REQUIRE_THAT(std::string(unknown.status().message()), Catch::Contains("rank 0"));
  REQUIRE_ERROR(engine.follower().Prepare(), absl::StatusCode::kFailedPrecondition, "unproven");
}

TEST_CASE("A candidate is not followed until it is promoted") {
  StoreFixture fixture;
  Engine engine(fixture);
  REQUIRE_OK(engine.follower().Load());
  BeginOptions candidate;
  candidate.candidate = true;
  REQUIRE_OK(fixture.Publish(fixture.Changed(fixture.version(0), 0.02), candidate));
  REQUIRE(MustFollow(engine) == VersionId(0));
  REQUIRE_OK(fixture.store().Promote(VersionId(1)));
  REQUIRE(MustFollow(engine) == VersionId(1));
  REQUIRE(engine.Holds(fixture.version(1)));
}

}  // namespace
}  // namespace wstore::testing
