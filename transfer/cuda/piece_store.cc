#include "transfer/cuda/piece_store.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace wstore::cuda {
namespace {

static_assert(sizeof(GroupEntry) == sizeof(StagedGroup));
static_assert(offsetof(GroupEntry, local_base) == offsetof(StagedGroup, local_base) &&
              offsetof(GroupEntry, cell) == offsetof(StagedGroup, cell) &&
              offsetof(GroupEntry, tile) == offsetof(StagedGroup, tile) &&
              offsetof(GroupEntry, count) == offsetof(StagedGroup, count) &&
              offsetof(GroupEntry, offsets_at) == offsetof(StagedGroup, offsets_at) &&
              offsetof(GroupEntry, places_at) == offsetof(StagedGroup, places_at) &&
              offsetof(GroupEntry, values_at) == offsetof(StagedGroup, values_at) &&
              offsetof(GroupEntry, form) == offsetof(StagedGroup, form));
static_assert(static_cast<uint8_t>(PlaceForm::kSame) == kPlaceSame &&
              static_cast<uint8_t>(PlaceForm::kNear) == kPlaceNear &&
              static_cast<uint8_t>(PlaceForm::kFar) == kPlaceFar &&
              static_cast<uint8_t>(PlaceForm::kDense) == kPlaceDense);

constexpr uint64_t kColumnAlignment = 16;

uint64_t Aligned(uint64_t size) {
  return (size + kColumnAlignment - 1) / kColumnAlignment * kColumnAlignment;
}

// A column and where it goes.
struct Column {
  const void* data;
  uint64_t size_bytes;
  uint64_t at;
};

}  // namespace

absl::StatusOr<std::shared_ptr<PinnedArena>> PinnedArena::Create(uint64_t size_bytes) {
  auto arena = std::make_shared<PinnedArena>();
  ASSIGN_OR_RETURN(arena->memory_, PinnedBuffer<uint8_t>::Create(size_bytes));
  if (size_bytes > 0) arena->free_[0] = size_bytes;
  return arena;
}

uint8_t* PinnedArena::Allocate(uint64_t size_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [at, length] = *it;
    if (length < size_bytes) continue;
    free_.erase(it);
    if (length > size_bytes) free_[at + size_bytes] = length - size_bytes;
    return memory_.get() + at;
  }
  return nullptr;
}

void PinnedArena::Free(uint8_t* memory, uint64_t size_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto it = free_.emplace(memory - memory_.get(), size_bytes).first;
  const auto next = std::next(it);
  if (next != free_.end() && it->first + it->second == next->first) {
    it->second += next->second;
    free_.erase(next);
  }
  if (it != free_.begin()) {
    const auto previous = std::prev(it);
    if (previous->first + previous->second == it->first) {
      previous->second += it->second;
      free_.erase(it);
    }
  }
}

bool Budget::Take(uint64_t size_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (size_bytes > limit_bytes_ - used_bytes_) return false;
  used_bytes_ += size_bytes;
  return true;
}

void Budget::Give(uint64_t size_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  used_bytes_ -= size_bytes;
}

PieceCopy::~PieceCopy() {
  if (budget_ != nullptr) budget_->Give(size_bytes_);
  if (pinned_ != nullptr) arena_->Free(pinned_, size_bytes_);
}

absl::StatusOr<PieceStore> PieceStore::Create(CudaStream stream, CudaMemory* memory,
                                              uint64_t device_budget_bytes, uint64_t pinned_bytes) {
  PieceStore store;
  store.stream_ = stream;
  store.memory_ = memory;
  store.budget_ = std::make_shared<Budget>(device_budget_bytes);
  ASSIGN_OR_RETURN(store.arena_, PinnedArena::Create(Aligned(pinned_bytes)));
  return store;
}

absl::StatusOr<std::shared_ptr<const PieceCopy>> PieceStore::Copy(const StagedPiece& piece) const {
  std::array<Column, 5> columns = {{
      {piece.groups.data(), piece.groups.size() * sizeof(StagedGroup), 0},
      {piece.offsets.data(), piece.offsets.size() * sizeof(uint16_t), 0},
      {piece.near.data(), piece.near.size() * sizeof(uint16_t), 0},
      {piece.far.data(), piece.far.size() * sizeof(uint32_t), 0},
      {piece.values.data(), piece.values.size(), 0},
  }};
  uint64_t size = 0;
  for (Column& column : columns) {
    column.at = size;
    size += Aligned(column.size_bytes);
  }
  auto copy = std::make_shared<PieceCopy>();
  copy->size_bytes_ = size;
  absl::Status device_status = absl::ResourceExhaustedError("past the budget of the device");
  if (budget_->Take(size)) {
    auto device = DeviceBuffer<uint8_t>::Create(size, memory_, stream_);
    device_status = device.status();
    if (device.ok()) {
      copy->device_ = *std::move(device);
      copy->budget_ = budget_;
    } else {
      budget_->Give(size);
    }
  }
  if (!device_status.ok() && !absl::IsResourceExhausted(device_status)) return device_status;
  if (!device_status.ok()) {
    copy->pinned_ = arena_->Allocate(size);
    copy->arena_ = arena_;
    if (copy->pinned_ == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "no room for a staged piece of ", size, " bytes: the device has none (",
          device_status.message(), "), nor has the pinned memory; raise pinned_bytes"));
    }
  }
  uint8_t* const start = copy->pinned_ != nullptr ? copy->pinned_ : copy->device_.get();
  for (const Column& column : columns) {
    if (column.size_bytes == 0) continue;
    if (copy->pinned_ != nullptr) {
      std::memcpy(start + column.at, column.data, column.size_bytes);
    } else {
      // From pageable memory: it has been read when the call returns.
      RETURN_IF_ERROR(CopyAsync(static_cast<const uint8_t*>(column.data), start + column.at,
                                column.size_bytes, stream_));
    }
  }
  copy->columns_ = {reinterpret_cast<const GroupEntry*>(start + columns[0].at),
                    reinterpret_cast<const uint16_t*>(start + columns[1].at),
                    reinterpret_cast<const uint16_t*>(start + columns[2].at),
                    reinterpret_cast<const uint32_t*>(start + columns[3].at),
                    start + columns[4].at};
  return copy;
}

}  // namespace wstore::cuda
