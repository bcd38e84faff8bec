// One communicator of NCCL that cannot hang its caller: everything has a deadline, errors that NCCL
// reports by itself are looked for all the time, and an abort runs in a thread of its own.
//
// NCCL sees some deaths at once (a closed socket) and others never (a process that was stopped, or
// one that dies on the same host behind shared memory). So whoever uses this also listens to the
// service, and cancels.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/cuda.h"
#include "wstore/deadline.h"

namespace wstore::nccl {

struct Library;

// A communicator's name, for one attempt to make it. kUnavailable: no NCCL
absl::StatusOr<std::string> NewUniqueId();

// Aborts that have not come to an end so far: their communicators, and the threads in them, are
// left behind. A process with such ones should be started again when there is time for it.
uint64_t UnfinishedAborts();

// Threads: one at a time, but for Cancel.
class Communicator {
 public:
  struct Place {
    std::string unique_id;  // the same for all, used once
    int rank = 0;
    int ranks = 0;
  };

  // Meets the other ranks, on the device of this thread, and makes a stream for the transfers.
  //   kDeadlineExceeded: not all came in time
  //   kUnavailable: NCCL failed, or a peer did; the message has what NCCL says
  //   kCancelled: `is_cancelled` became true
  static absl::StatusOr<std::unique_ptr<Communicator>> Create(
      const Place& place, Deadline deadline, const std::function<bool()>& is_cancelled);
  // Aborts what is under way.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  CudaStream stream() const { return stream_.get(); }

  // Puts a broadcast of `size_bytes` on the stream, the same for all ranks: of `from` at the root
  // to `to` at the others. Both are device memory. Errors: as Create; the communicator is then of
  // no use any more.
  absl::Status Broadcast(const void* from, void* to, uint64_t size_bytes, int root,
                         Deadline deadline);

  // Puts a transfer of `from` at this rank to each of `ranks`, which call Receive, on the stream:
  // all of them side by side. Errors: likewise.
  absl::Status Send(const void* from, uint64_t size_bytes, absl::Span<const uint32_t> ranks,
                    Deadline deadline);
  absl::Status Receive(void* to, uint64_t size_bytes, int from, Deadline deadline);

  // A point on the stream.
  using Mark = uint64_t;
  // Behind all that is on the stream now.
  absl::StatusOr<Mark> PutMark();
  // Until the stream has come to the mark. Errors: as Create; likewise.
  absl::Status Await(Mark mark, Deadline deadline);

  // From any thread, at any time: what waits returns kCancelled soon, and so does all that comes.
  void Cancel();
  // kCancelled: Cancel was called
  absl::Status CheckCancelled() const;

  // Gives up what is under way. Returns when NCCL has let go of the device, or after two seconds;
  // the communicator is then of no use any more. False: NCCL has not let go.
  bool Abort();

 private:
  struct Events;
  Communicator(const Library& library, OwnedCudaStream stream,
               const std::function<bool()>& is_cancelled);
  absl::Status Settle(const char* what, int result, Deadline deadline);
  absl::Status Failure(const char* what, int result) const;
  absl::Status CheckPeers(const char* what, Deadline deadline) const;

  const Library& library_;
  const std::function<bool()> is_cancelled_;
  std::shared_ptr<std::atomic<bool>> cancelled_;
  void* comm_ = nullptr;  // ncclComm_t
  OwnedCudaStream stream_;
  std::unique_ptr<Events> events_;
};

}  // namespace wstore::nccl
