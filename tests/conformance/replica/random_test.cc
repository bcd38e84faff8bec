// Random layouts, patch sets and sequences of everything that can happen, against the dense
// reference.
#include <algorithm>

#include "tests/conformance/replica/faulty_backend.h"
#include "tests/conformance/replica/instance.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "wstore/layout_builder.h"

namespace wstore::testing {
namespace {

Manifest RandomManifest(std::mt19937_64& random) {
  constexpr Dtype kDtypes[] = {Dtype::kBF16, Dtype::kF8E4M3, Dtype::kF32, Dtype::kI64};
  std::vector<TensorSpec> specs;
  const uint64_t count = 1 + Below(random, 4);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t rows = 1 + Below(random, i == 0 ? 300 : 30);
    specs.push_back({"t" + std::to_string(i),
                     kDtypes[Below(random, 4)],
                     {rows, 4 * (1 + Below(random, i == 0 ? 70 : 10))}});
  }
  return MakeManifest(specs);
}

// Places `from` in a buffer of its own: as it is, padded, transposed, or with its rows spread.
void PlaceAnyhow(std::mt19937_64& random, LayoutBuilder& builder, const StridedView& from,
                 Dtype dtype) {
  static uint64_t number = 0;
  const std::string name = "buffer" + std::to_string(number++);
  const uint64_t rows = from.count(0);
  const uint64_t columns = from.count(1);
  switch (Below(random, 4)) {
    case 0:
      return builder.Place(from, builder.Buffer({name, dtype, {rows, columns}}));
    case 1:
      return builder.Place(from, builder.Buffer({name, dtype, {rows + 3, columns + 5}})
                                     .Slice(0, 2, 2 + rows)
                                     .Slice(1, 1, 1 + columns));
    case 2:
      return builder.Place(from.Permute({1, 0}), builder.Buffer({name, dtype, {columns, rows}}));
    default:
      return builder.Place(
          from, builder.Buffer({name, dtype, {2 * rows, columns}}).Slice(0, 1, 2 * rows, 2));
  }
}

// Cuts every tensor among the ranks by rows or by columns, or gives it to all; some twice.
std::vector<Layout> RandomLayouts(std::mt19937_64& random, const Manifest& manifest) {
  const uint64_t ranks = 1 + Below(random, 4);
  std::vector<LayoutBuilder> builders(ranks, LayoutBuilder(manifest));
  for (TensorIndex tensor = 0; tensor < manifest.size(); ++tensor) {
    const uint64_t way = Below(random, 4);
    const Dtype dtype = manifest.tensor(tensor).spec.dtype;
    for (uint64_t rank = 0; rank < ranks; ++rank) {
      LayoutBuilder& builder = builders[rank];
      const StridedView whole = builder.Tensor(tensor);
      if (way < 2) {
        const uint64_t count = whole.count(way);
        const uint64_t begin = count * rank / ranks;
        const uint64_t end = count * (rank + 1) / ranks;
        if (begin < end) PlaceAnyhow(random, builder, whole.Slice(way, begin, end), dtype);
      } else {
        PlaceAnyhow(random, builder, whole, dtype);
        if (way == 3 && Below(random, 2) == 0) PlaceAnyhow(random, builder, whole, dtype);
      }
    }
  }
  std::vector<Layout> layouts;
  for (LayoutBuilder& builder : builders) {
    absl::StatusOr<Layout> layout = builder.Build(1);
    REQUIRE_OK(layout);
    layouts.push_back(*std::move(layout));
  }
  return layouts;
}

class Story {
 public:
  explicit Story(std::mt19937_64& random)
      : random_(random),
        manifest_(RandomManifest(random)),
        publisher_(manifest_, RandomModel(manifest_, random)) {
    Instance::Options options;
    options.threads = 1 + static_cast<int>(Below(random, 3));
    options.undo_budget_bytes = Below(random, 2) * 200000;
    options.wrap = [this](uint32_t, std::shared_ptr<MemoryBackend> inner) {
      backends_.push_back(std::make_shared<FaultyBackend>(std::move(inner)));
      return backends_.back();
    };
    instance_ = std::make_unique<Instance>(manifest_, publisher_.key(),
                                           RandomLayouts(random, manifest_), options);
    instance_->Load(publisher_);
  }

  void Step() {
    const Update update = NextUpdate();
    if (Below(random_, 3) == 0 && StageBack(update)) {
      REQUIRE_OK(instance_->Finish(update));
    } else {
      Update shuffled = update;
      std::shuffle(shuffled.chunks.begin(), shuffled.chunks.end(), random_);
      if (!shuffled.chunks.empty()) shuffled.chunks.push_back(shuffled.chunks[0]);
      REQUIRE_OK(instance_->Begin(shuffled));
      REQUIRE_OK(instance_->StageChunks(shuffled));
      REQUIRE_OK(instance_->Finish(shuffled));
    }
    REQUIRE(instance_->Holds(publisher_.model()));

    const bool fails = Below(random_, 3) == 0;
    FaultyBackend& backend = *backends_[Below(random_, backends_.size())];
    if (fails) {
      backend.FailWrite(1 + Below(random_, 3),
                        Below(random_, 2) == 0 ? WriteFault::kRefused : WriteFault::kMisread,
                        false);
    }
    const absl::Status applied = instance_->Apply(update);
    backend.Heal();
    if (applied.ok()) REQUIRE(instance_->Holds(update.result));
    if (!applied.ok() || Below(random_, 4) == 0) {
      REQUIRE_OK(instance_->Abort(update));
      REQUIRE(instance_->Holds(publisher_.model()));
      return;
    }
    REQUIRE_OK(instance_->Commit(update));
    publisher_.Commit(update);
    REQUIRE(instance_->Holds(publisher_.model()));
    ++versions_;
    for (uint32_t rank = 0; rank < instance_->ranks(); ++rank) {
      REQUIRE(instance_->replica(rank).status().version == publisher_.head());
      REQUIRE(instance_->replica(rank).status().move == publisher_.move());
    }
  }

  // The weights leave and come back as they were.
  void Sleep() {
    for (uint32_t rank = 0; rank < instance_->ranks(); ++rank) {
      REQUIRE_OK(instance_->replica(rank).Suspend());
      REQUIRE_OK(instance_->replica(rank).Resume(instance_->buffers(rank)));
    }
    REQUIRE_OK(instance_->Prove(publisher_));
  }

 private:
  Update NextUpdate() {
    const uint64_t known = publisher_.versions();
    if (known > 1 && Below(random_, 3) == 0) {
      return publisher_.Between(publisher_.head().version, VersionId(Below(random_, known)),
                                ChangeReason::kRollback);
    }
    const uint64_t count = std::vector<uint64_t>{1, 20, 1000, 20000}[Below(random_, 4)];
    return publisher_.Publish(RandomChanges(manifest_, count, random_),
                              static_cast<uint16_t>(1 + Below(random_, 3)));
  }

  // All ranks keep the same history, but for its budget; false: it is not there.
  bool StageBack(const Update& update) {
    for (uint32_t rank = 0; rank < instance_->ranks(); ++rank) {
      const std::vector<VersionName> history = instance_->replica(rank).history();
      if (std::none_of(history.begin(), history.end(),
                       [&](const VersionName& name) { return name.version == update.header.to; })) {
        return false;
      }
    }
    REQUIRE_OK(instance_->Begin(update));
    for (uint32_t rank = 0; rank < instance_->ranks(); ++rank) {
      REQUIRE_OK(instance_->replica(rank).StageFromHistory(update.header.transaction));
    }
    return true;
  }

  std::mt19937_64& random_;
  const Manifest manifest_;
  Publisher publisher_;
  std::vector<std::shared_ptr<FaultyBackend>> backends_;
  std::unique_ptr<Instance> instance_;
  uint64_t versions_ = 0;
};

TEST_CASE("replica: random stories end as the dense reference says") {
  std::mt19937_64 random(TestSeed("replica stories"));
  for (int i = 0; i < 8; ++i) {
    Story story(random);
    for (int step = 0; step < 6; ++step) {
      if (Below(random, 8) == 0) story.Sleep();
      story.Step();
    }
  }
}

}  // namespace
}  // namespace wstore::testing
