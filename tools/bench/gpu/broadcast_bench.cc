#include "tools/bench/gpu/broadcast_bench.h"

#include <algorithm>
#include <barrier>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "tools/bench/harness.h"
#include "transfer/cuda/buffer.h"
#include "transfer/nccl/communicator.h"
#include "wstore/cuda_transfer.h"

namespace wstore::bench {
namespace {

constexpr int kWarmUps = 3;
constexpr int kRepetitions = 9;
constexpr uint64_t kFrameBytes = uint64_t{64} << 20;  // as groups over NCCL have them
constexpr uint64_t kDenseBytes = uint64_t{4} << 30;   // a larger broadcast is not faster

Deadline Soon() { return Deadline::After(30'000'000); }

// What one side does in each repetition, its setup behind it.
using Side = std::function<absl::Status()>;

// Both sides at once, in threads of their own; the slower one counts. Where a side cannot be made
// the other one's deadlines end the wait.
absl::StatusOr<double> Time(const std::function<absl::StatusOr<Side>(bool is_root)>& make, int root,
                            int other) {
  std::vector<double> times[2];
  std::barrier<> meeting(2);
  const auto run = [&](bool is_root) -> absl::Status {
    absl::Status status = UseCudaDevice(is_root ? root : other);
    Side side;
    if (status.ok()) {
      absl::StatusOr<Side> made = make(is_root);
      status = made.status();
      if (made.ok()) side = *std::move(made);
    }
    for (int i = -kWarmUps; i < kRepetitions; ++i) {
      meeting.arrive_and_wait();
      if (!status.ok()) continue;
      absl::StatusOr<double> seconds = Seconds(side);
      status = seconds.status();
      if (status.ok() && i >= 0) times[is_root ? 0 : 1].push_back(*seconds);
    }
    return status;
  };
  std::future<absl::Status> receiving = std::async(std::launch::async, run, false);
  const absl::Status sent = std::async(std::launch::async, run, true).get();
  const absl::Status received = receiving.get();
  RETURN_IF_ERROR(sent);
  RETURN_IF_ERROR(received);
  std::vector<double> slower;
  for (int i = 0; i < kRepetitions; ++i) slower.push_back(std::max(times[0][i], times[1][i]));
  return MedianOf(slower);
}

absl::StatusOr<cuda::DeviceBuffer<uint8_t>> Room(CudaMemory* memory, uint64_t bytes) {
  ASSIGN_OR_RETURN(const OwnedCudaStream stream, OwnedCudaStream::Create());
  return cuda::DeviceBuffer<uint8_t>::Create(bytes, memory, stream.get());
}

absl::StatusOr<double> TimeBare(int root, int other, uint64_t bytes, CudaMemory* memory) {
  ASSIGN_OR_RETURN(const std::string id, nccl::NewUniqueId());
  struct Part {
    cuda::DeviceBuffer<uint8_t> bytes;
    std::unique_ptr<nccl::Communicator> communicator;
  };
  const auto make = [&](bool is_root) -> absl::StatusOr<Side> {
    auto part = std::make_shared<Part>();
    ASSIGN_OR_RETURN(part->bytes, Room(memory, bytes));
    ASSIGN_OR_RETURN(part->communicator,
                     nccl::Communicator::Create({id, is_root ? 0 : 1, 2}, Soon(), {}));
    return [part, bytes]() -> absl::Status {
      uint8_t* const at = part->bytes.get();
      RETURN_IF_ERROR(part->communicator->Broadcast(at, at, bytes, /*root=*/0, Soon()));
      ASSIGN_OR_RETURN(const nccl::Communicator::Mark mark, part->communicator->PutMark());
      return part->communicator->Await(mark, Soon());
    };
  };
  return Time(make, root, other);
}

// One side of a transfer group.
struct Party {
  cuda::DeviceBuffer<uint8_t> bytes;
  std::shared_ptr<TransferPort> port;
  std::unique_ptr<FrameSender> sender;
  std::unique_ptr<FrameReceiver> receiver;
  uint64_t next = 0;
};

FrameHeader FrameOf(uint64_t sequence, uint64_t at, uint64_t bytes) {
  FrameHeader frame;
  frame.epoch = 1;
  frame.sequence = sequence;
  frame.transaction = TransactionNumber(1);
  frame.size_bytes = std::min(kFrameBytes, bytes - at);
  frame.chunks = {{0, frame.size_bytes}};
  return frame;
}

absl::Status SendAll(Party& party, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += kFrameBytes) {
    RETURN_IF_ERROR(
        party.sender->Send(FrameOf(party.next++, at, bytes), party.bytes.get() + at, Soon()));
  }
  return party.sender->Drain(Soon());
}

absl::Status ReceiveAll(Party& party, uint64_t bytes) {
  size_t entered = 0;
  for (uint64_t at = 0; at < bytes || entered > 0;) {
    // The next frame is under way while this one is awaited.
    for (; at < bytes && entered < kMaxHeldFrames; at += kFrameBytes, ++entered) {
      RETURN_IF_ERROR(party.receiver->Enter(FrameOf(party.next++, at, bytes), Soon()));
    }
    RETURN_IF_ERROR(party.receiver->Await(Soon()).status());
    party.receiver->Release();
    --entered;
  }
  return absl::OkStatus();
}

absl::StatusOr<double> TimeFrames(int root, int other, uint64_t bytes, CudaMemory* memory) {
  TransferPlan plan;
  plan.epoch = 1;
  plan.route = TransferRoute::kNccl;
  plan.size = 2;
  plan.frame_bytes = kFrameBytes;
  ASSIGN_OR_RETURN(plan.unique_id, nccl::NewUniqueId());
  const auto make = [&](bool is_root) -> absl::StatusOr<Side> {
    auto party = std::make_shared<Party>();
    TransferPlan mine = plan;
    mine.index = is_root ? 0 : 1;
    ASSIGN_OR_RETURN(party->port, MakeCudaTransferPort(memory));
    if (is_root) {
      ASSIGN_OR_RETURN(party->bytes, Room(memory, bytes));
      ASSIGN_OR_RETURN(party->sender, party->port->Lead(mine, Soon(), {}));
      return [party, bytes] { return SendAll(*party, bytes); };
    }
    ASSIGN_OR_RETURN(party->receiver, party->port->Join(mine, Soon(), {}));
    return [party, bytes] { return ReceiveAll(*party, bytes); };
  };
  return Time(make, root, other);
}

}  // namespace

absl::StatusOr<BroadcastTimes> MeasureBroadcast(int root, int other, uint64_t bytes,
                                                uint64_t dense_bytes) {
  const std::unique_ptr<CudaMemory> memory = MakeCudaDeviceMemory();
  BroadcastTimes times;
  ASSIGN_OR_RETURN(times.frames, TimeFrames(root, other, bytes, memory.get()));
  ASSIGN_OR_RETURN(times.bare, TimeBare(root, other, bytes, memory.get()));
  const uint64_t measured = std::min(dense_bytes, kDenseBytes);
  ASSIGN_OR_RETURN(times.dense, TimeBare(root, other, measured, memory.get()));
  times.dense *= static_cast<double>(dense_bytes) / static_cast<double>(measured);
  return times;
}

}  // namespace wstore::bench
