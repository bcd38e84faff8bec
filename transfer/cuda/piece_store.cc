#include "transfer/cuda/piece_store.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

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
  const void* from;
  const void* to;
  uint64_t size_bytes;
};

// Columns beside the groups, each aligned.
uint64_t SpreadBytes(const ColumnBytes& bytes) {
  return Aligned(bytes.offsets) + Aligned(bytes.near) + Aligned(bytes.far) + Aligned(bytes.values);
}

PieceColumns ColumnsAt(const ColumnBytes& bytes, const uint8_t* groups, const uint8_t* rest) {
  const uint8_t* const near = rest + Aligned(bytes.offsets);
  const uint8_t* const far = near + Aligned(bytes.near);
  return {reinterpret_cast<const GroupEntry*>(groups), reinterpret_cast<const uint16_t*>(rest),
          reinterpret_cast<const uint16_t*>(near), reinterpret_cast<const uint32_t*>(far),
          far + Aligned(bytes.far)};
}

absl::Status PastBudget() { return absl::ResourceExhaustedError("past the budget of the device"); }

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

absl::Status PieceStore::TakePinned(uint64_t size_bytes, const absl::Status& device_status,
                                    PieceCopy* copy) const {
  copy->pinned_ = arena_->Allocate(size_bytes);
  copy->arena_ = arena_;
  if (copy->pinned_ != nullptr) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("no room for a staged piece of ", size_bytes, " bytes: the device has none (",
                   device_status.message(), "), nor has the pinned memory; raise pinned_bytes"));
}

absl::StatusOr<PieceRoom> PieceStore::Reserve(absl::Span<const ColumnBytes> pieces,
                                              CudaStream stream) const {
  PieceRoom room;
  uint64_t rest_bytes = 0;
  for (const ColumnBytes& bytes : pieces) {
    auto copy = std::make_shared<PieceCopy>();
    copy->bytes_ = bytes;
    copy->size_bytes_ = bytes.groups + SpreadBytes(bytes);
    if (budget_->Take(copy->size_bytes_)) {
      copy->budget_ = budget_;
      room.device_group_bytes += bytes.groups;
      rest_bytes += SpreadBytes(bytes);
    }
    room.copies.push_back(std::move(copy));
  }
  absl::Status device_status = PastBudget();
  std::shared_ptr<const DeviceBuffer<uint8_t>> block;
  if (room.device_group_bytes > 0) {
    auto made = DeviceBuffer<uint8_t>::Create(Aligned(room.device_group_bytes) + rest_bytes,
                                              memory_, stream);
    device_status = made.status();
    if (made.ok()) block = std::make_shared<const DeviceBuffer<uint8_t>>(*std::move(made));
    if (!made.ok() && !absl::IsResourceExhausted(device_status)) return device_status;
  }
  uint8_t* groups = block == nullptr ? nullptr : block->get();
  uint8_t* rest = block == nullptr ? nullptr : groups + Aligned(room.device_group_bytes);
  room.device_groups = reinterpret_cast<GroupEntry*>(groups);
  if (block == nullptr) room.device_group_bytes = 0;
  for (const auto& copy : room.copies) {
    const ColumnBytes& bytes = copy->bytes_;
    if (block != nullptr && copy->budget_ != nullptr) {
      copy->device_ = block;
      copy->columns_ = ColumnsAt(bytes, groups, rest);
      groups += bytes.groups;
      rest += SpreadBytes(bytes);
      continue;
    }
    if (copy->budget_ != nullptr) std::exchange(copy->budget_, nullptr)->Give(copy->size_bytes_);
    copy->size_bytes_ = Aligned(bytes.groups) + SpreadBytes(bytes);
    RETURN_IF_ERROR(TakePinned(copy->size_bytes_, device_status, copy.get()));
    copy->columns_ = ColumnsAt(bytes, copy->pinned_, copy->pinned_ + Aligned(bytes.groups));
  }
  return room;
}

absl::StatusOr<std::shared_ptr<const PieceCopy>> PieceStore::Copy(const StagedPiece& piece) const {
  auto copy = std::make_shared<PieceCopy>();
  copy->bytes_ = {piece.groups.size() * sizeof(StagedGroup),
                  piece.offsets.size() * sizeof(uint16_t), piece.near.size() * sizeof(uint16_t),
                  piece.far.size() * sizeof(uint32_t), piece.values.size()};
  const uint64_t size = Aligned(copy->bytes_.groups) + SpreadBytes(copy->bytes_);
  copy->size_bytes_ = size;
  absl::Status device_status = PastBudget();
  if (budget_->Take(size)) {
    auto device = DeviceBuffer<uint8_t>::Create(size, memory_, stream_);
    device_status = device.status();
    if (device.ok()) {
      copy->device_ = std::make_shared<const DeviceBuffer<uint8_t>>(*std::move(device));
      copy->budget_ = budget_;
    } else {
      budget_->Give(size);
    }
  }
  if (!device_status.ok() && !absl::IsResourceExhausted(device_status)) return device_status;
  if (!device_status.ok()) RETURN_IF_ERROR(TakePinned(size, device_status, copy.get()));
  uint8_t* const start = copy->pinned_ != nullptr ? copy->pinned_ : copy->device_->get();
  copy->columns_ = ColumnsAt(copy->bytes_, start, start + Aligned(copy->bytes_.groups));
  const PieceColumns& to = copy->columns_;
  const std::array<Column, 5> columns = {{
      {piece.groups.data(), to.groups, copy->bytes_.groups},
      {piece.offsets.data(), to.offsets, copy->bytes_.offsets},
      {piece.near.data(), to.near, copy->bytes_.near},
      {piece.far.data(), to.far, copy->bytes_.far},
      {piece.values.data(), to.values, copy->bytes_.values},
  }};
  for (const Column& column : columns) {
    if (column.size_bytes == 0) continue;
    auto* const out = static_cast<uint8_t*>(const_cast<void*>(column.to));
    if (copy->pinned_ != nullptr) {
      std::memcpy(out, column.from, column.size_bytes);
    } else {
      // From pageable memory: it has been read when the call returns.
      RETURN_IF_ERROR(
          CopyAsync(static_cast<const uint8_t*>(column.from), out, column.size_bytes, stream_));
    }
  }
  return copy;
}

absl::Status PieceStore::Fetch(const PieceCopy& copy, StagedPiece* piece) const {
  const ColumnBytes& bytes = copy.bytes();
  const PieceColumns& from = copy.columns();
  std::vector<uint16_t> offsets(bytes.offsets / sizeof(uint16_t));
  std::vector<uint16_t> near(bytes.near / sizeof(uint16_t));
  std::vector<uint32_t> far(bytes.far / sizeof(uint32_t));
  std::vector<uint8_t> values(bytes.values);
  absl::Status status = CopyAsync(from.offsets, offsets.data(), offsets.size(), stream_);
  status.Update(CopyAsync(from.near, near.data(), near.size(), stream_));
  status.Update(CopyAsync(from.far, far.data(), far.size(), stream_));
  status.Update(CopyAsync(from.values, values.data(), values.size(), stream_));
  // Whatever happened, nothing is on its way into these vectors afterwards.
  status.Update(Synchronize(stream_));
  RETURN_IF_ERROR(status);
  piece->offsets = std::move(offsets);
  piece->near = std::move(near);
  piece->far = std::move(far);
  piece->values = std::move(values);
  piece->absent_bytes = 0;
  return absl::OkStatus();
}

}  // namespace wstore::cuda
