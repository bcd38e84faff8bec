// The store under a server: what the coordinator of a fleet needs of the journal.
//
// Where Store decides by itself what may be committed, a LiveStore carries out what a coordinator
// has decided, under the numbers that the coordinator gives out. Only checks of content are its
// own: digests, sums, chunks that fit together.
//
// Threads: any. Calls that write are serialized and block on the disk; CompleteContent blocks for
// as long as the content is large, beside all others. Nothing else writes to the store
// meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/live_types.h"
#include "store/staged_content.h"
#include "store/store_impl.h"
#include "wstore/store.h"

namespace wstore {

class LiveStore {
 public:
  struct Options {
    OpenOptions open;
    StagedContent::Limits content;
    size_t max_moves = 1024;
    size_t max_outcomes = 4096;
  };

  // Errors as for Store::Open.
  static absl::StatusOr<std::unique_ptr<LiveStore>> Open(const std::string& directory,
                                                         const Options& options);
  // All that store() gave out must be gone.
  ~LiveStore();

  // For looking. Null while the journal is being reopened. Let go of it
  // soon: reopening waits for it.
  std::shared_ptr<Store> store() const;
  // Valid as long as this object.
  const Manifest& manifest() const { return manifest_; }
  const FingerprintKey& fingerprint_key() const { return fingerprint_key_; }

  absl::StatusOr<LiveView> View() const;
  // The outcome of an id, however old.
  std::optional<LiveOutcome> FindOutcome(const std::string& id) const;

  // Versions and head moves, newest first: how many there are, and, of the first `all` of them,
  // those at the places from `begin` to before `end`, as far as there are so many. None while the
  // journal is being reopened.
  size_t CountVersions() const;
  size_t CountMoves() const;
  std::vector<VersionInfo> LatestVersions(size_t all, size_t begin, size_t end) const;
  std::vector<MoveInfo> LatestMoves(size_t all, size_t begin, size_t end) const;

  // The transaction whose patch set is the way between two versions, there or back. Nothing where
  // neither is the other's parent: the way has to be composed.
  std::optional<TransactionNumber> StepBetween(VersionId from, VersionId to) const;
  // Calls `visit` for the chunks of such a set as they are stored, packed, from `first` on, until
  // it returns false or they end.
  //   errors as for Journal::ReadPayload; kUnavailable: the journal is being reopened
  absl::Status ReadPacked(
      TransactionNumber step, const ChunkKey& first,
      const std::function<absl::StatusOr<bool>(const ChunkKey&, std::string_view)>& visit) const;

  // Whether a publish that expects this may begin now, and a candidate be promoted.
  //   kFailedPrecondition: as for Store::Begin and Store::Promote; kNotFound
  absl::Status CheckBegin(const BeginOptions& expected) const;
  absl::Status CheckPromote(VersionId version) const;

  // Durable when they return, as all that follow but Write with sync = false.
  //   kUnknown, kUnavailable, kResourceExhausted: see Journal::Commit
  absl::Status SyncEpoch(uint64_t epoch, const Caller& caller);
  absl::Status ReserveNumbers(const LiveNumbers& next);
  // Doing it twice changes nothing.
  absl::Status SetHold(bool hold, const std::string& reason, const Caller& caller);
  // As Store::Mark and Store::Tag.
  absl::Status SetMark(VersionId version, bool bad, const std::string& reason,
                       const Caller& caller);
  absl::Status SetTag(const std::string& name, VersionId version, const Caller& caller);
  // One that only repeats the one before it is not recorded again.
  absl::Status RecordAttempt(const LiveAttempt& attempt);

  // Makes room for a publish's chunks.
  //   kNotFound: no such parent
  absl::Status BeginContent(TransactionNumber transaction, const LivePublish& publish);
  //   kNotFound: no such transaction, or it has ended
  absl::StatusOr<std::shared_ptr<StagedContent>> FindContent(TransactionNumber transaction) const;
  // Joins what the contributors sent, checks digests, computes or takes sums, and stages all of it
  // in the journal. All contributors have finished.
  //   kInvalidArgument: contributors that changed one element (tensor and contributors are named);
  //     another digest than declared; sums of other tensors than those with changes
  //   kDataLoss: sums other than those of the parent's bits (tensors are named)
  //   kFailedPrecondition: see Store::Materialise, where sums are not declared
  //   kAborted: discarded meanwhile
  absl::StatusOr<LiveContent> CompleteContent(TransactionNumber transaction);
  // What CompleteContent will return, if its one contributor sends what it has declared, with sums
  // and the number of elements. Nothing of it is checked yet.
  //   kFailedPrecondition: it has not declared so much
  absl::StatusOr<LiveContent> ForetellContent(TransactionNumber transaction) const;
  // Forgets it, whatever was written of it.
  void DiscardContent(TransactionNumber transaction);

  // Commits a decision, with the content of its transaction.
  //   kUnknown: reopen
  //   otherwise nothing was written
  absl::Status Write(const LiveRecord& record);
  // Makes what was written durable.
  //   kUnknown: reopen
  absl::Status Sync();

  // Closes the journal and opens it again, which settles every unknown outcome. All content is
  // discarded.
  //   kUnavailable: what store() gave out was not given back within a minute; or as for Open. Then
  //     store() stays null; try again
  absl::Status Reopen();

 private:
  struct Pending;
  class Closing;

  LiveStore(std::string directory, const Options& options, const Manifest& manifest,
            const Digest& base_digest);
  void SetStore(std::unique_ptr<StoreImpl> store);
  absl::StatusOr<std::shared_ptr<StoreImpl>> OpenedStore() const;
  absl::StatusOr<std::shared_ptr<Pending>> FindPending(TransactionNumber transaction) const;
  absl::Status Encode(StoreImpl& store, Pending& pending);
  absl::StatusOr<std::unique_ptr<DenseSource>> ParentBits(StoreImpl& store, Pending& pending) const;
  absl::Status CheckDigests(const Pending& pending, const Digest& joined) const;
  static absl::Status CheckElements(const StagedContent& content);
  absl::Status CheckOverlap(const Pending& pending, uint64_t joined_elements) const;
  absl::Status SettleSums(Pending& pending, const TouchedByTensor& found, bool summed) const;
  absl::Status BuildRecord(StoreImpl& store, Pending& pending);
  absl::Status Append(StoreImpl& store, std::vector<v1::RecordBody> bodies,
                      std::unique_ptr<PayloadWriter> payload, bool sync) const;

  const std::string directory_;
  const Options options_;
  const Manifest manifest_;
  const FingerprintKey fingerprint_key_;

  mutable std::mutex mutex_;  // guards what follows; held for moments only
  std::shared_ptr<StoreImpl> store_;
  std::shared_ptr<Closing> closing_;  // told when the last reference to store_ is gone
  std::map<TransactionNumber, std::shared_ptr<Pending>> pending_;
};

}  // namespace wstore
