// Frames by NCCL: those for all ranks of a communicator by broadcast, others from the root to each.
#include <algorithm>
#include <deque>
#include <utility>

#include "common/status_macros.h"
#include "transfer/cuda/buffer.h"
#include "transfer/cuda/device_scope.h"
#include "transfer/cuda/shared_memory.h"
#include "transfer/nccl/communicator.h"
#include "transfer/nccl/frames.h"

namespace wstore::nccl {
namespace {

constexpr int kRoot = 0;
constexpr size_t kSlots = kMaxHeldFrames;

class NcclReceiver final : public FrameReceiver {
 public:
  NcclReceiver(const TransferPlan& plan, int device, std::unique_ptr<Communicator> communicator,
               cuda::DeviceBuffer<uint8_t> slots)
      : plan_(plan),
        device_(device),
        slots_(std::move(slots)),
        communicator_(std::move(communicator)) {}
  ~NcclReceiver() override {
    const cuda::DeviceScope scope(device_);
    // Memory that NCCL may still write to is not given back. What is, goes before its stream.
    if (!communicator_->Abort()) new cuda::DeviceBuffer<uint8_t>(std::move(slots_));
    slots_ = {};
    communicator_.reset();
  }

  absl::Status Enter(const FrameHeader& frame, Deadline deadline) override {
    RETURN_IF_ERROR(communicator_->CheckCancelled());
    RETURN_IF_ERROR(CheckFrame(frame, plan_, next_));
    RETURN_IF_ERROR(CheckHeldFrames(frame, entered_.size() + unreleased_));
    const cuda::DeviceScope scope(device_);
    uint8_t* const slot = SlotOf(frame);
    if (frame.size_bytes > 0 && !IsForAllOf(frame, plan_.size)) {
      if (IsFor(frame, plan_.index)) {
        RETURN_IF_ERROR(communicator_->Receive(slot, frame.size_bytes, kRoot, deadline));
      }
    } else if (frame.size_bytes > 0) {
      RETURN_IF_ERROR(communicator_->Broadcast(slot, slot, frame.size_bytes, kRoot, deadline));
    }
    ASSIGN_OR_RETURN(const Communicator::Mark mark, communicator_->PutMark());
    entered_.emplace_back(frame, mark);
    ++next_;
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<DeviceChunk>> Await(Deadline deadline) override {
    RETURN_IF_ERROR(communicator_->CheckCancelled());
    if (entered_.empty()) return absl::FailedPreconditionError("no frame was entered");
    const cuda::DeviceScope scope(device_);
    const auto& [frame, mark] = entered_.front();
    RETURN_IF_ERROR(communicator_->Await(mark, deadline));
    std::vector<DeviceChunk> chunks;
    if (IsFor(frame, plan_.index)) chunks = ChunksAt(frame, SlotOf(frame));
    entered_.pop_front();
    ++unreleased_;
    return chunks;
  }
  void Release() override { --unreleased_; }
  void Cancel() override { communicator_->Cancel(); }

 private:
  uint8_t* SlotOf(const FrameHeader& frame) const {
    return slots_.get() + frame.sequence % kSlots * plan_.frame_bytes;
  }

  const TransferPlan plan_;
  const int device_;
  cuda::DeviceBuffer<uint8_t> slots_;
  std::unique_ptr<Communicator> communicator_;
  uint64_t next_ = 0;
  std::deque<std::pair<FrameHeader, Communicator::Mark>> entered_;
  size_t unreleased_ = 0;
};

class NcclSender final : public FrameSender {
 public:
  NcclSender(const TransferPlan& plan, int device, std::unique_ptr<Communicator> communicator)
      : plan_(plan), device_(device), communicator_(std::move(communicator)) {}
  ~NcclSender() override {
    const cuda::DeviceScope scope(device_);
    communicator_.reset();
  }

  absl::StatusOr<std::string> Locate(const void* data, uint64_t size_bytes) override {
    const cuda::DeviceScope scope(device_);
    return cuda::NameMemory(data, size_bytes);
  }
  absl::Status Send(const FrameHeader& frame, const void* data, Deadline deadline) override {
    RETURN_IF_ERROR(communicator_->CheckCancelled());
    RETURN_IF_ERROR(CheckFrame(frame, plan_, next_));
    const cuda::DeviceScope scope(device_);
    if (frame.size_bytes > 0 && !IsForAllOf(frame, plan_.size)) {
      // Others share the root's memory.
      const auto end = std::lower_bound(frame.audience.begin(), frame.audience.end(), plan_.size);
      RETURN_IF_ERROR(communicator_->Send(
          data, frame.size_bytes,
          absl::MakeSpan(frame.audience).first(end - frame.audience.begin()), deadline));
    } else if (frame.size_bytes > 0) {
      // In place: the root reads alone.
      RETURN_IF_ERROR(communicator_->Broadcast(data, const_cast<void*>(data), frame.size_bytes,
                                               kRoot, deadline));
    }
    ++next_;
    return absl::OkStatus();
  }
  absl::Status Drain(Deadline deadline) override {
    RETURN_IF_ERROR(communicator_->CheckCancelled());
    const cuda::DeviceScope scope(device_);
    ASSIGN_OR_RETURN(const Communicator::Mark mark, communicator_->PutMark());
    return communicator_->Await(mark, deadline);
  }
  void Cancel() override { communicator_->Cancel(); }

 private:
  const TransferPlan plan_;
  const int device_;
  std::unique_ptr<Communicator> communicator_;
  uint64_t next_ = 0;
};

absl::StatusOr<std::unique_ptr<Communicator>> Meet(const TransferPlan& plan, Deadline deadline,
                                                   const IsCancelled& is_cancelled) {
  Communicator::Place place;
  place.unique_id = plan.unique_id;
  place.rank = static_cast<int>(plan.index);
  place.ranks = static_cast<int>(plan.size);
  return Communicator::Create(place, deadline, is_cancelled);
}

}  // namespace

absl::StatusOr<std::unique_ptr<FrameReceiver>> JoinByNccl(const TransferPlan& plan,
                                                          CudaMemory* memory, Deadline deadline,
                                                          const IsCancelled& is_cancelled) {
  ASSIGN_OR_RETURN(const int device, cuda::CurrentDevice());
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator, Meet(plan, deadline, is_cancelled));
  ASSIGN_OR_RETURN(cuda::DeviceBuffer<uint8_t> slots,
                   cuda::DeviceBuffer<uint8_t>::Create(kSlots * plan.frame_bytes, memory,
                                                       communicator->stream()));
  return std::make_unique<NcclReceiver>(plan, device, std::move(communicator), std::move(slots));
}

absl::StatusOr<std::unique_ptr<FrameSender>> LeadByNccl(const TransferPlan& plan, Deadline deadline,
                                                        const IsCancelled& is_cancelled) {
  ASSIGN_OR_RETURN(const int device, cuda::CurrentDevice());
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator, Meet(plan, deadline, is_cancelled));
  return std::make_unique<NcclSender>(plan, device, std::move(communicator));
}

}  // namespace wstore::nccl
