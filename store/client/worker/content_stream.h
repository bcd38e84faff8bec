// What a worker fetches from the server: the content of updates, and dense bytes.
//
// All functions block, and go on where they were when a stream breaks: they end when all is there,
// when the server refuses, or when they are cancelled. They are for threads of the worker's own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/client/connection.h"
#include "wstore/replica.h"
#include "wstore/tensor_set.h"

namespace wstore::client {

class Delivery;

// Ends calls from another thread.
class Cancellation {
 public:
  void Cancel();
  bool is_cancelled() const;
  // Waits for `micros`, or until it is cancelled.
  void Sleep(int64_t micros);

  // Registers a call for as long as it lives.
  class Call {
   public:
    explicit Call(Cancellation& cancellation);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    grpc::ClientContext* context() { return &context_; }

   private:
    Cancellation& cancellation_;
    grpc::ClientContext context_;
  };

 private:
  mutable std::mutex mutex_;
  std::condition_variable cancelled_;
  bool is_cancelled_ = false;
  std::vector<grpc::ClientContext*> calls_;
};

// Calls `attempt` until it returns something that another attempt does not change, with growing
// pauses. A call that has made progress begins with short ones again.
//   kCancelled: by `cancellation`
absl::Status RepeatUntilSettled(Cancellation& cancellation,
                                const std::function<absl::Status(bool* progress)>& attempt);

// Where an update that was begun goes, and what is wanted of it.
struct StageTarget {
  Replica& replica;
  TransactionNumber transaction;
  TensorSet tensors;                // chunks without a tile of these are left out
  std::atomic<uint64_t>& received;  // bytes of chunks from the server are added to it
  Cancellation& cancellation;
};

// Stage an update. What they return is for FinishStaging; without to_chain_digest. `declared` is
// set for a difference only: the votes for an open publish are judged by the server. `delivery`:
// chunks that come another way, and are fetched only where that fails; null: none.
absl::StatusOr<UpdateSummary> StageOpenPublish(const Connection& connection,
                                               const StageTarget& target, uint32_t contributors,
                                               Delivery* delivery);
absl::StatusOr<UpdateSummary> StageDifference(const Connection& connection,
                                              const StageTarget& target, const Manifest& manifest,
                                              const VersionName& from, const VersionName& to);

// Dense bytes of a version. `manifest`, `connection` and `cancellation` must outlive it. Memory:
// 32 tiles for each span that is open.
std::unique_ptr<DenseSource> MakeServedDense(const Connection& connection, const Manifest& manifest,
                                             const VersionName& version,
                                             Cancellation& cancellation);

}  // namespace wstore::client
