// Stages chunks that lie in device memory: MemoryBackend::DecodeChunks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "transfer/cuda/buffer.h"
#include "transfer/cuda/piece_store.h"
#include "transfer/cuda/stage_tables.h"
#include "transfer/cuda/stage_work.h"
#include "transfer/replica/plan.h"
#include "transfer/replica/staged_chunk.h"
#include "transfer/replica/worker_pool.h"
#include "wstore/cuda.h"

namespace wstore::cuda {

// On a stream of its own, which it waits for most of the time: so none of its kernels waits for
// what else the replica does on the device, and two of these do more than one. Keeps its tables
// between calls: some 10% of the chunks of the largest batch. Not thread-safe.
class ChunkStager {
 public:
  // `pieces` must outlive it.
  ChunkStager(OwnedCudaStream stream, CudaMemory* memory, const PieceStore& pieces)
      : owned_stream_(std::move(stream)),
        stream_(owned_stream_.get()),
        memory_(memory),
        pieces_(pieces) {}

  // See MemoryBackend. Whatever it returns, no chunk is read afterwards.
  absl::Status Decode(const std::shared_ptr<const Plan>& plan, bool allow_dense,
                      absl::Span<const DeviceChunk> chunks,
                      absl::Span<std::optional<DecodedChunk>> decoded);

 private:
  // A chunk of a batch.
  struct Item {
    const uint8_t* data;
    std::optional<DecodedChunk>* decoded;
    uint64_t size;
    bool is_chunk = false;  // so far nothing speaks against it
    ChunkDirectory directory;
    std::vector<StageJob> jobs;
    LeafCounts leaves;
    PieceDraft draft;
    std::shared_ptr<const PieceCopy> copy;
    // Where its part of the tables of a round begins.
    uint32_t first_job;
    uint32_t first_tile;
    uint32_t first_whole;
    uint32_t first_last;
    uint32_t first_write;
    GroupEntry* groups;  // in host memory, on their way
  };

  absl::Status UsePlan(const std::shared_ptr<const Plan>& plan);
  // Checksums, and the jobs of all tiles.
  absl::Status CheckBatch(absl::Span<Item> items);
  absl::Status LaunchCheck(absl::Span<Item> items);
  // The rest, for items whose jobs fit into the tables.
  absl::Status DecodeRound(absl::Span<Item> items, bool allow_dense);
  absl::Status SendJobs(absl::Span<Item> items);
  absl::Status CountEntries(absl::Span<Item> items);
  absl::Status WritePieces(absl::Span<Item> items);
  absl::Status SendGroups(absl::Span<Item> items, uint64_t group_count);
  void TakeResults(Item* item, uint32_t number) const;

  const OwnedCudaStream owned_stream_;
  const CudaStream stream_;
  CudaMemory* const memory_;
  const PieceStore& pieces_;

  std::optional<WorkerPool> workers_;  // from the first call on
  std::shared_ptr<const Plan> plan_;   // whose cells are on the device
  DeviceBuffer<CellEntry> cells_;
  std::vector<Item> items_;
  StageTables tables_{};

  // Tables, each on the device and in pinned memory.
  template <typename T>
  struct Table {
    DeviceBuffer<T> device;
    PinnedBuffer<T> host;
  };
  template <typename T>
  absl::Status Grow(uint64_t count, Table<T>* table);
  template <typename T>
  absl::Status GrowDevice(uint64_t count, DeviceBuffer<T>* buffer);
  template <typename T>
  absl::Status GrowPinned(uint64_t count, PinnedBuffer<T>* buffer);

  Table<StageSource> sources_;
  Table<Piece> source_pieces_;
  Table<StageJob> jobs_;
  Table<StageFound> found_;
  Table<StageLeaf> leaves_;
  Table<StageRoot> roots_;
  Table<StageWrite> writes_;
  Table<PieceColumns> columns_;
  Table<uint32_t> faults_;
  Table<Digest> digests_;
  PinnedBuffer<uint8_t> heads_;
  PinnedBuffer<uint32_t> verdicts_;
  PinnedBuffer<GroupEntry> groups_;
  DeviceBuffer<unsigned long long> block_sums_;
  DeviceBuffer<uint32_t> leaf_digests_;
  std::vector<std::shared_ptr<void>> outgrown_;
};

}  // namespace wstore::cuda
