// What comes of one transaction as frames, on its way from a FrameIntake to the update that it is
// of.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "store/client/worker/content_stream.h"
#include "wstore/transfer_group.h"

namespace wstore::client {

// Threads: any.
class Delivery {
 public:
  using Stage = std::function<absl::Status(absl::Span<const DeviceChunk>)>;

  // Whether this contributor's chunks are expected as frames.
  bool carries(uint32_t contributor) const { return parts_.contains(contributor); }
  // Chunks go to `stage` from now on; frames wait for this.
  void Open(Stage stage);
  // Waits until all of a contributor's frames are staged. How many chunks that were. The
  // contributor has said by now that it has sent all: it is not waited for if nothing comes.
  //   kCancelled: cancelled
  //   others: not all will come, or one was refused; the server has them
  absl::StatusOr<uint64_t> Await(uint32_t contributor, const Cancellation& cancellation);
  // No chunk is staged any more when this has returned.
  void Close();

  // For the intake. Expect: before all others. Arrived is called in the order of frames, Take of
  // several at a time. It waits for Open, up to the deadline, and drops what is not wanted any
  // more.
  void Expect(uint32_t contributor, uint64_t epoch) { parts_[contributor].epochs.insert(epoch); }
  void Announced(const FrameHeader& frame);
  void Arrived(const FrameHeader& frame, uint32_t contributor);
  void Take(const FrameHeader& frame, uint32_t contributor, absl::Span<const DeviceChunk> chunks,
            Deadline deadline);
  // A group has broken.
  void Fail(uint64_t epoch, const absl::Status& status);

 private:
  struct Part {
    std::set<uint64_t> epochs;     // of the groups that it may be sent through
    std::optional<uint64_t> used;  // the one that it is
    uint64_t chunks = 0;
    uint64_t under_way = 0;  // frames that were announced, and are neither staged nor dropped
    uint64_t taken = 0;      // frames that have come, and are not staged
    bool has_last = false;   // the last one has come
    std::chrono::steady_clock::time_point last_sign;
    bool is_whole = false;
    absl::Status status;
  };
  absl::Status StageFrame(absl::Span<const DeviceChunk> chunks, Deadline deadline,
                          std::unique_lock<std::mutex>& lock, const Part& part);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint32_t, Part> parts_;  // by contributor; their keys never change
  Stage stage_;
  size_t staging_ = 0;
  bool is_closed_ = false;
};

}  // namespace wstore::client
