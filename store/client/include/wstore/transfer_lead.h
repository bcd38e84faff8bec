// wstore::TransferLead: a publisher at the head of a transfer group.
//
//   ASSIGN_OR_RETURN(auto lead, wstore::TransferLead::Start(connect, port, {}));
//   ... begin a publish with PublishOptions::carried, make its chunks, and:
//   lead->Send(upload->transaction(), chunks, deadline).IgnoreError();  // ranks fetch what fails
//   RETURN_IF_ERROR(upload->SetChunks(copies, digest));                 // for the journal
//
// It keeps a stream to the service, learns of ranks that come and go, and has the next group ready
// before a transaction needs it. Nothing depends on it for what is right: chunks that a rank does
// not get from here it takes from the service, where they are put as well.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/connect.h"
#include "wstore/deadline.h"
#include "wstore/transfer_group.h"
#include "wstore/types.h"

namespace wstore {

struct TransferLeadOptions {
  uint32_t contributor = 0;
  // Of a frame at most. 0: 64 MiB in groups with ranks over NCCL, which keep memory for two; where
  // all ranks share this memory frames are kept nowhere, and may have kMaxFrameBytes.
  uint64_t frame_bytes = 0;
  int64_t join_micros = 15'000'000;
  std::function<void()> on_thread;  // first in each thread that joins groups
  std::function<void(const std::string&)> log;
};

// How the ranks are reached now.
struct TransferLeadStatus {
  struct Rank {
    std::string name;  // "instance/rank"
    TransferRoute route = TransferRoute::kService;
    std::string why;  // of kService
  };
  bool is_connected = false;
  uint64_t epoch = 0;       // of the group that the next transaction takes; 0: none is ready
  std::vector<Rank> ranks;  // as of the latest plan
  std::string error;        // the latest
};

// Threads: any; one Send or SendPart at a time.
class TransferLead {
 public:
  // Connects in the background, and again whenever the connection is lost.
  //   kInvalidArgument: see ConnectOptions, or frames larger than kMaxFrameBytes
  static absl::StatusOr<std::unique_ptr<TransferLead>> Start(const ConnectOptions& connect,
                                                             std::shared_ptr<TransferPort> port,
                                                             const TransferLeadOptions& options);
  virtual ~TransferLead() = default;

  virtual TransferLeadStatus status() const = 0;
  // Until a group is ready that has so many ranks, by shared memory or NCCL.
  //   kDeadlineExceeded: says how the ranks are reached
  virtual absl::Status AwaitRanks(size_t ranks, Deadline deadline) const = 0;

  // Sends all chunks of this contributor as frames, from where they lie, and returns when they have
  // been sent. Those less than 4 KiB apart are of one allocation. Ranks that share the memory read
  // it until the transaction has ended; it must stay as it is until then.
  //   kUnavailable: no group is ready; or it broke, and the service was told so
  //   kDeadlineExceeded: a rank did not enter; likewise
  absl::Status Send(TransactionNumber transaction, absl::Span<const DeviceChunk> chunks,
                    Deadline deadline) {
    return SendPart(transaction, chunks, SetPart::kLast, deadline);
  }

  // The same in several calls, so that chunks are on their way while others are being made: any
  // number of kMore, then one kLast. Each may have no chunks. kMore returns when its frames have
  // been entered: the memory must stay as it is until kLast has returned, or a call has failed, and
  // until the transaction has ended. So a set that is given up is ended by kLast as well, perhaps
  // without chunks.
  //
  // All parts go through the group that was ready for the first one. If that breaks, nothing more
  // of the set is sent: the parts that follow are answered with the same error.
  // Errors: as Send
  enum class SetPart { kMore, kLast };
  virtual absl::Status SendPart(TransactionNumber transaction, absl::Span<const DeviceChunk> chunks,
                                SetPart part, Deadline deadline) = 0;
};

}  // namespace wstore
