// wstore::Upload: one contributor's part of a publish, in steps.
//
//   ASSIGN_OR_RETURN(auto upload, client->Begin(options, deadline));
//   RETURN_IF_ERROR(upload->Add(patches));
//   ASSIGN_OR_RETURN(wstore::Decision decision, upload->Commit(deadline));
//
// Several contributors, in one process or many, each call Begin with the same id and their own
// number, add patches of elements that no other one has (in blocks of 256), and commit; each gets
// the decision.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/connect.h"
#include "wstore/patch_set.h"
#include "wstore/served.h"

namespace wstore {

class Client;

// Every live instance ends at the new version or every one at the old; or head moves when durable,
// and instances follow on their own.
enum class PublishPolicy { kAll, kEach };
// kAsync: answered when the fleet serves it, durable a moment later. With kAll only.
enum class PublishDurability { kSync, kAsync };
// What becomes of instances that are too slow: as the server was started, or as named here.
enum class PublishLaggards { kAsServer, kFence, kAbort };

struct PublishOptions {
  // What it is made against. An empty id: one is made. Retrying after kUnknown needs the same id.
  BeginOptions begin;
  PublishPolicy policy = PublishPolicy::kAll;
  PublishDurability durability = PublishDurability::kSync;
  PublishLaggards laggards = PublishLaggards::kAsServer;
  // The store compares declared sums with the parent's bits, which it reads for that.
  bool check_sums = false;
  // The contributors send their chunks to ranks too, through the groups that they lead (see
  // TransferLead). What ranks do not get that way they ask the server for.
  bool carried = false;
  // Called when the new weights have been read, before anything is sent; an error ends the publish.
  std::function<absl::Status()> before_sending;
  uint32_t contributor = 0;
  uint32_t contributors = 1;  // at most 65,535
};

// One thread at a time. Keeps the client, and holds its patches, and then their chunks, in memory
// until it goes. Destroying it without Commit or Abort leaves the publish open: it can be joined
// again, and the server aborts it when its contributors have been silent for too long.
class Upload {
 public:
  virtual ~Upload() = default;

  // As the server gave them; of no meaning if `repeated` is set.
  virtual TransactionNumber transaction() const = 0;
  virtual VersionId version() const = 0;  // to be
  virtual const HeadInfo& parent() const = 0;
  // The id was committed before: this is its outcome. Commit compares the content with what was
  // added, and returns it.
  virtual const std::optional<Decision>& repeated() const = 0;

  // Adds patches; all of them or none. Errors: see PatchSetBuilder::Add.
  //   kFailedPrecondition: Upload was called
  virtual absl::Status Add(absl::Span<const TensorPatch> patches) = 0;

  // Takes all of this contributor's content as chunks, such as a CudaDiffer makes them under this
  // transaction's number and this contributor's, in order of keys; `digest` is that of its patches.
  // In place of Add. The store takes the sums from the parent's bits.
  //   kInvalidArgument: a chunk that is none of this base, transaction or contributor
  //   kFailedPrecondition: Add or this was called
  virtual absl::Status SetChunks(std::vector<std::string> chunks, const Digest& digest) = 0;

  // Encodes what was added and sends it: when it returns, all of it is in the server's hands. Goes
  // on where a connection breaks. `old`: the parent's bits of the tensors with patches; needed for
  // patches of form kNew, and with it sums are declared.
  //   kInvalidArgument: patches of form kNew without `old`; or refused by the server, which has
  //     aborted the publish
  //   kAborted, kNotFound: the publish has ended meanwhile
  virtual absl::Status Send(Deadline deadline, const DenseSource* old = nullptr) = 0;

  // Sends what has not been sent, says that this is all, and waits for the decision of the whole
  // publish. An outcome that is unknown is asked for by id until the deadline; then kUnknown, and
  // Commit may be called again.
  //   kAborted: decided against; everything is as before
  //   kUnavailable: the server was started again before it had all: begin again under the same id
  virtual absl::StatusOr<Decision> Commit(Deadline deadline) = 0;

  // Aborts the publish, of all contributors.
  virtual absl::Status Abort(const std::string& reason, Deadline deadline) = 0;
};

}  // namespace wstore
