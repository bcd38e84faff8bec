#include "tests/conformance/replica/instance.h"

#include <algorithm>
#include <cstring>

#include "common/bytes.h"
#include "common/status_macros.h"
#include "tests/support/catch.h"
#include "wstore/layout_builder.h"

namespace wstore::testing {
namespace {

constexpr uint8_t kPadding = 0xA5;

}  // namespace

Instance::Instance(const Manifest& manifest, const FingerprintKey& key, std::vector<Layout> layouts,
                   Options options)
    : manifest_(manifest), device_(MakeTestDevice()) {
  std::vector<const Layout*> pointers;
  for (const Layout& layout : layouts) pointers.push_back(&layout);
  absl::StatusOr<RegionMap> regions = RegionMap::Create(manifest, pointers);
  REQUIRE_OK(regions);
  regions_ = std::make_shared<const RegionMap>(*std::move(regions));
  ranks_.resize(layouts.size());
  for (uint32_t i = 0; i < layouts.size(); ++i) {
    Rank& rank = ranks_[i];
    rank.layout = std::make_shared<const Layout>(std::move(layouts[i]));
    rank.buffers = NewBuffers(*rank.layout);
    rank.events = std::make_shared<std::vector<ChangeEvent>>();
    ReplicaOptions replica_options;
    replica_options.undo_budget_bytes = options.undo_budget_bytes;
    replica_options.stage_budget_bytes = options.stage_budget_bytes;
    replica_options.read_ahead_groups = options.read_ahead_groups;
    replica_options.threads = options.threads;
    replica_options.on_change = [events = rank.events](const ChangeEvent& event) {
      events->push_back(event);
    };
    replica_options.backend = device_->MakeBackend(options.threads);
    if (options.wrap) replica_options.backend = options.wrap(i, replica_options.backend);
    auto replica = Replica::Attach(manifest, key, {rank.layout, regions_, i}, rank.buffers,
                                   std::move(replica_options));
    REQUIRE_OK(replica);
    rank.replica = *std::move(replica);
  }
}

std::vector<LocalBuffer> Instance::NewBuffers(const Layout& layout) {
  std::vector<LocalBuffer> buffers;
  for (uint32_t i = 0; i < layout.buffers().size(); ++i) {
    const uint64_t size = layout.buffer_bytes(i);
    buffers.push_back({device_->Allocate(size), size});
    const std::vector<uint8_t> padding(size, kPadding);
    device_->Write(padding.data(), size, buffers.back().data);
  }
  return buffers;
}

std::vector<std::vector<uint8_t>> Instance::Picture(uint32_t rank, const Model& model) const {
  const Layout& layout = *ranks_[rank].layout;
  std::vector<std::vector<uint8_t>> picture;
  for (uint32_t i = 0; i < layout.buffers().size(); ++i) {
    picture.emplace_back(layout.buffer_bytes(i), kPadding);
  }
  for (const Placement& placement : layout.placements()) {
    const uint32_t width = manifest_.tensor(placement.tensor).element_bytes;
    for (const auto& [from, to] : ElementsOf(placement)) {
      std::memcpy(&picture[placement.buffer][to * width], &model[placement.tensor][from * width],
                  width);
    }
  }
  return picture;
}

void Instance::Write(const Model& model) {
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto picture = Picture(rank, model);
    for (size_t i = 0; i < picture.size(); ++i) {
      device_->Write(picture[i].data(), picture[i].size(), ranks_[rank].buffers[i].data);
    }
  }
}

void Instance::Load(const Publisher& publisher) {
  Write(publisher.model());
  REQUIRE_OK(Prove(publisher));
}

absl::Status Instance::Prove(const Publisher& publisher) {
  std::vector<AuditReport> reports;
  std::vector<std::vector<Fingerprint>> sums;
  for (Rank& rank : ranks_) {
    ASSIGN_OR_RETURN(AuditReport report, rank.replica->Audit());
    sums.push_back(report.cells);
    reports.push_back(std::move(report));
  }
  const std::vector<SumFault> faults = JudgeSums(*regions_, sums, publisher.sums());
  if (!faults.empty()) return absl::DataLossError(ToString(faults[0], manifest_));
  for (size_t i = 0; i < ranks_.size(); ++i) {
    RETURN_IF_ERROR(ranks_[i].replica->Adopt(reports[i], publisher.head(), publisher.move()));
  }
  return absl::OkStatus();
}

std::vector<uint8_t> Instance::ReadBuffer(uint32_t rank, uint32_t buffer) {
  const LocalBuffer& local = ranks_[rank].buffers[buffer];
  std::vector<uint8_t> bytes(local.size_bytes);
  device_->Read(local.data, local.size_bytes, bytes.data());
  return bytes;
}

bool Instance::Holds(uint32_t rank, const Model& model) {
  const auto picture = Picture(rank, model);
  for (uint32_t i = 0; i < picture.size(); ++i) {
    if (ReadBuffer(rank, i) != picture[i]) return false;
  }
  return true;
}

bool Instance::Holds(const Model& model) {
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!Holds(rank, model)) return false;
  }
  return true;
}

void Instance::Flip(uint32_t rank, uint32_t buffer, uint64_t byte, uint8_t bits) {
  std::vector<uint8_t> bytes = ReadBuffer(rank, buffer);
  bytes[byte] ^= bits;
  device_->Write(bytes.data(), bytes.size(), ranks_[rank].buffers[buffer].data);
}

absl::Status Instance::ForEach(const std::function<absl::Status(Replica&)>& step) {
  for (Rank& rank : ranks_) RETURN_IF_ERROR(step(*rank.replica));
  return absl::OkStatus();
}

absl::Status Instance::Begin(const Update& update) {
  return ForEach([&](Replica& replica) { return replica.BeginUpdate(update.header).status(); });
}

std::vector<DeviceChunk> Instance::Place(absl::Span<const std::string> chunks) {
  constexpr uint64_t kAlignment = 16;
  uint64_t size = 0;
  for (const std::string& chunk : chunks) size += AlignUp(chunk.size() + 1, kAlignment);
  if (size > room_bytes_) {
    room_ = static_cast<uint8_t*>(device_->Allocate(2 * size));
    room_bytes_ = 2 * size;
  }
  std::vector<DeviceChunk> placed;
  uint64_t at = 0;
  for (const std::string& chunk : chunks) {
    placed.push_back({room_ + at, chunk.size()});
    device_->Write(reinterpret_cast<const uint8_t*>(chunk.data()), chunk.size(), room_ + at);
    at += AlignUp(chunk.size() + 1, kAlignment);
  }
  return placed;
}

absl::Status Instance::StageChunks(const Update& update) {
  if (++stagings_ % 2 == 0) {
    const std::vector<DeviceChunk> placed = Place(update.chunks);
    return ForEach([&](Replica& replica) { return replica.StageDeviceChunks(placed); });
  }
  return ForEach([&](Replica& replica) {
    for (const std::string& chunk : update.chunks) RETURN_IF_ERROR(replica.StageChunk(chunk));
    return absl::OkStatus();
  });
}

absl::Status Instance::Finish(const Update& update) {
  std::vector<StagedReport> reports;
  for (Rank& rank : ranks_) {
    ASSIGN_OR_RETURN(StagedReport report, rank.replica->FinishStaging(update.summary));
    reports.push_back(std::move(report));
  }
  std::vector<absl::Span<const CellSums>> cells;
  for (const StagedReport& report : reports) {
    TouchedSums total;
    for (const CellSums& cell : report.cells) total += cell.sums;
    REQUIRE(total == report.total);
    cells.push_back(report.cells);
  }
  RETURN_IF_ERROR(JudgeTouched(*regions_, manifest_, cells, *update.summary.declared));
  return ForEach([&](Replica& replica) { return replica.Approve(update.header.transaction); });
}

absl::Status Instance::Stage(const Update& update) {
  RETURN_IF_ERROR(Begin(update));
  RETURN_IF_ERROR(StageChunks(update));
  return Finish(update);
}

absl::Status Instance::Apply(const Update& update) {
  return ForEach([&](Replica& replica) { return replica.Apply(update.header.transaction); });
}

absl::Status Instance::Commit(const Update& update) {
  return ForEach([&](Replica& replica) { return replica.Commit(update.header.transaction); });
}

absl::Status Instance::Abort(const Update& update) {
  return ForEach([&](Replica& replica) { return replica.Abort(update.header.transaction); });
}

absl::Status Instance::Run(const Update& update) {
  RETURN_IF_ERROR(Stage(update));
  RETURN_IF_ERROR(Apply(update));
  return Commit(update);
}

Layout WholeLayout(const Manifest& manifest, uint64_t generation) {
  LayoutBuilder builder(manifest);
  for (TensorIndex i = 0; i < manifest.size(); ++i) {
    builder.Place(builder.Tensor(i), builder.Buffer(manifest.tensor(i).spec));
  }
  absl::StatusOr<Layout> layout = builder.Build(generation);
  REQUIRE_OK(layout);
  return *std::move(layout);
}

}  // namespace wstore::testing
