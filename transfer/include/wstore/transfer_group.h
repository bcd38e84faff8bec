// How chunks reach ranks past the service: as frames, from the publisher's GPU.
//
// A transfer group is one publisher (one contributor of a trainer), the root, and ranks. The
// service forms it, under a new epoch for every attempt, and passes on what each party says of
// itself before any of them joins; so parties that do not fit are refused by name and never meet in
// a collective. A rank on the root's own GPU reads the root's memory; the others are ranks of one
// NCCL communicator; ranks that are neither, and those for whom a frame failed, are fed by the
// service. The group carries bytes only: what a rank installs is proved by checksums, digest and
// sums, whichever way it came.
//
// A frame is announced through the service before anybody enters its collective, since NCCL checks
// neither sizes nor order. All ranks see all frames of all groups in one order, and enter them in
// that order.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/deadline.h"
#include "wstore/device_chunk.h"
#include "wstore/tensor_set.h"
#include "wstore/types.h"

namespace wstore {

// How frames are announced and entered. Builds of which one has another number do not meet: where
// one would enter a broadcast the other might wait for a transfer of its own.
inline constexpr uint32_t kFrameFormat = 1;

// What a party says of itself. Empty or 0: it has none.
struct TransferHello {
  std::string host;                                // by which NCCL tells machines apart
  std::string device;                              // UUID of its GPU
  int nccl_version = 0;                            // 22803 is 2.28.3
  std::map<std::string, std::string> environment;  // settings of NCCL that must agree
  TensorSet tensors;                               // that a rank wants of every transaction
  uint32_t frame_format = kFrameFormat;

  friend bool operator==(const TransferHello&, const TransferHello&) = default;
};

// How a rank is reached.
enum class TransferRoute : uint8_t {
  kService,  // it streams chunks from the service
  kShared,   // it reads the root's memory, on the same GPU
  kNccl,
};
std::string_view TransferRouteName(TransferRoute route);

struct RouteChoice {
  TransferRoute route = TransferRoute::kService;
  std::string why;  // of kService: what does not fit

  friend bool operator==(const RouteChoice&, const RouteChoice&) = default;
};

// The route from a root to a rank.
RouteChoice ChooseRoute(const TransferHello& root, const TransferHello& rank);
// The routes from a root to many ranks: a communicator takes each GPU once, so that of several
// ranks on one, which is not the root's, the first is reached by NCCL.
std::vector<RouteChoice> ChooseRoutes(const TransferHello& root,
                                      absl::Span<const TransferHello> ranks);

// What the service tells a party of a group.
struct TransferPlan {
  uint64_t epoch = 0;
  TransferRoute route = TransferRoute::kService;
  std::string unique_id;  // of the communicator, kNccl alone
  // In the group. The root is 0; members of the communicator come first, and have their rank in it.
  uint32_t index = 0;
  uint32_t size = 0;  // of the communicator, with the root; 0: there is none, or no part in it
  uint64_t frame_bytes = 0;  // of a frame at most; the same for all of a group
};

// Consecutive chunks of one transaction, from one stretch of the root's memory. One without bytes
// says that the frames before it were all. All members of a group see all of its frames, in order;
// those that are not in a frame's audience have nothing to do with its bytes.
struct FrameHeader {
  struct Chunk {
    uint64_t offset = 0;
    uint64_t size_bytes = 0;
    friend bool operator==(const Chunk&, const Chunk&) = default;
  };
  uint64_t epoch = 0;
  uint64_t sequence = 0;  // 0, 1, 2, ... in the group
  TransactionNumber transaction;
  uint64_t size_bytes = 0;
  std::vector<Chunk> chunks;  // ascending, without overlap
  bool is_last = false;       // of this root in this transaction
  // Who enters it, by index in the group, ascending. Empty: all.
  std::vector<uint32_t> audience;
  // So many chunks were left out before the end of this frame: nobody in the group wants them.
  uint64_t unsent_chunks = 0;
  // Where a rank on the root's GPU finds the frame, as the root's FrameSender names it.
  std::string location;

  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

inline constexpr uint64_t kMaxFrameBytes = uint64_t{256} << 20;
// Chunks begin at multiples of this, in a frame and in memory.
inline constexpr uint64_t kFrameAlignment = 16;
// Of one group, at a rank: under way or unreleased.
inline constexpr size_t kMaxHeldFrames = 3;

// Whether a group can be joined at all by what a port is told of it.
//   kInvalidArgument: without a route, without a place in its communicator, or with frames of no
//   size, or past kMaxFrameBytes
absl::Status CheckTransferPlan(const TransferPlan& plan);

bool IsFor(const FrameHeader& frame, uint32_t index);
// Whether all of a communicator of `size` with the root enter the frame.
bool IsForAllOf(const FrameHeader& frame, uint32_t size);

// Whether a frame can be entered: its epoch, its place in the order, its sizes.
//   kFailedPrecondition: another epoch or sequence number than is next
//   kInvalidArgument: chunks that overlap, are empty, misaligned or reach past the frame; a frame
//     that is larger than was agreed; one without chunks that has bytes, or is not the last; an
//     audience with the root, that does not ascend, or of a frame without chunks
absl::Status CheckFrame(const FrameHeader& frame, const TransferPlan& plan, uint64_t next_sequence);
//   kFailedPrecondition: kMaxHeldFrames are `held` already
absl::Status CheckHeldFrames(const FrameHeader& frame, size_t held);

// The chunks of a frame whose bytes are at `data`.
std::vector<DeviceChunk> ChunksAt(const FrameHeader& frame, const uint8_t* data);

// A rank's end of one group. Threads: one at a time, but for Cancel. Errors of all methods:
//   kCancelled: Cancel was called
//   kDeadlineExceeded, kUnavailable: the group is broken; leave it
class FrameReceiver {
 public:
  virtual ~FrameReceiver() = default;

  // Enters the frame's collective and returns; of a frame for others it takes note alone, and no
  // chunks come of it. kMaxHeldFrames may be under way or unreleased at a time. Errors: also as
  // CheckFrame and CheckHeldFrames, before anything was entered.
  virtual absl::Status Enter(const FrameHeader& frame, Deadline deadline) = 0;
  // Waits for the frame that was entered first and not awaited. The bytes stay until Release.
  //   kFailedPrecondition: there is none
  virtual absl::StatusOr<std::vector<DeviceChunk>> Await(Deadline deadline) = 0;
  // Of the frame that was awaited first and not released: its bytes are of no use any more.
  virtual void Release() = 0;

  // From any thread: what waits returns soon, and so does all that comes.
  virtual void Cancel() = 0;
};

// The root's end. Likewise.
class FrameSender {
 public:
  virtual ~FrameSender() = default;

  // For FrameHeader::location: how a process on this device finds this memory.
  virtual absl::StatusOr<std::string> Locate(const void* data, uint64_t size_bytes) = 0;
  // Enters the frame's collective, with its bytes at `data`, and returns. They must stay until
  // Drain. One without bytes has no collective. Errors: also as CheckFrame, before anything was
  // entered.
  virtual absl::Status Send(const FrameHeader& frame, const void* data, Deadline deadline) = 0;
  // Waits until all frames are on their way: their memory is of no use to the group any more, but
  // for ranks that share it. NCCL may still hold bytes that a rank has not got; they are lost if
  // the root leaves now.
  virtual absl::Status Drain(Deadline deadline) = 0;
  virtual void Cancel() = 0;
};

// What a process has to take part in groups. Thread-safe; every call may block until its deadline.
class TransferPort {
 public:
  virtual ~TransferPort() = default;

  virtual TransferHello hello() const = 0;
  // Names a communicator, for one attempt.
  virtual absl::StatusOr<std::string> NewUniqueId() = 0;
  // Joins as a rank, or as the root. `is_cancelled` is asked all the time.
  //   kInvalidArgument: as CheckTransferPlan, or a route that this port does not have
  //   kCancelled: `is_cancelled` became true
  //   kDeadlineExceeded: not all came
  //   kUnavailable: NCCL says why
  virtual absl::StatusOr<std::unique_ptr<FrameReceiver>> Join(
      const TransferPlan& plan, Deadline deadline, std::function<bool()> is_cancelled) = 0;
  virtual absl::StatusOr<std::unique_ptr<FrameSender>> Lead(const TransferPlan& plan,
                                                            Deadline deadline,
                                                            std::function<bool()> is_cancelled) = 0;
};

}  // namespace wstore
