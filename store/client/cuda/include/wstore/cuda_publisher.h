// wstore::CudaPublisher: what a trainer publishes weights with that lie in the memory of a GPU.
//
//   ASSIGN_OR_RETURN(auto publisher, wstore::CudaPublisher::Start(client, connect, options,
//   deadline));
//   ...                                                      // train
//   auto decision = publisher->Publish(weights, publish, deadline);
//   if (wstore::ConflictHead(decision.status())) ...         // an operator has moved head:
//     publisher->Rebase(deadline);                           // the shadow goes there
//
// As wstore::Publisher, but the shadow is in device memory, weights are compared and encoded where
// they lie, and chunks go to ranks from there, through a transfer group that it leads. Copies of
// them go to the server beside that. Under durability `async` the decision does not wait for those:
// what the ranks hold is proved against the sums and the digest that are declared. The publish
// after it does.
//
// Ranks of a sharded trainer publish together, each from its own GPU: each has a publisher with a
// number (CudaPublisherOptions::contributor) and the share of the checkpoint that it holds, and all
// call Publish for each version, under the same transaction id, also one whose weights have not
// changed. The version is decided when all have committed, and each gets the decision. Shares must
// not overlap; what none of them has does not change.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/client.h"
#include "wstore/cuda.h"
#include "wstore/fingerprint.h"
#include "wstore/share.h"
#include "wstore/transfer_lead.h"

namespace wstore {

struct CudaPublisherOptions {
  CudaStream stream = nullptr;
  // For the shadow (as large as the share) and the changes. Must outlive the publisher. Where ranks
  // are other processes on this GPU, they are reached only in such as MakeCudaDeviceMemory gives.
  CudaMemory* memory = nullptr;
  // Room for the encoded changes of one publish, 3 to 4 bytes for each changed element of two: on
  // the device twice, and once in pinned host memory. 0: a sixteenth of the share.
  uint64_t patch_bytes = 0;
  // Changes are found, and sent to ranks, in so many parts, up to kMaxDiffParts: a part is compared
  // while ranks take the one before. More cost more launches, and more frames. 0: 4, and one more
  // for each 10 GB of the share.
  uint32_t parts = 0;
  // Without it all ranks get their chunks from the server.
  bool leads = true;
  TransferLeadOptions lead;  // leads as `contributor`
  // One of so many, which are numbered from 0 and begin, and are decided, together.
  uint32_t contributor = 0;
  uint32_t contributors = 1;
  // What this one holds; the others may hold anything else. Empty: the whole checkpoint.
  Share share;
};

// How long the steps of the latest Publish took, in microseconds. Those before `diff` are within
// it; `diff` and those after it come one after another, and `all` is their sum.
struct CudaPublishTimes {
  int64_t begin = 0;   // until the server had begun it, and the GPU had the first part to compare
  int64_t first = 0;   // until the first part was encoded
  int64_t diff = 0;    // until the last part was, and ranks had been sent those before
  int64_t send = 0;    // of the last part; of all of them, if they were held for before_sending
  int64_t digest = 0;  // until the digest and the sums of all were known
  int64_t commit = 0;  // until it was decided
  int64_t all = 0;
  absl::Status sent;  // where it did not reach ranks past the server: why
};

// One thread at a time, whose device is the stream's. Does not keep the weights.
class CudaPublisher {
 public:
  // Fills the shadow with head's bits, and checks them. `local`: where they are read, such as a
  // checkpoint on the trainer's own disk; null: from the server. The fingerprint that a version has
  // is that of the whole: what is read of a share is compared when ranks compare the sums over the
  // old bits of what changes, before they vote; or by all contributors together (see fingerprint).
  //   kInvalidArgument: a share that is none (HeldRanges); a contributor that is none of so many
  //   kResourceExhausted: no room for the shadow or the changes
  //   kDataLoss: the bits do not have the recorded fingerprint
  static absl::StatusOr<std::unique_ptr<CudaPublisher>> Start(std::shared_ptr<Client> client,
                                                              const ConnectOptions& connect,
                                                              const CudaPublisherOptions& options,
                                                              Deadline deadline,
                                                              const TensorSource* local = nullptr);
  virtual ~CudaPublisher() = default;

  virtual const Manifest& manifest() const = 0;
  // The version whose bits the shadow has, and the head move that it was published by.
  virtual const HeadInfo& parent() const = 0;
  // The shadow's tensors in device memory, in order of the manifest: the first element that is
  // held; null: none is. Only to be read.
  virtual absl::Span<const void* const> shadow() const = 0;
  // Of the shadow. Those of shares that are all of a checkpoint add up to the fingerprint of the
  // version (VersionInfo::fingerprint).
  virtual Fingerprint fingerprint() const = 0;
  // The group that it leads; null without one.
  virtual const TransferLead* lead() const = 0;
  // The id of a publish whose outcome is unknown. The next call asks for it first.
  virtual std::optional<std::string> in_doubt() const = 0;
  virtual const CudaPublishTimes& times() const = 0;

  // Publishes what these tensors (device memory; for each of the manifest's the address of its
  // first element in the share, null where there is none) hold once what is on the stream has been
  // done; they must not change until it returns. Of several contributors all must publish, under
  // one id. Parts of the
  // changes are sent while others are still being found; with PublishOptions::before_sending all
  // are found first, and nothing is sent before it was called. As Publisher::Publish; in addition
  //   kInvalidArgument: several contributors without a transaction id; another contributor in
  //     `options` than this one
  //   kFailedPrecondition: another contributor's shadow is at another version. It was aborted;
  //     Rebase, all of them
  //   kAborted: another contributor gave up; likewise, everything is as before
  //   kOutOfRange: the changes take more than patch_bytes
  // A contributor that is silent is waited for until the deadline (kUnknown), or until somebody
  // aborts the transaction (Client::Abort).
  virtual absl::StatusOr<Decision> Publish(absl::Span<const void* const> weights,
                                           const PublishOptions& options, Deadline deadline) = 0;

  // Waits until the latest publish is durable.
  //   kDataLoss: it never will be: its content did not reach the server. Rebase
  virtual absl::Status AwaitDurable(Deadline deadline) = 0;

  // As Publisher::Rebase.
  virtual absl::StatusOr<ServedHead> Rebase(Deadline deadline) = 0;
};

}  // namespace wstore
