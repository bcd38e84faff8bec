// wstore::Client: a store that another process serves (docs/client.md, docs/service.md).
//
//   ASSIGN_OR_RETURN(auto client, wstore::Client::Connect({.address =
//   "unix:/stores/m/wstore.sock"})); ASSIGN_OR_RETURN(auto head,
//   client->Head(wstore::Deadline::After(5'000'000)));
//
// A trainer that publishes often uses a Publisher (publisher.h), which keeps the last version's
// bits in host memory. This class moves head, looks, reads content, and sends patches that somebody
// else has made.
//
// Threads: every method may be called from any thread; several calls run side by side. All block
// until they are answered or the deadline has passed. Processes: a child of fork must connect anew;
// calls in it are refused. Nothing is static: when the last object is gone, so are its threads.
//
// Errors, for all methods, beside those of their own:
//   kUnavailable: no server answers, or it is busy or starting; tried again until the deadline, and
//     nothing was done
//   kDeadlineExceeded: no answer in time; nothing was changed
//   kUnknown: the outcome of what commits or moves head cannot be told by the deadline; the message
//     says under which id to ask. Doing the same again under the same id is safe
//   kFailedPrecondition, kAborted: refused or decided against; ConflictHead gives the server's head
//   kInvalidArgument, kResourceExhausted: a limit of the server (proto/wstore/v1/service.proto)
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/connect.h"
#include "wstore/manifest.h"
#include "wstore/patch_source.h"
#include "wstore/progress.h"
#include "wstore/served.h"
#include "wstore/upload.h"

namespace wstore {

namespace client {
class Connection;
}

// What moves head or marks a version. The same id and target again gives the first outcome.
struct MoveOptions {
  std::string version;         // "v42" or a tag
  std::string transaction_id;  // at most 256 bytes; empty: one is made
  std::string message;
  bool force = false;    // rollback only: also to a version that is marked bad
  bool dry_run = false;  // rollback only: kUnchanged, with the version that it would go to
};

class Client {
 public:
  // Checks the options; does not wait for the server. `actor`: what log shows as the doer; empty:
  // user@host.
  //   kInvalidArgument, kNotFound: see ConnectOptions
  static absl::StatusOr<std::shared_ptr<Client>> Connect(const ConnectOptions& options,
                                                         const std::string& actor = "");
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const std::string& address() const;
  // Waits until a server answers; kUnavailable: none has by the deadline.
  absl::Status WaitUntilConnected(Deadline deadline) const;

  // Looking. Lists come newest first, at most `limit` entries, in as many pages as they need.
  //   kNotFound: no such version or tag; what there is, is named
  absl::StatusOr<ServerStatus> Status(Deadline deadline) const;
  absl::StatusOr<ServedHead> Head(Deadline deadline) const;
  absl::StatusOr<VersionInfo> Version(const std::string& name, Deadline deadline) const;
  absl::StatusOr<std::vector<VersionInfo>> Versions(size_t limit, Deadline deadline) const;
  absl::StatusOr<std::vector<MoveInfo>> Moves(size_t limit, Deadline deadline) const;
  absl::StatusOr<std::vector<TagInfo>> Tags(Deadline deadline) const;  // by name
  absl::StatusOr<std::vector<WorkerInfo>> Workers(Deadline deadline) const;
  absl::StatusOr<std::vector<OpenTransaction>> Transactions(Deadline deadline) const;
  // Has every rank sum its live memory, beside its serving, and compare with what is recorded.
  absl::StatusOr<std::vector<WorkerCheck>> VerifyWorkers(Deadline deadline) const;
  // What became of an id. Waits while it is open.
  //   kNotFound: nothing was committed under it; it may be used (again)
  //   kAborted: it was decided against; everything is as before
  absl::StatusOr<Decision> Ask(const std::string& id, Deadline deadline) const;

  // Calls `changed` with head now and after every change of head, hold or state, in this thread,
  // until it returns false. Connects again where the server goes away. A caller that is slow sees
  // the latest only.
  //   kDeadlineExceeded: it has not returned false by then
  absl::Status Follow(const std::function<bool(const ServedHead&)>& changed,
                      Deadline deadline) const;
  // Waits until head is `version`.
  absl::StatusOr<ServedHead> WaitForHead(VersionId version, Deadline deadline) const;

  // Changing. Durable when they return OK.
  //   kNotFound: no such version, instance or transaction
  //   kAlreadyExists: the id was used for something else
  //   kFailedPrecondition: marked bad; not a candidate; a record that is being written
  absl::StatusOr<Decision> Rollback(const MoveOptions& options, Deadline deadline);
  absl::StatusOr<Decision> Promote(const MoveOptions& options, Deadline deadline);
  // Tries a candidate out: these instances serve it, and all others stay at head, until it is
  // promoted, reverted or rolled back. Meanwhile publishing is refused.
  absl::StatusOr<Decision> Rollout(const MoveOptions& options,
                                   const std::vector<std::string>& instances, Deadline deadline);
  // Ends the trial: its instances go back to head. `options` names no version.
  absl::StatusOr<Decision> Revert(const MoveOptions& options, Deadline deadline);
  absl::StatusOr<ServedHead> SetHold(bool hold, const std::string& reason, Deadline deadline);
  absl::Status Mark(const std::string& version, bool bad, const std::string& reason,
                    Deadline deadline);
  absl::Status Tag(const std::string& name, const std::string& version, Deadline deadline);
  absl::Status Evict(const std::string& instance, Deadline deadline);
  absl::Status Abort(const std::string& id, const std::string& reason, Deadline deadline);

  // Content. The client must outlive what these return.

  // The base's tensors; read once and kept.
  absl::StatusOr<std::shared_ptr<const Manifest>> ReadManifest(Deadline deadline) const;
  absl::StatusOr<Digest> BaseDigest(Deadline deadline) const;
  // A version's dense bytes. Its spans are streams: a few at a time (kDenseStreams), all by the
  // deadline.
  absl::StatusOr<std::unique_ptr<DenseSource>> ReadDense(VersionId version,
                                                         Deadline deadline) const;
  // The way between two versions, wholly in memory, checked against the digest that the server
  // declares (kDataLoss).
  absl::StatusOr<ServedDifference> ReadDifference(VersionId from, VersionId to,
                                                  Deadline deadline) const;

  // Publishing. See upload.h for publishes in steps and by several contributors.

  // What changes from `old` to `now`: `old` has the bits of options.begin.parent, or of head.
  // Encodes first, on all cores; then, within the deadline, opens, sends and commits, and goes on
  // where a connection breaks.
  //   kFailedPrecondition: head is another by now, or on hold, or marked bad
  //   kAlreadyExists: the id was committed with other content
  //   kDataLoss: the old bits do not have the parent's fingerprint
  //   kAborted: a worker refused or was too slow; everything is as before
  absl::StatusOr<Decision> Publish(const DenseSource& old, const DenseSource& now,
                                   const PublishOptions& options, Deadline deadline,
                                   const ProgressFn& progress = {});
  // Single elements. `old` is needed for patches of form kNew; may be null for others, and then the
  // server takes the sums.
  absl::StatusOr<Decision> Publish(absl::Span<const TensorPatch> patches, const DenseSource* old,
                                   const PublishOptions& options, Deadline deadline);
  // Opens a publish, or joins the one that is open under the same id.
  absl::StatusOr<std::unique_ptr<Upload>> Begin(const PublishOptions& options, Deadline deadline);

  // ReadDense streams that one process should have open at a time; the server allows 16 in all.
  static constexpr int kDenseStreams = 4;

  // For Publisher and Upload.
  const std::shared_ptr<client::Connection>& connection() const { return connection_; }
  const std::string& actor() const { return actor_; }

 private:
  Client(std::shared_ptr<client::Connection> connection, std::string actor);

  struct Kept;
  const std::shared_ptr<client::Connection> connection_;
  const std::string actor_;
  const std::unique_ptr<Kept> kept_;
};

}  // namespace wstore
