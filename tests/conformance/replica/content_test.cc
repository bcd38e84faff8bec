// Content that is not what was declared: nothing of it is written.
#include <algorithm>

#include "tests/conformance/replica/rig.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "wstore/layout_builder.h"

namespace wstore::testing {
namespace {

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

TEST_CASE("A18 a transport that delivers nothing, or half, applies nothing") {
  Rig rig(TestSeed("A18"));
  const Update update = rig.NewUpdate();
  REQUIRE_OK(rig.instance->Begin(update));
  REQUIRE_ERROR(rig.replica().FinishStaging(update.summary), kDataLoss,
                "0 of 8 from contributor 0");
  for (size_t i = 0; i < 4; ++i) REQUIRE_OK(rig.replica().StageChunk(update.chunks[i]));
  REQUIRE_ERROR(rig.replica().FinishStaging(update.summary), kDataLoss,
                "4 of 8 from contributor 0");
  REQUIRE_ERROR(rig.replica().Apply(update.header.transaction), kPrecondition, "staging");
  // Half of them, said to be all: the digest tells.
  UpdateSummary half = update.summary;
  half.contents[0].chunks = 4;
  REQUIRE_ERROR(rig.replica().FinishStaging(half), kDataLoss, "content of another digest");
  REQUIRE(rig.replica().status().state == ReplicaState::kReady);
  REQUIRE(rig.instance->Holds(rig.publisher.model()));
  REQUIRE(rig.instance->events(0).empty());
  // What is missing may still come, in any order.
  REQUIRE_OK(rig.instance->Begin(update));
  for (size_t i = 8; i-- > 1;) REQUIRE_OK(rig.replica().StageChunk(update.chunks[i]));
  REQUIRE_ERROR(rig.replica().FinishStaging(update.summary), kDataLoss, "7 of 8");
  REQUIRE_OK(rig.replica().StageChunk(update.chunks[0]));
  REQUIRE_OK(rig.instance->Finish(update));
  REQUIRE_OK(rig.instance->Apply(update));
  REQUIRE(rig.instance->Holds(update.result));
}

enum class ChunkFault { kLost, kCut, kFlipped, kForeign, kRefused };

// Sends the chunks of an update, of which the nth, and if `for_ever` all after it, come wrong.
void SendWrongly(Rig& rig, const Update& update, const Update& other, uint64_t nth,
                 ChunkFault fault, bool for_ever) {
  for (uint64_t i = 1; i <= update.chunks.size(); ++i) {
    const std::string& chunk = update.chunks[i - 1];
    const bool is_wrong = for_ever ? i >= nth : i == nth;
    if (!is_wrong) {
      REQUIRE_OK(rig.replica().StageChunk(chunk));
      continue;
    }
    std::string wrong = chunk;
    switch (fault) {
      case ChunkFault::kLost:
        continue;
      case ChunkFault::kCut:
        wrong.resize(wrong.size() - 1 - i);
        break;
      case ChunkFault::kFlipped:
        wrong[wrong.size() / 2] ^= 0x10;
        break;
      case ChunkFault::kForeign:
        wrong = other.chunks[i - 1];
        break;
      case ChunkFault::kRefused:
        rig.backend().Fail(BackendCall::kAcceptPiece, absl::InternalError("the device is busy"));
        break;
    }
    REQUIRE_FALSE(rig.replica().StageChunk(wrong).ok());
    rig.backend().Heal();
  }
}

TEST_CASE("replica content: the Nth chunk comes wrong, once and for ever") {
  const ChunkFault fault = GENERATE(ChunkFault::kLost, ChunkFault::kCut, ChunkFault::kFlipped,
                                    ChunkFault::kForeign, ChunkFault::kRefused);
  const bool for_ever = GENERATE(false, true);
  CAPTURE(fault, for_ever);
  Rig rig(TestSeed("replica Nth chunk"));
  for (uint64_t nth = 1; nth <= 9; ++nth) {
    CAPTURE(nth);
    const Update update = rig.NewUpdate();
    const Update other = rig.NewUpdate();
    REQUIRE(update.chunks.size() == 8);
    const bool is_clean = nth > update.chunks.size();
    REQUIRE_OK(rig.instance->Begin(update));
    SendWrongly(rig, update, other, nth, fault, for_ever);
    if (!is_clean) {
      REQUIRE_ERROR(rig.replica().FinishStaging(update.summary), kDataLoss, "send what is missing");
      REQUIRE_ERROR(rig.replica().Apply(update.header.transaction), kPrecondition, "staging");
      REQUIRE(rig.instance->Holds(rig.publisher.model()));
      REQUIRE(rig.replica().status().version == rig.publisher.head());
      if (for_ever) {
        REQUIRE_OK(rig.instance->Abort(update));
        REQUIRE(rig.replica().status().state == ReplicaState::kReady);
        continue;
      }
      REQUIRE_OK(rig.instance->StageChunks(update));
    }
    REQUIRE_OK(rig.instance->Finish(update));
    REQUIRE_OK(rig.instance->Apply(update));
    REQUIRE_OK(rig.instance->Commit(update));
    rig.publisher.Commit(update);
    REQUIRE(rig.instance->Holds(rig.publisher.model()));
  }
  REQUIRE(rig.instance->events(0).size() == rig.publisher.versions() - 1);
}

TEST_CASE("replica content: chunks doubled, changed, cut, foreign or late") {
  Rig rig(TestSeed("replica chunks"));
  const Update update = rig.NewUpdate();
  const Update other = rig.NewUpdate();
  Replica& replica = rig.replica();
  REQUIRE_ERROR(replica.StageChunk(update.chunks[0]), kPrecondition, "no update is pending");
  REQUIRE_OK(rig.instance->Begin(update));
  REQUIRE_OK(replica.StageChunk(update.chunks[0]));
  REQUIRE_OK(replica.StageChunk(update.chunks[0]));
  // The same key with other content.
  const Changes changes = RandomChanges(rig.manifest, 25, rig.random);
  std::vector<ContributorContent> ignored;
  const auto forged =
      EncodeChanges(rig.manifest, changes,
                    {.transaction = update.header.transaction, .tiles_per_chunk = 1}, &ignored);
  REQUIRE_ERROR(replica.StageChunk(forged[0]), absl::StatusCode::kAlreadyExists, "other content");
  REQUIRE_ERROR(replica.StageChunk(other.chunks[1]), kPrecondition,
                "transaction " + std::to_string(other.header.transaction.value()));
  const std::string& chunk = update.chunks[1];
  for (const size_t size : {size_t{0}, size_t{10}, chunk.size() / 2, chunk.size() - 1}) {
    REQUIRE_FALSE(replica.StageChunk(std::string_view(chunk).substr(0, size)).ok());
  }
  for (size_t i = 0; i < chunk.size(); i += 7) {
    std::string flipped = chunk;
    flipped[i] = static_cast<char>(flipped[i] ^ (1 << (i % 8)));
    REQUIRE_FALSE(replica.StageChunk(flipped).ok());
  }
  // A contributor that was not announced.
  const auto second =
      EncodeChanges(rig.manifest, changes,
                    {.transaction = update.header.transaction, .contributors = 2}, &ignored);
  REQUIRE_ERROR(replica.StageChunk(second.back()), kPrecondition, "announced with 1 contributors");
  for (size_t i = 1; i < 8; ++i) REQUIRE_OK(replica.StageChunk(update.chunks[i]));
  REQUIRE_OK(rig.instance->Finish(update));
  REQUIRE_OK(replica.StageChunk(update.chunks[3]));
  REQUIRE_OK(rig.instance->Apply(update));
  REQUIRE_OK(replica.StageChunk(update.chunks[3]));
  REQUIRE_OK(rig.instance->Commit(update));
  REQUIRE(rig.instance->Holds(update.result));
}

TEST_CASE("replica content: contributors that share tiles, and that claim an element twice") {
  std::mt19937_64 random(TestSeed("replica contributors"));
  const Manifest manifest =
      MakeManifest({{"a", Dtype::kBF16, {400, 400}}, {"b", Dtype::kU8, {3000}}});
  Publisher publisher(manifest, RandomModel(manifest, random));
  Instance instance(manifest, publisher.key(), {WholeLayout(manifest)}, {});
  instance.Load(publisher);
  const Update shared = publisher.Publish(RandomChanges(manifest, 120000, random), 3);
  REQUIRE_OK(instance.Run(shared));
  publisher.Commit(shared);
  REQUIRE(instance.Holds(shared.result));

  // Two sets of one contributor each, sent as if by two.
  const auto stage = [&](const Changes& first, const Changes& second) {
    Update update = publisher.Publish({}, 2);
    uint16_t contributor = 0;
    update.summary.contents.clear();
    for (const Changes* changes : {&first, &second}) {
      std::vector<ContributorContent> contents;
      for (const std::string& chunk : EncodeChanges(
               manifest, *changes, {.transaction = update.header.transaction}, &contents)) {
        const auto view = ChunkView::Parse(chunk, manifest);
        REQUIRE_OK(view);
        ChunkBuilder builder(manifest);
        for (const EncodedTile& tile : view->tiles()) builder.AddTile(tile);
        ChunkHeader header = view->header();
        header.key.contributor = contributor;
        update.chunks.push_back(builder.Finish(header));
      }
      update.summary.contents.push_back(contents[0]);
      ++contributor;
    }
    update.summary.declared.reset();
    REQUIRE_OK(instance.Begin(update));
    REQUIRE_OK(instance.StageChunks(update));
    const auto report = instance.replica(0).FinishStaging(update.summary);
    REQUIRE_OK(instance.Abort(update));
    return report.status();
  };
  REQUIRE_OK(stage({{{0, 70000}, 1}}, {{{0, 70001}, 1}}));
  REQUIRE_ERROR(stage({{{0, 70000}, 1}, {{0, 70001}, 1}}, {{{0, 70001}, 2}, {{1, 5}, 1}}), kInvalid,
                "element 70001 of tensor 'a' is changed by two contributors");
  REQUIRE(instance.Holds(publisher.model()));
}

TEST_CASE("replica content: alias groups want equal patches, and apply them once", "[small]") {
  std::mt19937_64 random(TestSeed("replica aliases"));
  const Manifest manifest = MakeManifest({{"embed", Dtype::kBF16, {90, 1000}},
                                          {"head", Dtype::kBF16, {90, 1000}},
                                          {"norm", Dtype::kBF16, {10}}});
  LayoutBuilder builder(manifest);
  builder.Place(builder.Tensor("embed"), builder.Buffer({"tied", Dtype::kBF16, {90, 1000}}));
  builder.Place(builder.Tensor("norm"), builder.Buffer({"norm", Dtype::kBF16, {10}}));
  builder.Alias({"embed", "head"});
  absl::StatusOr<Layout> layout = builder.Build(1);
  REQUIRE_OK(layout);
  Model base = RandomModel(manifest, random);
  base[1] = base[0];
  Publisher publisher(manifest, base);
  Instance instance(manifest, publisher.key(), {*layout}, {});
  instance.Load(publisher);
  Changes equal = RandomChanges(manifest, 700, random);
  std::erase_if(equal, [](const auto& change) { return change.first.first == 1; });
  for (const auto& [at, value] : Changes(equal)) {
    if (at.first == 0) equal[{1, at.second}] = value;
  }
  const Update update = publisher.Publish(equal, 2);
  REQUIRE_OK(instance.Run(update));
  publisher.Commit(update);
  REQUIRE(instance.Holds(publisher.model()));

  Changes unequal = equal;
  unequal[{1, 89999}] = 0x7fff;
  unequal[{0, 89999}] = 0x7ffe;
  REQUIRE_ERROR(instance.Stage(publisher.Publish(unequal)), kInvalid, "'embed' and 'head'");
  REQUIRE_ERROR(instance.Stage(publisher.Publish({{{1, 0}, 1}})), kInvalid, "'embed' and 'head'");
  REQUIRE_ERROR(instance.Stage(publisher.Publish({{{0, 0}, 1}})), kInvalid, "'embed' and 'head'");
  REQUIRE(instance.Holds(publisher.model()));
}

// Chunks with a tile of a tensor of `wanted`, by their bytes.
std::vector<std::string> Wanted(const Manifest& manifest, const TensorSet& wanted,
                                const std::vector<std::string>& chunks) {
  std::vector<std::string> some;
  for (const std::string& chunk : chunks) {
    const auto view = ChunkView::Parse(chunk, manifest);
    REQUIRE_OK(view);
    const auto tiles = view->tiles();
    if (std::any_of(tiles.begin(), tiles.end(),
                    [&](const EncodedTile& tile) { return wanted.Has(tile.place.tensor); })) {
      some.push_back(chunk);
    }
  }
  return some;
}

TEST_CASE("replica content: a part of the chunks, for ranks that hold a part of the tensors",
          "[small]") {
  std::mt19937_64 random(TestSeed("replica part"));
  std::vector<TensorSpec> specs = {{"embed", Dtype::kBF16, {90, 1000}},
                                   {"head", Dtype::kBF16, {90, 1000}}};
  for (int i = 0; i < 12; ++i) {
    specs.push_back({"layers." + std::to_string(10 + i), Dtype::kBF16, {90, 1000}});
  }
  const Manifest manifest = MakeManifest(specs);
  // The first rank has the tied pair and six layers, the second six.
  std::vector<Layout> layouts;
  for (TensorIndex rank = 0; rank < 2; ++rank) {
    LayoutBuilder builder(manifest);
    builder.Alias({"embed", "head"});
    for (TensorIndex i = rank == 0 ? 0 : 8; i < (rank == 0 ? 8u : 14u); ++i) {
      if (i == 1) continue;
      const std::string name = "b" + std::to_string(i);
      builder.Place(builder.Tensor(i), builder.Buffer({name, Dtype::kBF16, {90, 1000}}));
    }
    auto layout = builder.Build(1);
    REQUIRE_OK(layout);
    layouts.push_back(*std::move(layout));
  }
  const TensorSet held[] = {TensorsHeld(layouts[0]), TensorsHeld(layouts[1])};
  REQUIRE(held[0].ranges().size() == 1);
  REQUIRE((held[0].ranges()[0] == TensorRange{0, 8}));
  REQUIRE((held[1].ranges()[0] == TensorRange{8, 14}));
  Model base = RandomModel(manifest, random);
  base[1] = base[0];
  Publisher publisher(manifest, base);
  Instance instance(manifest, publisher.key(), layouts, {});
  instance.Load(publisher);
  for (const uint16_t contributors : {1, 2}) {
    Changes changes = RandomChanges(manifest, 3000, random);
    std::erase_if(changes, [](const auto& change) { return change.first.first == 1; });
    for (const auto& [at, value] : Changes(changes)) {
      if (at.first == 0) changes[{1, at.second}] = value;
    }
    Update update = publisher.Publish(changes, contributors);
    update.summary.is_partial = true;
    const auto stage = [&](uint32_t rank, size_t lost) {
      std::vector<std::string> chunks = Wanted(manifest, held[rank], update.chunks);
      REQUIRE(chunks.size() < update.chunks.size());
      if (lost < chunks.size()) chunks.erase(chunks.begin() + static_cast<ptrdiff_t>(lost));
      return instance.replica(rank).StageDeviceChunks(instance.Place(chunks));
    };
    // One of them is lost: no digest tells, but its other tensors do, or the sums.
    for (uint32_t loser = 0; loser < 2; ++loser) {
      REQUIRE_OK(instance.Begin(update));
      for (uint32_t rank = 0; rank < 2; ++rank) {
        REQUIRE_OK(stage(rank, rank == loser ? 2 * loser : SIZE_MAX));
      }
      REQUIRE_ERROR(instance.Finish(update), loser == 0 ? kInvalid : kDataLoss,
                    loser == 0 ? "'embed' and 'head'" : "layers.");
      REQUIRE_OK(instance.Abort(update));
    }
    REQUIRE(instance.Holds(publisher.model()));
    REQUIRE_OK(instance.Begin(update));
    for (uint32_t rank = 0; rank < 2; ++rank) REQUIRE_OK(stage(rank, SIZE_MAX));
    REQUIRE_OK(instance.Finish(update));
    REQUIRE_OK(instance.Apply(update));
    REQUIRE_OK(instance.Commit(update));
    publisher.Commit(update);
    REQUIRE(instance.Holds(publisher.model()));
    // The way back is in the history, and leads there without the others' chunks.
    Update back =
        publisher.Between(publisher.head().version, VersionId(0), ChangeReason::kRollback);
    REQUIRE_OK(instance.Begin(back));
    for (uint32_t rank = 0; rank < 2; ++rank) {
      REQUIRE_OK(instance.replica(rank).StageFromHistory(back.header.transaction));
    }
    REQUIRE_OK(instance.Finish(back));
    REQUIRE_OK(instance.Apply(back));
    REQUIRE_OK(instance.Commit(back));
    publisher.Commit(back);
    REQUIRE(instance.Holds(publisher.model()));
  }
}

TEST_CASE("replica content: a rank that is alone, and ignores tensors, judges what it holds",
          "[small]") {
  std::mt19937_64 random(TestSeed("replica part alone"));
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 8; ++i) {
    specs.push_back({"layers." + std::to_string(i), Dtype::kBF16, {90, 1000}});
  }
  const Manifest manifest = MakeManifest(specs);
  LayoutBuilder builder(manifest);
  for (TensorIndex i = 0; i < 8; ++i) {
    if (i < 3 || i > 5) {
      builder.Ignore(specs[i].name);
      continue;
    }
    builder.Place(builder.Tensor(i), builder.Buffer({specs[i].name, Dtype::kBF16, {90, 1000}}));
  }
  auto layout = builder.Build(1);
  REQUIRE_OK(layout);
  const TensorSet held = TensorsHeld(*layout);
  Publisher publisher(manifest, RandomModel(manifest, random));
  Instance instance(manifest, publisher.key(), {*layout}, {});
  instance.Load(publisher);
  Update update = publisher.Publish(RandomChanges(manifest, 3000, random));
  update.summary.is_partial = true;
  const std::vector<std::string> chunks = Wanted(manifest, held, update.chunks);
  REQUIRE(chunks.size() < update.chunks.size());
  Replica& replica = instance.replica(0);
  for (const bool is_lost : {true, false}) {
    REQUIRE_OK(instance.Begin(update));
    for (size_t i = is_lost ? 1 : 0; i < chunks.size(); ++i) {
      REQUIRE_OK(replica.StageChunk(chunks[i]));
    }
    const auto report = replica.FinishStaging(update.summary);
    if (is_lost) {
      REQUIRE_ERROR(report, kDataLoss, "tensor 'layers.3'");
      continue;
    }
    REQUIRE_OK(report);
    REQUIRE(report->approved);
  }
  REQUIRE_OK(instance.Apply(update));
  REQUIRE_OK(instance.Commit(update));
  REQUIRE(instance.Holds(update.result));
}

TEST_CASE("replica content: sums that were declared wrong") {
  Rig rig(TestSeed("replica declared"));
  for (const bool before : {true, false}) {
    Update update = rig.NewUpdate();
    Fingerprint& sum = before ? update.summary.declared->at(2).sums.before
                              : update.summary.declared->at(2).sums.after;
    sum.lanes[1] ^= 1;
    REQUIRE_ERROR(rig.instance->Stage(update), kDataLoss,
                  before ? "not those that the update was made for: tensor 't2'"
                         : "does not lead to the declared weights: tensor 't2'");
    REQUIRE(rig.replica().status().state == ReplicaState::kReady);
    // A tensor that is not declared at all.
    update = rig.NewUpdate();
    update.summary.declared->erase(update.summary.declared->begin() + 5);
    REQUIRE_ERROR(rig.instance->Stage(update), kDataLoss, "tensor 't5'");
  }
  // None declared: it is up to the caller.
  const Update update = rig.NewUpdate();
  UpdateSummary summary = update.summary;
  summary.declared.reset();
  REQUIRE_OK(rig.instance->Begin(update));
  REQUIRE_OK(rig.instance->StageChunks(update));
  REQUIRE_OK(rig.replica().FinishStaging(summary));
  REQUIRE(rig.replica().status().state == ReplicaState::kStaged);
  REQUIRE_ERROR(rig.replica().Apply(update.header.transaction), kPrecondition, "is staged");
  REQUIRE_OK(rig.replica().Approve(update.header.transaction));
  REQUIRE_OK(rig.replica().Apply(update.header.transaction));
  REQUIRE(rig.instance->Holds(update.result));
}

}  // namespace
}  // namespace wstore::testing
