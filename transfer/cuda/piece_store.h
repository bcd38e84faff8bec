// Staged pieces where a device reaches them: in its memory up to a budget, then in pinned host
// memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "transfer/cuda/buffer.h"
#include "transfer/cuda/replica_tables.h"
#include "transfer/cuda/stage_work.h"
#include "transfer/replica/staged_patch.h"
#include "wstore/cuda.h"

namespace wstore::cuda {

// Stretches of one piece of pinned memory. Thread-safe.
class PinnedArena {
 public:
  static absl::StatusOr<std::shared_ptr<PinnedArena>> Create(uint64_t size_bytes);

  // The first stretch that is long enough; null if there is none.
  uint8_t* Allocate(uint64_t size_bytes);
  void Free(uint8_t* memory, uint64_t size_bytes);

 private:
  PinnedBuffer<uint8_t> memory_;
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> free_;  // length by offset; no two touch
};

// Bytes of the budget in use. Thread-safe.
class Budget {
 public:
  explicit Budget(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}
  bool Take(uint64_t size_bytes);
  void Give(uint64_t size_bytes);

 private:
  const uint64_t limit_bytes_;
  std::mutex mutex_;
  uint64_t used_bytes_ = 0;
};

// The copy of one piece. Gives its memory back when it goes.
class PieceCopy {
 public:
  PieceCopy() = default;
  ~PieceCopy();
  PieceCopy(const PieceCopy&) = delete;
  PieceCopy& operator=(const PieceCopy&) = delete;

  const PieceColumns& columns() const { return columns_; }
  const ColumnBytes& bytes() const { return bytes_; }
  bool is_pinned() const { return pinned_ != nullptr; }

 private:
  friend class PieceStore;

  PieceColumns columns_{};
  ColumnBytes bytes_;
  // May be shared with other pieces; goes with the last of them.
  std::shared_ptr<const DeviceBuffer<uint8_t>> device_;
  std::shared_ptr<Budget> budget_;  // of the device, if it is there
  std::shared_ptr<PinnedArena> arena_;
  uint8_t* pinned_ = nullptr;
  uint64_t size_bytes_ = 0;
};

// Room for pieces of one call, in order. The groups of those on the device follow each other there
// without gaps.
struct PieceRoom {
  std::vector<std::shared_ptr<PieceCopy>> copies;
  GroupEntry* device_groups = nullptr;
  uint64_t device_group_bytes = 0;
};

// Thread-safe.
class PieceStore {
 public:
  static absl::StatusOr<PieceStore> Create(CudaStream stream, CudaMemory* memory,
                                           uint64_t device_budget_bytes, uint64_t pinned_bytes);

  // Copies a piece, in order of the stream; the piece may change afterwards.
  //   kResourceExhausted: neither the device nor the pinned memory has room
  absl::StatusOr<std::shared_ptr<const PieceCopy>> Copy(const StagedPiece& piece) const;
  // Room for pieces whose columns the device will write, in order of `stream`, which must outlive
  // them. Once it has been waited for, they are as those of Copy. Errors as Copy.
  absl::StatusOr<PieceRoom> Reserve(absl::Span<const ColumnBytes> pieces, CudaStream stream) const;
  // Copies the columns, but for the groups, back to the host. Waits for the stream.
  absl::Status Fetch(const PieceCopy& copy, StagedPiece* piece) const;

 private:
  absl::Status TakePinned(uint64_t size_bytes, const absl::Status& device_status,
                          PieceCopy* copy) const;

  CudaStream stream_ = nullptr;
  CudaMemory* memory_ = nullptr;
  std::shared_ptr<Budget> budget_;
  std::shared_ptr<PinnedArena> arena_;
};

}  // namespace wstore::cuda
