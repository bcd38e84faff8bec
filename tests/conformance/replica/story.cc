#include "tests/conformance/replica/story.h"

#include <algorithm>
#include <utility>

#include "tests/support/catch.h"

namespace wstore::testing {
namespace {

std::vector<AliasGroup> AllAliases(const std::vector<Layout>& layouts) {
  std::vector<AliasGroup> aliases;
  for (const Layout& layout : layouts) {
    aliases.insert(aliases.end(), layout.aliases().begin(), layout.aliases().end());
  }
  return aliases;
}

Model TiedModel(const Manifest& manifest, const std::vector<AliasGroup>& aliases,
                std::mt19937_64& random) {
  Model model = RandomModel(manifest, random);
  for (const AliasGroup& group : aliases) {
    for (const TensorIndex member : group) model[member] = model[group[0]];
  }
  return model;
}

// The first of each group decides for all of it.
Changes Tied(const std::vector<AliasGroup>& aliases, Changes changes) {
  for (const AliasGroup& group : aliases) {
    for (size_t i = 1; i < group.size(); ++i) {
      std::erase_if(changes, [&](const auto& change) { return change.first.first == group[i]; });
      for (auto at = changes.lower_bound({group[0], 0});
           at != changes.end() && at->first.first == group[0]; ++at) {
        changes[{group[i], at->first.second}] = at->second;
      }
    }
  }
  return changes;
}

}  // namespace

Story::Story(std::mt19937_64& random, const Manifest& manifest, std::vector<Layout> layouts)
    : random_(random),
      manifest_(manifest),
      aliases_(AllAliases(layouts)),
      publisher_(manifest, TiedModel(manifest, aliases_, random)) {
  Instance::Options options;
  options.threads = 1 + static_cast<int>(Below(random, 3));
  options.undo_budget_bytes = Below(random, 2) * 200000;
  options.read_ahead_groups = 1 + Below(random, 20);
  options.wrap = [this](uint32_t, std::shared_ptr<MemoryBackend> inner) {
    backends_.push_back(std::make_shared<FaultyBackend>(std::move(inner)));
    return backends_.back();
  };
  instance_ = std::make_unique<Instance>(manifest_, publisher_.key(), std::move(layouts), options);
  instance_->Load(publisher_);
}

void Story::Step() {
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
                      Below(random_, 2) == 0 ? WriteFault::kRefused : WriteFault::kMisread, false);
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
  for (uint32_t rank = 0; rank < instance_->ranks(); ++rank) {
    REQUIRE(instance_->replica(rank).status().version == publisher_.head());
    REQUIRE(instance_->replica(rank).status().move == publisher_.move());
  }
}

void Story::Sleep() {
  for (uint32_t rank = 0; rank < instance_->ranks(); ++rank) {
    REQUIRE_OK(instance_->replica(rank).Suspend());
    REQUIRE_OK(instance_->replica(rank).Resume(instance_->buffers(rank)));
  }
  REQUIRE_OK(instance_->Prove(publisher_));
}

Update Story::NextUpdate() {
  const uint64_t known = publisher_.versions();
  if (known > 1 && Below(random_, 3) == 0) {
    return publisher_.Between(publisher_.head().version, VersionId(Below(random_, known)),
                              ChangeReason::kRollback);
  }
  const uint64_t count = std::vector<uint64_t>{1, 20, 1000, 20000}[Below(random_, 4)];
  return publisher_.Publish(Tied(aliases_, RandomChanges(manifest_, count, random_)),
                            static_cast<uint16_t>(1 + Below(random_, 3)));
}

// All ranks keep the same history, but for its budget; false: it is not there.
bool Story::StageBack(const Update& update) {
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

}  // namespace wstore::testing
