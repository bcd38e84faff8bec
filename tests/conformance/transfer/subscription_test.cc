// Ranks that hold a part of the tensors, and receive what they hold.
#include <algorithm>
#include <utility>
#include <vector>

#include "store/client/transfer_messages.h"
#include "tests/conformance/transfer/rig.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "wstore/layout_builder.h"

namespace wstore::testing {
namespace {

// An eighth of a frame is small; no chunk is, but the last.
constexpr uint64_t kFrameBytes = 8 << 10;
constexpr uint64_t kChunkBytes = 1100;

// Each rank has a stretch of the tensors, whole, as with experts or layers.
Layout StretchOf(const Manifest& manifest, uint32_t rank, uint32_t ranks, bool ignores_others) {
  LayoutBuilder builder(manifest);
  uint64_t elements = 0;
  for (TensorIndex i = 0; i < manifest.size(); ++i) {
    const TensorSpec& spec = manifest.tensor(i).spec;
    const uint64_t size = manifest.tensor(i).elements;
    if ((elements + size / 2) * ranks / manifest.elements() == rank) {
      builder.Place(builder.Tensor(i), builder.Buffer({spec.name, spec.dtype, spec.shape}));
    } else if (ignores_others) {
      builder.Ignore(spec.name);
    }
    elements += size;
  }
  auto layout = builder.Build(1);
  REQUIRE_OK(layout);
  return *std::move(layout);
}

bool HasTileOf(const Manifest& manifest, const std::string& chunk, const TensorSet& wanted) {
  const auto view = ChunkView::Parse(chunk, manifest);
  REQUIRE_OK(view);
  const auto tiles = view->tiles();
  return std::any_of(tiles.begin(), tiles.end(),
                     [&](const EncodedTile& tile) { return wanted.Has(tile.place.tensor); });
}

// What a rank that holds `wanted` has to receive of a publish.
uint64_t ShareOf(const Manifest& manifest, const OpenPublish& publish, const TensorSet& wanted) {
  uint64_t share = 0;
  for (const auto& chunks : publish.chunks) {
    for (const std::string& chunk : chunks) {
      if (HasTileOf(manifest, chunk, wanted)) share += chunk.size();
    }
  }
  return share;
}

uint64_t Received(TestRank& rank) {
  const WorkerStatus status = rank.worker().status();
  return status.carried_bytes + status.served_bytes;
}

struct PartRig : TransferRig {
  explicit PartRig(const char* what, uint32_t contributors = 1)
      : TransferRig(TestSeed(what), contributors, kFrameBytes),
        part(served, "part", 4),
        whole(served, "whole", 2) {
    served.chunk_bytes = kChunkBytes;
    for (uint32_t i = 0; i < part.ranks.size(); ++i) {
      part.ranks[i]->SetLayout(
          std::make_shared<const Layout>(StretchOf(served.manifest(), i, 4, false)));
    }
    for (TestInstance* instance : fleet) Reach(*instance);
    for (auto& rank : part.ranks) rank->options.subscribes = true;
    for (TestInstance* instance : fleet) instance->Start();
    for (TestInstance* instance : fleet) instance->AwaitServing(0);
    AwaitReached(6);
  }
  OpenPublish Begin(double density = 0.2) {
    const uint64_t head = served.versions.rbegin()->first;
    return TransferRig::Begin(head, served.Changed(served.versions.at(head), density));
  }
  // The right chunks are in the store; all serve what they make.
  void RequireCommits(OpenPublish& publish) {
    for (uint32_t i = 0; i < leads.size(); ++i) REQUIRE(publish.Put(i).ok());
    v1::Decision decision;
    const grpc::Status status = publish.CommitAll(&decision);
    INFO(status.error_message());
    REQUIRE(status.ok());
    REQUIRE(decision.outcome() == v1::OUTCOME_COMMITTED);
    RequireServe(decision.version().version());
  }
  void RequireServe(uint64_t version) {
    for (TestInstance* instance : fleet) {
      instance->AwaitServing(version);
      instance->RequireHolds(served.versions.at(version));
      instance->RequireNoFault();
      for (auto& rank : instance->ranks) {
        REQUIRE(rank->log().find("event=out") == std::string::npos);
      }
    }
  }
  TensorSet Held(size_t rank) { return TensorsHeld(part.ranks[rank]->layout()); }

  TestInstance part;
  TestInstance whole;
  std::vector<TestInstance*> fleet = {&part, &whole};
};

}  // namespace

TEST_CASE("transfer: ranks that subscribe receive what they hold, and end as those that do not") {
  for (const uint32_t contributors : {1, 2}) {
    PartRig rig("transfer subscription", contributors);
    uint64_t all = 0;
    std::vector<uint64_t> shares(4);
    for (int i = 0; i < 3; ++i) {
      OpenPublish publish = rig.Begin();
      all += publish.size_bytes();
      for (size_t rank = 0; rank < 4; ++rank) {
        shares[rank] += ShareOf(rig.served.manifest(), publish, rig.Held(rank));
      }
      for (uint32_t from = 0; from < contributors; ++from) {
        REQUIRE_OK(rig.Deliver(publish, publish.chunks[from], from));
      }
      rig.RequireCommits(publish);
    }
    for (size_t rank = 0; rank < 4; ++rank) {
      INFO("rank " << rank << ": " << shares[rank] << " of " << all);
      REQUIRE(shares[rank] < all * 3 / 4);
      REQUIRE(Received(*rig.part.ranks[rank]) == shares[rank]);
      const uint64_t served = rig.part.ranks[rank]->worker().status().served_bytes;
      REQUIRE(served == (rig.transport.has_port() ? 0 : shares[rank]));
    }
    for (auto& rank : rig.whole.ranks) REQUIRE(Received(*rank) == all);
    // The server is told with the next report.
    REQUIRE(WaitUntil([&] {
      const auto workers = rig.served.Workers();
      const v1::Worker& worker = workers.at({"part", 1});
      return worker.carried_bytes() + worker.served_bytes() == shares[1];
    }));
    v1::Decision decision;
    REQUIRE(rig.served.Rollback("v1", &decision).ok());
    rig.RequireServe(1);
    // One that was away goes the way from the base, of which it takes what it holds.
    rig.part.Restart(2, [](WorkerOptions& options) { options.subscribes = true; });
    rig.RequireServe(1);
  }
}

TEST_CASE("transfer: a chunk that comes damaged is fetched by those who want it") {
  PartRig rig("transfer subscription damage");
  if (!rig.transport.has_port()) return;  // the service refuses it
  for (size_t victim = 0; victim < 4; ++victim) {
    // Of the chunks that one rank alone wants, if there is one.
    OpenPublish publish = rig.Begin();
    const Manifest& manifest = rig.served.manifest();
    std::vector<std::string> chunks = publish.chunks[0];
    std::vector<bool> is_hit(4);
    for (std::string& chunk : chunks) {
      if (!HasTileOf(manifest, chunk, rig.Held(victim))) continue;
      for (size_t rank = 0; rank < 4; ++rank) {
        is_hit[rank] = HasTileOf(manifest, chunk, rig.Held(rank));
      }
      chunk[chunk.size() / 2] ^= 1;
      break;
    }
    REQUIRE(is_hit[victim]);
    std::vector<uint64_t> before;
    for (auto& rank : rig.part.ranks) before.push_back(rank->worker().status().served_bytes);
    REQUIRE_OK(rig.Send(publish.transaction, chunks, 0, &publish.chunks[0]));
    rig.RequireCommits(publish);
    for (size_t rank = 0; rank < 4; ++rank) {
      INFO("rank " << rank << " of " << victim);
      const uint64_t served = rig.part.ranks[rank]->worker().status().served_bytes - before[rank];
      REQUIRE(served == (is_hit[rank] ? ShareOf(manifest, publish, rig.Held(rank)) : 0));
    }
    rig.AwaitReached(6);
  }
  // Frames that do not come are missed by all, since those for others are counted too.
  OpenPublish publish = rig.Begin();
  std::vector<std::string> half = publish.chunks[0];
  half.resize(half.size() / 2);
  REQUIRE_OK(rig.Send(publish.transaction, half));
  rig.RequireCommits(publish);
}

TEST_CASE("transfer: a rank that is alone, and ignores tensors, may subscribe") {
  TransferRig rig(TestSeed("transfer subscription alone"), 1, kFrameBytes);
  rig.served.chunk_bytes = kChunkBytes;
  TestInstance alone(rig.served, "alone", 1);
  const auto layout = std::make_shared<const Layout>(StretchOf(rig.served.manifest(), 1, 4, true));
  alone.ranks[0]->SetLayout(layout);
  alone.ranks[0]->options.subscribes = true;
  rig.Reach(alone);
  alone.Start();
  alone.AwaitServing(0);
  rig.AwaitReached(1);
  ServedModel& served = rig.served;
  uint64_t share = 0;
  for (uint64_t from = 0; from < 2; ++from) {
    OpenPublish publish = rig.Begin(from, served.Changed(served.versions.at(from), 0.2));
    share += ShareOf(served.manifest(), publish, TensorsHeld(*layout));
    REQUIRE_OK(rig.Deliver(publish, publish.chunks[0]));
    REQUIRE(publish.Put().ok());
    v1::Decision decision;
    const grpc::Status status = publish.Commit(&decision);
    INFO(status.error_message());
    REQUIRE(status.ok());
    const uint64_t version = decision.version().version();
    alone.AwaitServing(version);
    NaiveTensors gathered = served.versions.at(version);
    for (auto& [name, tensor] : gathered) tensor.bytes.assign(tensor.bytes.size(), '\0');
    std::map<std::string, std::vector<bool>> covered;
    alone.ranks[0]->GatherInto(&gathered, &covered);
    REQUIRE(!covered.empty());
    for (const auto& [name, seen] : covered) {
      REQUIRE((gathered.at(name).bytes == served.versions.at(version).at(name).bytes));
    }
  }
  REQUIRE(Received(*alone.ranks[0]) == share);
}

namespace {

// Chunks of an open publish, `wanted` of them or as many as come in 300 ms.
grpc::Status ReadSome(ServedModel& served, const OpenPublish& publish,
                      const v1::TensorRanges& tensors, uint64_t skip, size_t wanted,
                      std::vector<std::string>* chunks) {
  v1::ReadContentRequest request;
  request.set_transaction(publish.transaction.value());
  request.add_skip_chunks(skip);
  *request.mutable_tensors() = tensors;
  const auto context = ServedModel::Context();
  if (wanted == SIZE_MAX) context->set_deadline(std::chrono::system_clock::now() + 300ms);
  const auto stream = served.stub->ReadContent(context.get(), request);
  for (v1::ReadContentResponse response; chunks->size() < wanted && stream->Read(&response);) {
    REQUIRE(!response.chunk().empty());
    chunks->push_back(response.chunk());
  }
  if (chunks->size() == wanted) context->TryCancel();
  return stream->Finish();
}

v1::TensorRanges Ranges(const std::vector<TensorRange>& list) {
  v1::TensorRanges ranges;
  for (const TensorRange& range : list) {
    ranges.add_begin(range.begin);
    ranges.add_end(range.end);
  }
  return ranges;
}

}  // namespace

TEST_CASE("transfer: chunks of some tensors are read from the service, and on after a break") {
  ServedModel served(TestSeed("transfer subscription read"));
  served.chunk_bytes = kChunkBytes;
  OpenPublish::Options how;
  how.is_carried = false;
  OpenPublish publish(served, 0, served.Changed(served.versions.at(0), 0.2), how);
  REQUIRE(publish.Put().ok());
  const Manifest& manifest = served.manifest();
  const auto size = static_cast<TensorIndex>(manifest.size());
  for (const auto& list : std::vector<std::vector<TensorRange>>{
           {{0, 1}}, {{size - 1, size}}, {{2, 5}, {7, 8}, {size / 2, size / 2 + 3}}}) {
    const auto set = TensorSet::Create(list, size);
    REQUIRE_OK(set);
    std::vector<std::string> expected;
    for (const std::string& chunk : publish.chunks[0]) {
      if (HasTileOf(manifest, chunk, *set)) expected.push_back(chunk);
    }
    REQUIRE(!expected.empty());
    REQUIRE(expected.size() < publish.chunks[0].size());
    for (size_t skip = 0; skip < expected.size(); ++skip) {
      std::vector<std::string> chunks;
      ReadSome(served, publish, Ranges(list), skip, expected.size() - skip, &chunks);
      REQUIRE((chunks == std::vector<std::string>(expected.begin() + skip, expected.end())));
    }
    std::vector<std::string> chunks;
    const grpc::Status status =
        ReadSome(served, publish, Ranges(list), expected.size(), SIZE_MAX, &chunks);
    REQUIRE(status.error_code() == grpc::DEADLINE_EXCEEDED);
    REQUIRE(chunks.empty());
  }
}

TEST_CASE("transfer: what is no set of tensors is refused") {
  ServedModel served(TestSeed("transfer subscription hostile"));
  OpenPublish::Options how;
  how.is_carried = false;
  OpenPublish publish(served, 0, served.Changed(served.versions.at(0), 0.2), how);
  const auto size = static_cast<TensorIndex>(served.manifest().size());
  std::vector<v1::TensorRanges> hostile = {
      Ranges({}),
      Ranges({{0, 0}}),
      Ranges({{3, 2}}),
      Ranges({{0, 2}, {2, 4}}),
      Ranges({{4, 6}, {0, 2}}),
      Ranges({{0, size + 1}}),
      Ranges({{0, 2}, {UINT32_MAX - 1, UINT32_MAX}}),
  };
  hostile.push_back(Ranges({{0, 2}}));
  hostile.back().add_begin(5);
  v1::TensorRanges& many = hostile.emplace_back();
  for (size_t i = 0; i <= kMaxTensorRanges; ++i) {
    many.add_begin(static_cast<uint32_t>(2 * i));
    many.add_end(static_cast<uint32_t>(2 * i + 1));
  }
  for (const v1::TensorRanges& ranges : hostile) {
    INFO(ranges.ShortDebugString().substr(0, 200));
    std::vector<std::string> chunks;
    const grpc::Status status = ReadSome(served, publish, ranges, 0, SIZE_MAX, &chunks);
    REQUIRE(status.error_code() == grpc::INVALID_ARGUMENT);
    REQUIRE(chunks.empty());
    REQUIRE_ERROR(wire::FromProto(ranges, size), absl::StatusCode::kInvalidArgument, "ranges");
  }
}

}  // namespace wstore::testing
