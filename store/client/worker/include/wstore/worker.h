// wstore::Worker: keeps the live weights of one rank at the version that its server says.
//
// For an engine that serves. It gives the memory and the layout; the worker proves what the memory
// holds, follows head, and says when output may be released:
//
//   ASSIGN_OR_RETURN(auto base, wstore::ReadWorkerBase(connect, deadline));    // names, dtypes,
//   shapes
//   ... layout and buffers for base->manifest ...
//   ASSIGN_OR_RETURN(auto worker, wstore::Worker::Start(base, layout, buffers, options, deadline));
//   while (worker->AtSafePoint() == wstore::SafePoint::kRun) {           // between two steps
//     ... one step of the engine ...
//     if (worker->MayServe()) ... release its output ...
//   }
//
// What holds (docs/worker.md, docs/protocol.md):
//   - Weights change only while the engine stands in AtSafePoint, on all ranks of the instance at
//     the same step, and all or nothing.
//   - MayServe is true only while this rank is known to hold the version it serves, with the whole
//     instance, and its lease lasts. A rank that has lost its server stops by itself.
//   - ReplicaOptions::on_change is called once for each real change of version, before output of
//     the new version can be released; never for a failed or repeated attempt.
//   - Memory that is found to be damaged is written anew, from the base's files or by the server,
//     and catches up.
//
// Threads: any, but AtSafePoint, Suspend, Resume and Relayout are the engine's. The worker has
// three threads ("ws-core", "ws-stage", "ws-memory") and those of gRPC and of the replica. The
// engine's thread waits for none of the network; AtSafePoint waits while the weights may not be
// read. Callbacks come from ws-core or ws-memory; they must not block, nor call the worker.
//
// Bounded: one update at a time, within ReplicaOptions::stage_budget_bytes; queues of 4,096
// messages; every wait has a deadline, or ends by Leave.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/connect.h"
#include "wstore/instance_group.h"
#include "wstore/replica.h"
#include "wstore/transfer_group.h"

namespace wstore {

// What all versions of a store are made of. Immutable once made.
struct WorkerBase {
  Manifest manifest;
  Digest base_digest;
};

// Asks the server. Waits for it until the deadline, and blocks.
//   kUnavailable: no server answers; kInvalidArgument, kNotFound: see ConnectOptions
absl::StatusOr<std::shared_ptr<const WorkerBase>> ReadWorkerBase(const ConnectOptions& connect,
                                                                 Deadline deadline);

enum class SafePoint {
  kRun,     // go on: the weights are whole, and stay so until the next safe point
  kHeld,    // the deadline has passed; weights may not be read: call again
  kClosed,  // the worker has left
};

struct WorkerOptions {
  ConnectOptions connect;
  std::string instance;                  // 1 to 128 bytes
  std::shared_ptr<InstanceGroup> group;  // null: this rank is the whole instance
  // v0, to load from; null: from the server. Must outlive the worker.
  const DenseSource* base = nullptr;
  // The memory holds v0 already: it is audited, and loaded only if it does not.
  bool holds_base = false;
  // Chunks come from the publisher's GPU where both can, past the server; null: never. In memory of
  // the replica's backend.
  std::shared_ptr<TransferPort> transfer;
  ReplicaOptions replica;
  // Only chunks with a tile of a tensor that the layout places are wanted from the server: for
  // ranks that hold a part of the tensors (expert or pipeline parallelism). Such a rank takes no
  // digest of a patch set; what it votes is proved by sums, as always, which the server compares.
  bool subscribes = false;
  // Writes damaged or unknown memory anew by itself. If not, Prove has to be called.
  bool rebuilds = true;
  // Serves on when its lease is lost: such an instance cannot be fenced, and a store without it
  // aborts its publishes.
  bool serves_on_lost_lease = false;
  int64_t report_interval_micros = 0;  // 0: a quarter of the lease
  int64_t audit_interval_micros = 0;   // of the whole memory, beside serving; 0: never by itself
  // Called first in each thread that works on the memory: an engine on a GPU makes its device the
  // thread's.
  std::function<void()> on_thread;
  // The engine is wanted at a safe point. An idle engine makes empty steps until it stands there,
  // on all ranks alike.
  std::function<void()> on_wanted;
  std::function<void(const std::string&)> log;  // one line each, without time or newline
  // "staged", "voted", "paused", "applying", "applied", "decided": before each is done, or said.
  // With `transfer` also "hello" and "joining", and "receiving" once a frame was entered. In any
  // thread. For tests of faults: it may stop the process.
  std::function<void(std::string_view)> on_step;
};

struct WorkerStatus {
  std::optional<VersionName> version;  // proved, and decided
  MoveNumber move;
  bool may_serve = false;
  std::string standing;  // "out", "resuming", "serving" or "paused"
  std::string stage;     // of an update: "none", "staging", ...
  uint64_t epoch = 0;    // of the server's run
  bool is_connected = false;
  bool is_poisoned = false;
  std::string detail;  // why it does not serve, or the last error
  uint64_t changes = 0;
  uint64_t carried_bytes = 0;     // of chunks that have come past the server
  uint64_t served_bytes = 0;      // of chunks that the server sent, packed or not
  int64_t last_pause_micros = 0;  // from the engine's stop for an update until it could go on
};

class Worker {
 public:
  // Attaches a replica to `buffers` (Replica::Attach says what they are), exchanges layouts with
  // the other ranks of the instance, and begins. Blocks until all ranks of the instance have come,
  // but not for the server. The buffers' memory must outlive the worker, and is written from now
  // on.
  //   kInvalidArgument: as Replica::Attach and RegionMap::Create; a bad name of the instance
  //   kDeadlineExceeded: ranks of the instance that did not come; they are named
  static absl::StatusOr<std::unique_ptr<Worker>> Start(std::shared_ptr<const WorkerBase> base,
                                                       std::shared_ptr<const Layout> layout,
                                                       absl::Span<const LocalBuffer> buffers,
                                                       WorkerOptions options, Deadline deadline);
  // Leaves without waiting.
  ~Worker();

  // To be called between two steps, by all ranks of the instance alike. Costs nanoseconds when
  // nothing is to be done. While an update is written, and while the instance does not serve, it
  // waits, up to the deadline.
  SafePoint AtSafePoint();
  SafePoint AtSafePoint(Deadline deadline);

  // Whether output may be released at this moment. To be asked at every release.
  bool MayServe() const;
  WorkerStatus status() const;
  //   kDeadlineExceeded: says what is in the way
  absl::Status AwaitServing(Deadline deadline) const;

  // Something other than wstore changes the weights, or has. The rank is out when it returns, until
  // Prove. To be called at a safe point.
  //   kUnavailable: an update is being decided; again at the next safe point
  absl::Status Invalidate(const std::string& reason);
  // The weights may be compared again: with the last version that was proved, or v0. What is
  // something else is rebuilt, if the options say so.
  void Prove();
  // Memory goes away (the engine sleeps); and comes back, at other addresses, to be proved.
  //   kUnavailable: as for Invalidate
  absl::Status Suspend();
  absl::Status Resume(absl::Span<const LocalBuffer> buffers);
  // Another layout, of a higher generation, on all ranks of the instance alike. The memory is
  // proved in it. Blocks as Start does.
  //   kUnavailable: as for Invalidate
  absl::Status Relayout(std::shared_ptr<const Layout> layout, absl::Span<const LocalBuffer> buffers,
                        Deadline deadline);

  // Goes out and says so, so that nobody waits for this rank's lease; an update that is being
  // decided is waited for until the deadline. AtSafePoint returns kClosed from then on.
  void Leave(Deadline deadline);

 private:
  class Impl;
  explicit Worker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace wstore
