#include "transfer/nccl/communicator.h"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "transfer/cuda/runtime.h"
#include "transfer/nccl/library.h"

namespace wstore::nccl {
namespace {

constexpr std::chrono::seconds kAbortPatience{2};
constexpr std::chrono::microseconds kSpin{200};
constexpr std::chrono::microseconds kPause{50};

std::atomic<uint64_t> unfinished_aborts{0};

// Waits shorter than a broadcast takes at first, then leaves the core to others.
class Pacer {
 public:
  void Wait() {
    if (std::chrono::steady_clock::now() < spins_until_) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }

 private:
  const std::chrono::steady_clock::time_point spins_until_ =
      std::chrono::steady_clock::now() + kSpin;
};

struct AbortProgress {
  std::mutex mutex;
  std::condition_variable ended;
  bool has_ended = false;
};

}  // namespace

// Events, taken in turn.
struct Communicator::Events {
  ~Events() {
    for (const cudaEvent_t event : events) {
      if (event != nullptr) (void)WSTORE_CUDA(cudaEventDestroy(event));
    }
  }
  std::array<cudaEvent_t, 16> events{};
  Mark next = 0;
  int device = 0;
};

uint64_t UnfinishedAborts() { return unfinished_aborts.load(); }

absl::StatusOr<std::string> NewUniqueId() {
  ASSIGN_OR_RETURN(const Library* const library, LoadLibrary());
  ncclUniqueId id;
  const ncclResult_t result = library->GetUniqueId(&id);
  if (result != ncclSuccess) {
    return absl::UnavailableError(
        absl::StrCat("ncclGetUniqueId: ", library->GetErrorString(result)));
  }
  return std::string(id.internal, sizeof(id.internal));
}

Communicator::Communicator(const Library& library, OwnedCudaStream stream,
                           const std::function<bool()>& is_cancelled)
    : library_(library),
      is_cancelled_(is_cancelled),
      cancelled_(std::make_shared<std::atomic<bool>>(false)),
      stream_(std::move(stream)),
      events_(std::make_unique<Events>()) {}

Communicator::~Communicator() {
  if (Abort()) return;
  // What NCCL has not let go of may still use the stream.
  new OwnedCudaStream(std::move(stream_));
}

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Create(
    const Place& place, Deadline deadline, const std::function<bool()>& is_cancelled) {
  ASSIGN_OR_RETURN(const Library* const library, LoadLibrary());
  ncclUniqueId id;
  if (place.unique_id.size() != sizeof(id.internal)) {
    return absl::InvalidArgumentError(absl::StrCat("a unique id of ", place.unique_id.size(),
                                                   " bytes; one of NCCL has ",
                                                   sizeof(id.internal)));
  }
  std::memcpy(id.internal, place.unique_id.data(), sizeof(id.internal));
  ASSIGN_OR_RETURN(OwnedCudaStream stream, OwnedCudaStream::Create(CudaPriority::kHigh));
  std::unique_ptr<Communicator> made(new Communicator(*library, std::move(stream), is_cancelled));
  Events& events = *made->events_;
  RETURN_IF_ERROR(WSTORE_CUDA(cudaGetDevice(&events.device)));
  for (cudaEvent_t& event : events.events) {
    RETURN_IF_ERROR(WSTORE_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming)));
  }
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  const ncclResult_t result =
      library->CommInitRankConfig(&comm, place.ranks, id, place.rank, &config);
  made->comm_ = comm;
  const std::string what =
      absl::StrCat("joining a group of ", place.ranks, " as its rank ", place.rank);
  RETURN_IF_ERROR(made->Settle(what.c_str(), result, deadline));
  return made;
}

absl::Status Communicator::Failure(const char* what, int result) const {
  const char* const last = library_.GetLastError(static_cast<ncclComm_t>(comm_));
  return absl::UnavailableError(
      absl::StrCat(what, ": ", library_.GetErrorString(static_cast<ncclResult_t>(result)),
                   last != nullptr && *last != '\0' ? absl::StrCat(" (", last, ")") : "",
                   "; a peer may have died: see the other ranks"));
}

absl::Status Communicator::CheckPeers(const char* what, Deadline deadline) const {
  if (cancelled_->load() || (is_cancelled_ && is_cancelled_())) {
    return absl::CancelledError(absl::StrCat(what, ": given up"));
  }
  if (deadline.has_passed()) {
    return absl::DeadlineExceededError(
        absl::StrCat(what, ": not done in time; a peer stands still, or was not reached"));
  }
  return absl::OkStatus();
}

// Until NCCL has taken a call down.
absl::Status Communicator::Settle(const char* what, int result, Deadline deadline) {
  Pacer pacer;
  auto state = static_cast<ncclResult_t>(result);
  while (state == ncclInProgress) {
    RETURN_IF_ERROR(CheckPeers(what, deadline));
    const ncclResult_t asked = library_.CommGetAsyncError(static_cast<ncclComm_t>(comm_), &state);
    if (asked != ncclSuccess) state = asked;
    if (state == ncclInProgress) pacer.Wait();
  }
  return state == ncclSuccess ? absl::OkStatus() : Failure(what, state);
}

absl::Status Communicator::Broadcast(const void* from, void* to, uint64_t size_bytes, int root,
                                     Deadline deadline) {
  if (comm_ == nullptr) return absl::CancelledError("broadcast: the communicator was given up");
  RETURN_IF_ERROR(CheckPeers("broadcast", deadline));
  const ncclResult_t result = library_.Broadcast(from, to, size_bytes, ncclUint8, root,
                                                 static_cast<ncclComm_t>(comm_), stream_.get());
  return Settle("broadcast", result, deadline);
}

absl::Status Communicator::Send(const void* from, uint64_t size_bytes,
                                absl::Span<const uint32_t> ranks, Deadline deadline) {
  if (comm_ == nullptr) return absl::CancelledError("send: the communicator was given up");
  RETURN_IF_ERROR(CheckPeers("send", deadline));
  if (ranks.empty()) return absl::OkStatus();
  const auto comm = static_cast<ncclComm_t>(comm_);
  ncclResult_t result = library_.GroupStart();
  for (const uint32_t rank : ranks) {
    // Within a group a call of a communicator that does not block may be in progress.
    if (result != ncclSuccess && result != ncclInProgress) break;
    result =
        library_.Send(from, size_bytes, ncclUint8, static_cast<int>(rank), comm, stream_.get());
  }
  // The group is ended in any case.
  const ncclResult_t ended = library_.GroupEnd();
  const bool has_failed = result != ncclSuccess && result != ncclInProgress;
  return Settle("send", has_failed ? result : ended, deadline);
}

absl::Status Communicator::Receive(void* to, uint64_t size_bytes, int from, Deadline deadline) {
  if (comm_ == nullptr) return absl::CancelledError("receive: the communicator was given up");
  RETURN_IF_ERROR(CheckPeers("receive", deadline));
  const ncclResult_t result =
      library_.Recv(to, size_bytes, ncclUint8, from, static_cast<ncclComm_t>(comm_), stream_.get());
  return Settle("receive", result, deadline);
}

absl::StatusOr<Communicator::Mark> Communicator::PutMark() {
  const Mark mark = events_->next++;
  cudaEvent_t const event = events_->events[mark % events_->events.size()];
  RETURN_IF_ERROR(WSTORE_CUDA(cudaEventRecord(event, stream_.get())));
  return mark;
}

absl::Status Communicator::Await(Mark mark, Deadline deadline) {
  // An older mark's event was taken again since: waiting for that waits for this too.
  cudaEvent_t const event = events_->events[mark % events_->events.size()];
  Pacer pacer;
  for (;;) {
    if (comm_ == nullptr) return absl::CancelledError("broadcast: the communicator was given up");
    bool is_done = false;
    RETURN_IF_ERROR(cuda::Checked("cudaEventQuery", [&] {
      const cudaError_t error = cudaEventQuery(event);
      is_done = error == cudaSuccess;
      if (error != cudaErrorNotReady) return error;
      cudaGetLastError();  // it is remembered, though it is no error
      return cudaSuccess;
    }));
    // Also when all is done: a stream that NCCL has broken off is idle as well.
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = library_.CommGetAsyncError(static_cast<ncclComm_t>(comm_), &state);
    if (asked != ncclSuccess) state = asked;
    if (state != ncclSuccess && state != ncclInProgress) return Failure("broadcast", state);
    if (is_done) return absl::OkStatus();
    RETURN_IF_ERROR(CheckPeers("broadcast", deadline));
    pacer.Wait();
  }
}

void Communicator::Cancel() { cancelled_->store(true); }

absl::Status Communicator::CheckCancelled() const {
  if (!cancelled_->load()) return absl::OkStatus();
  return absl::CancelledError("broadcast: the communicator was given up");
}

bool Communicator::Abort() {
  if (comm_ == nullptr) return true;
  auto progress = std::make_shared<AbortProgress>();
  ++unfinished_aborts;
  std::thread([progress, &library = library_, comm = std::exchange(comm_, nullptr),
               device = events_->device] {
    cudaSetDevice(device);
    library.CommAbort(static_cast<ncclComm_t>(comm));
    --unfinished_aborts;
    const std::lock_guard<std::mutex> lock(progress->mutex);
    progress->has_ended = true;
    progress->ended.notify_all();
  }).detach();
  std::unique_lock<std::mutex> lock(progress->mutex);
  return progress->ended.wait_for(lock, kAbortPatience, [&] { return progress->has_ended; });
}

}  // namespace wstore::nccl
