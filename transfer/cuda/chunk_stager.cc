#include "transfer/cuda/chunk_stager.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "common/parallel.h"
#include "common/status_macros.h"
#include "transfer/cuda/cell_tables.h"
#include "transfer/cuda/stage_kernels.h"

namespace wstore::cuda {
namespace {

// Of one turn. They bound the tables: by 64 bytes for each KiB, and by some 80 for each job.
constexpr uint64_t kBatchBytes = 256 << 20;
constexpr size_t kBatchChunks = 512;
constexpr uint64_t kRoundJobs = 256 << 10;

constexpr int kMostThreads = 8;

bool HasChunkSize(uint64_t size) {
  return size >= kChunkHeaderBytes && size <= kChunkMaxBytes && size % kTileAlignment == 0;
}

}  // namespace

template <typename T>
absl::Status ChunkStager::GrowDevice(uint64_t count, DeviceBuffer<T>* buffer) {
  if (count <= buffer->count()) return absl::OkStatus();
  ASSIGN_OR_RETURN(*buffer, DeviceBuffer<T>::Create(count + count / 4, memory_, stream_));
  return absl::OkStatus();
}

// Freeing pinned memory waits for the device, on which a collective may wait for a peer that stands
// still. So what has been outgrown stays: twice as much as is in use, at most.
template <typename T>
absl::Status ChunkStager::GrowPinned(uint64_t count, PinnedBuffer<T>* buffer) {
  if (count <= buffer->count()) return absl::OkStatus();
  ASSIGN_OR_RETURN(PinnedBuffer<T> made, PinnedBuffer<T>::Create(count + count / 2));
  outgrown_.push_back(std::make_shared<PinnedBuffer<T>>(std::move(*buffer)));
  *buffer = std::move(made);
  return absl::OkStatus();
}

template <typename T>
absl::Status ChunkStager::Grow(uint64_t count, Table<T>* table) {
  RETURN_IF_ERROR(GrowDevice(count, &table->device));
  return GrowPinned(count, &table->host);
}

absl::Status ChunkStager::UsePlan(const std::shared_ptr<const Plan>& plan) {
  if (plan_ == plan) return absl::OkStatus();
  plan_ = nullptr;
  const std::vector<CellEntry> entries = MakeCellEntries(*plan, {});
  ASSIGN_OR_RETURN(cells_, DeviceBuffer<CellEntry>::Create(entries.size(), memory_, stream_));
  RETURN_IF_ERROR(CopyAsync(entries.data(), cells_.get(), entries.size(), stream_));
  RETURN_IF_ERROR(Synchronize(stream_));
  plan_ = plan;
  return absl::OkStatus();
}

absl::Status ChunkStager::LaunchCheck(absl::Span<Item> items) {
  uint64_t sums = 0;
  uint32_t pieces = 0;
  for (const Item& item : items) pieces += (item.size + kPieceBytes - 1) / kPieceBytes;
  RETURN_IF_ERROR(Grow(items.size(), &sources_));
  RETURN_IF_ERROR(Grow(pieces, &source_pieces_));
  RETURN_IF_ERROR(GrowPinned(items.size() * kHeadBytes, &heads_));
  RETURN_IF_ERROR(GrowPinned(items.size(), &verdicts_));
  pieces = 0;
  for (uint32_t i = 0; i < items.size(); ++i) {
    const auto size = static_cast<uint32_t>(items[i].size);
    sources_.host[i] = {items[i].data, sums, size, 0};
    sums += (size + 1023) / 1024 * 8;
    for (uint32_t at = 0; at * kPieceBytes < size; ++at) source_pieces_.host[pieces++] = {i, at};
  }
  RETURN_IF_ERROR(GrowDevice(sums, &block_sums_));
  RETURN_IF_ERROR(CopyAsync(sources_.host.get(), sources_.device.get(), items.size(), stream_));
  RETURN_IF_ERROR(
      CopyAsync(source_pieces_.host.get(), source_pieces_.device.get(), pieces, stream_));
  tables_ = {};
  tables_.cells = cells_.get();
  tables_.sources = sources_.device.get();
  tables_.pieces = source_pieces_.device.get();
  tables_.block_sums = block_sums_.get();
  tables_.heads = heads_.get();
  tables_.verdicts = verdicts_.get();
  tables_.source_count = static_cast<uint32_t>(items.size());
  tables_.piece_count = pieces;
  return LaunchStageCheck(tables_, stream_);
}

absl::Status ChunkStager::CheckBatch(absl::Span<Item> items) {
  RETURN_IF_ERROR(LaunchCheck(items));
  RETURN_IF_ERROR(Synchronize(stream_));
  workers_->Run(items.size(), [&](int, uint64_t i) {
    Item& item = items[i];
    if (verdicts_[i] == 0) return;
    const std::string_view head(reinterpret_cast<const char*>(heads_.get()) + i * kHeadBytes,
                                std::min<uint64_t>(item.size, kHeadBytes));
    absl::StatusOr<ChunkDirectory> read = ReadChunkDirectory(head, item.size, plan_->manifest());
    if (!read.ok()) return;
    item.directory = *std::move(read);
    AddJobs(*plan_, item.directory, item.data, &item.jobs);
    item.leaves = CountLeaves(item.directory);
    item.is_chunk = item.jobs.size() <= kRoundJobs;
  });
  return absl::OkStatus();
}

// Lays out the tables of a round and fills and sends them.
absl::Status ChunkStager::SendJobs(absl::Span<Item> items) {
  uint32_t jobs = 0;
  uint32_t tiles = 0;
  LeafCounts leaves;
  for (Item& item : items) {
    item.first_job = jobs;
    item.first_tile = tiles;
    item.first_whole = leaves.whole;
    item.first_last = leaves.last;
    jobs += item.jobs.size();
    tiles += item.directory.tiles.size();
    leaves.whole += item.leaves.whole;
    leaves.last += item.leaves.last;
  }
  const uint32_t all_leaves = leaves.whole + leaves.last;
  RETURN_IF_ERROR(Grow(jobs, &jobs_));
  RETURN_IF_ERROR(Grow(jobs, &found_));
  RETURN_IF_ERROR(Grow(tiles, &roots_));
  RETURN_IF_ERROR(Grow(tiles, &digests_));
  RETURN_IF_ERROR(Grow(all_leaves, &leaves_));
  RETURN_IF_ERROR(GrowDevice(8 * uint64_t{all_leaves}, &leaf_digests_));
  RETURN_IF_ERROR(Grow(items.size(), &faults_));
  workers_->Run(items.size(), [&](int, uint64_t i) {
    Item& item = items[i];
    for (StageJob& job : item.jobs) job.chunk = static_cast<uint32_t>(i);
    std::copy(item.jobs.begin(), item.jobs.end(), &jobs_.host[item.first_job]);
    FillLeaves(item.directory, item.data,
               {&leaves_.host[item.first_whole], &leaves_.host[leaves.whole + item.first_last],
                &roots_.host[item.first_tile], item.first_whole + item.first_last});
  });
  RETURN_IF_ERROR(CopyAsync(jobs_.host.get(), jobs_.device.get(), jobs, stream_));
  RETURN_IF_ERROR(CopyAsync(leaves_.host.get(), leaves_.device.get(), all_leaves, stream_));
  RETURN_IF_ERROR(CopyAsync(roots_.host.get(), roots_.device.get(), tiles, stream_));
  RETURN_IF_ERROR(ZeroAsync(faults_.device.get(), items.size(), stream_));
  tables_.jobs = jobs_.device.get();
  tables_.found = found_.device.get();
  tables_.faults = faults_.device.get();
  tables_.leaves = leaves_.device.get();
  tables_.roots = roots_.device.get();
  tables_.leaf_digests = leaf_digests_.get();
  tables_.tile_digests = reinterpret_cast<uint32_t*>(digests_.device.get());
  tables_.job_count = jobs;
  tables_.leaf_count = all_leaves;
  tables_.root_count = tiles;
  return absl::OkStatus();
}

// Afterwards found_ and faults_ are in host memory, and the digests are on their way.
absl::Status ChunkStager::CountEntries(absl::Span<Item> items) {
  RETURN_IF_ERROR(LaunchStageCount(tables_, stream_));
  RETURN_IF_ERROR(CopyAsync(found_.device.get(), found_.host.get(), tables_.job_count, stream_));
  RETURN_IF_ERROR(CopyAsync(faults_.device.get(), faults_.host.get(), items.size(), stream_));
  RETURN_IF_ERROR(Synchronize(stream_));
  RETURN_IF_ERROR(LaunchStageDigests(tables_, stream_));
  return CopyAsync(digests_.device.get(), digests_.host.get(), tables_.root_count, stream_);
}

absl::Status ChunkStager::SendGroups(absl::Span<Item> items, uint64_t group_count) {
  std::vector<ColumnBytes> sizes;
  std::vector<uint32_t> numbers;
  for (uint32_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_chunk || items[i].draft.groups.empty()) continue;
    sizes.push_back(items[i].draft.bytes);
    numbers.push_back(i);
  }
  ASSIGN_OR_RETURN(PieceRoom room, pieces_.Reserve(sizes, stream_));
  RETURN_IF_ERROR(Grow(items.size(), &columns_));
  RETURN_IF_ERROR(Grow(group_count, &writes_));
  RETURN_IF_ERROR(GrowPinned(group_count, &groups_));
  uint32_t writes = 0;
  GroupEntry* group = groups_.get();
  for (size_t k = 0; k < numbers.size(); ++k) {
    Item& item = items[numbers[k]];
    item.copy = std::move(room.copies[k]);
    columns_.host[numbers[k]] = item.copy->columns();
    item.first_write = writes;
    writes += item.draft.groups.size();
    item.groups = group;
    if (item.copy->is_pinned()) {
      item.groups = const_cast<GroupEntry*>(item.copy->columns().groups);
    } else {
      group += item.draft.groups.size();
    }
  }
  workers_->Run(numbers.size(), [&](int, uint64_t k) {
    const Item& item = items[numbers[k]];
    const std::vector<StagedGroup>& groups = item.draft.groups;
    for (uint32_t i = 0; i < groups.size(); ++i) {
      writes_.host[item.first_write + i] = {item.first_job + item.draft.jobs[i], i};
    }
    std::memcpy(static_cast<void*>(item.groups), groups.data(), item.draft.bytes.groups);
  });
  RETURN_IF_ERROR(CopyAsync(groups_.get(), room.device_groups,
                            room.device_group_bytes / sizeof(GroupEntry), stream_));
  RETURN_IF_ERROR(CopyAsync(writes_.host.get(), writes_.device.get(), writes, stream_));
  RETURN_IF_ERROR(CopyAsync(columns_.host.get(), columns_.device.get(), items.size(), stream_));
  tables_.writes = writes_.device.get();
  tables_.columns = columns_.device.get();
  tables_.write_count = writes;
  return absl::OkStatus();
}

absl::Status ChunkStager::WritePieces(absl::Span<Item> items) {
  uint64_t groups = 0;
  for (const Item& item : items) groups += item.is_chunk ? item.draft.groups.size() : 0;
  if (groups > 0) {
    RETURN_IF_ERROR(SendGroups(items, groups));
    RETURN_IF_ERROR(LaunchStageWrite(tables_, stream_));
  }
  RETURN_IF_ERROR(CopyAsync(faults_.device.get(), faults_.host.get(), items.size(), stream_));
  return Synchronize(stream_);
}

void ChunkStager::TakeResults(Item* item, uint32_t number) const {
  // A fault now: it is not what it was when its tiles were counted.
  if (!item->is_chunk || faults_.host[number] != 0) return;
  DecodedChunk chunk;
  chunk.header = item->directory.header;
  chunk.content.tiles.reserve(item->directory.tiles.size());
  for (size_t i = 0; i < item->directory.tiles.size(); ++i) {
    const DirectoryTile& tile = item->directory.tiles[i];
    chunk.content.tiles.push_back(
        {tile.place, tile.packed.form, tile.packed.changed, digests_.host[item->first_tile + i]});
  }
  if (item->copy != nullptr) {
    auto piece = std::make_unique<StagedPiece>();
    piece->groups = std::move(item->draft.groups);
    piece->changed = item->draft.changed;
    piece->absent_bytes = item->draft.bytes.beside_groups();
    piece->backend_copy = std::move(item->copy);
    chunk.content.piece = std::move(piece);
  }
  *item->decoded = std::move(chunk);
}

absl::Status ChunkStager::DecodeRound(absl::Span<Item> items, bool allow_dense) {
  RETURN_IF_ERROR(SendJobs(items));
  RETURN_IF_ERROR(CountEntries(items));
  workers_->Run(items.size(), [&](int, uint64_t i) {
    Item& item = items[i];
    item.is_chunk = faults_.host[i] == 0 &&
                    DraftPiece(*plan_, allow_dense, item.jobs,
                               absl::MakeConstSpan(&found_.host[item.first_job], item.jobs.size()),
                               &item.draft);
  });
  RETURN_IF_ERROR(WritePieces(items));
  workers_->Run(items.size(),
                [&](int, uint64_t i) { TakeResults(&items[i], static_cast<uint32_t>(i)); });
  return absl::OkStatus();
}

absl::Status ChunkStager::Decode(const std::shared_ptr<const Plan>& plan, bool allow_dense,
                                 absl::Span<const DeviceChunk> chunks,
                                 absl::Span<std::optional<DecodedChunk>> decoded) {
  // Not while anything is under way: neither the chunks nor these tables may go before that. Items
  // that were refused give back their room.
  const auto wait = absl::MakeCleanup([this] {
    (void)Synchronize(stream_);
    items_.clear();
  });
  if (!workers_.has_value()) workers_.emplace(std::min(DefaultParallelism(), kMostThreads));
  RETURN_IF_ERROR(UsePlan(plan));
  for (size_t next = 0; next < chunks.size();) {
    items_.clear();
    for (uint64_t bytes = 0; next < chunks.size() && items_.size() < kBatchChunks; ++next) {
      const uint64_t size = chunks[next].size_bytes;
      if (!HasChunkSize(size)) continue;
      if (bytes + size > kBatchBytes) break;
      bytes += size;
      Item& item = items_.emplace_back();
      item.data = static_cast<const uint8_t*>(chunks[next].data);
      item.size = size;
      item.decoded = &decoded[next];
    }
    if (items_.empty()) break;
    RETURN_IF_ERROR(CheckBatch(absl::MakeSpan(items_)));
    std::erase_if(items_, [](const Item& item) { return !item.is_chunk; });
    for (size_t first = 0; first < items_.size();) {
      uint64_t jobs = 0;
      size_t last = first;
      while (last < items_.size() && jobs + items_[last].jobs.size() <= kRoundJobs) {
        jobs += items_[last++].jobs.size();
      }
      const absl::Span<Item> round = absl::MakeSpan(items_).subspan(first, last - first);
      RETURN_IF_ERROR(DecodeRound(round, allow_dense));
      first = last;
    }
  }
  return absl::OkStatus();
}

}  // namespace wstore::cuda
