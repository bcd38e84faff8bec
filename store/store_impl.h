// The Store over a journal. Private; the pieces are in store.cc (opening, looking), head.cc (head
// moves), transaction.cc (publishing), parent.cc (what publishing needs of the parent),
// difference.cc, materialise.cc, export.cc and verify.cc.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "store/base.h"
#include "store/chain_map.h"
#include "store/head_image.h"
#include "store/journal_patch.h"
#include "store/recent_tiles.h"
#include "store/state.h"
#include "store/version/publish.h"
#include "wstore/journal.h"
#include "wstore/store.h"

namespace wstore {

// kInvalidArgument: an id, message or metadata past its limit.
absl::Status CheckLimits(const BeginOptions& options);

class StoreImpl final : public Store {
 public:
  // `journal` may be open read-only. Replays its records.
  static absl::StatusOr<std::unique_ptr<StoreImpl>> Make(std::unique_ptr<Journal> journal,
                                                         const OpenOptions& options);

  const Manifest& manifest() const override { return manifest_; }
  StoreStatus status() const override;
  HeadInfo head() const override;
  std::vector<VersionInfo> versions() const override;
  absl::StatusOr<VersionInfo> version(VersionId version) const override;
  std::vector<MoveInfo> moves() const override;
  std::vector<TagInfo> tags() const override;
  absl::StatusOr<VersionId> Resolve(std::string_view name) const override;

  absl::StatusOr<std::unique_ptr<Transaction>> Begin(const BeginOptions& options) override;
  absl::StatusOr<CommitResult> Rollback(const RollbackOptions& options) override;
  absl::StatusOr<CommitResult> Promote(VersionId version) override;
  absl::Status Mark(VersionId version, bool bad, const std::string& reason) override;
  absl::Status Hold(const std::string& reason) override;
  absl::Status Resume() override;
  absl::Status Tag(const std::string& name, VersionId version) override;

  absl::StatusOr<std::unique_ptr<PatchSource>> Difference(VersionId from,
                                                          VersionId to) const override;
  absl::StatusOr<DifferenceInfo> DescribeDifference(VersionId from, VersionId to) const override;
  absl::StatusOr<std::vector<Fingerprint>> TensorFingerprints(VersionId version) const override;
  absl::StatusOr<std::unique_ptr<DenseSource>> Materialise(VersionId version) const override;
  absl::Status Export(VersionId version, const ExportOptions& options) const override;
  absl::StatusOr<VerifyReport> Verify(const VerifyOptions& options) override;

 private:
  friend class LiveStore;
  friend class TransactionImpl;

  StoreImpl(std::unique_ptr<Journal> journal, StoreState state, const OpenOptions& options);

  // The patch sets between two versions, and the parts that they are made of.
  struct PathPatches {
    std::vector<std::unique_ptr<JournalPatch>> owned;
    std::vector<const PatchSource*> patches() const;
  };
  absl::StatusOr<PathPatches> PatchesBetween(VersionId from, VersionId to) const;
  uint64_t PathBytes(VersionId from, VersionId to) const;  // of their payloads; both exist

  // What a committed version records of the tensors it touches.
  //   kDataLoss: it cannot be read, or names tensors that the base does not have
  absl::StatusOr<v1::TouchedTable> ReadTouched(TransactionNumber transaction) const;
  absl::StatusOr<v1::TouchedTable> ParseTouched(TransactionNumber transaction,
                                                const std::string& bytes) const;

  // The base's files, open and checked against what was recorded. They stay open for the next call,
  // which checks again that they are what they were: reading the headers of many tensors takes
  // longer than most of what is then read.
  absl::StatusOr<std::shared_ptr<const Checkpoint>> OpenBase() const;
  BaseState base() const;
  // The base with these on top.
  absl::StatusOr<std::unique_ptr<DenseSource>> Patched(PathPatches path) const;
  // As Materialise, from memory if they are there. No other tiles are read than `wanted`; null:
  // any.
  absl::StatusOr<std::unique_ptr<DenseSource>> Bits(
      VersionId version, const std::shared_ptr<const TileList>& wanted = nullptr) const;

  // A version's patch set, as its record has it and as far as a ChainMap is told.
  struct ChainStep {
    VersionId version;
    VersionId parent;
    TransactionNumber transaction;
    uint64_t payload_bytes;
  };
  struct SetSummary {
    v1::TouchedTable table;
    std::optional<TileList> tiles;  // not there: not listed
  };
  absl::StatusOr<SetSummary> Summarise(const ChainStep& step) const;
  // Moves chain_ to a version, past all patch sets on the way: the first time that is the whole
  // chain, and then what was committed since. Needs chain_mutex_.
  absl::Status MapChainOf(VersionId version) const;
  absl::Status WithChainOf(VersionId version, const std::function<void(ChainMap&)>& use) const;
  // What to record of a publish that changes these sums of its parent.
  absl::StatusOr<v1::TouchedTable> TableOf(VersionId parent, const TouchedByTensor& touched) const;
  // The patch sets below a version that touch any of these tiles, or may.
  absl::StatusOr<PathPatches> PatchesTouching(VersionId version,
                                              const std::shared_ptr<const TileList>& wanted) const;
  // The bits of tiles that a publish onto `parent` touches; no others may be read. They are left in
  // `tiles`, which the result refers to, where they are so few that they are kept for the next.
  //   errors as for Materialise
  absl::StatusOr<std::unique_ptr<DenseSource>> ParentBits(
      VersionId parent, const std::shared_ptr<const TileList>& wanted, TileBits* tiles) const;
  // Says what a committed version touches (null: unknown), and the bits of these tiles after it
  // (empty: unknown), so that the next publish need not read that.
  void Published(VersionId parent, VersionId version, bool candidate, const v1::TouchedTable& table,
                 const TileList* touched, const TileBits& tiles) const;

  // Starts the thread that keeps head's bits in memory.
  absl::Status KeepImage();

  // kFailedPrecondition if the store was opened to look only.
  absl::Status CheckWritable() const;
  // Refuses what `options` expects and the state does not have, and any publish during a hold.
  absl::Status CheckBegin(const BeginOptions& options) const;  // needs mutex_
  absl::Status CheckPromote(const VersionInfo& target, const HeadInfo& head) const;
  // Appends records, durably unless `sync` is false, and applies them to the state. Needs
  // write_mutex_, not mutex_.
  absl::Status Append(std::vector<v1::RecordBody> bodies, std::unique_ptr<PayloadWriter> payload,
                      bool sync = true);
  // Numbers that no one has used and that no crash gives out again. Needs write_mutex_.
  absl::StatusOr<TransactionNumber> NewTransactionNumber();

  v1::Actor ActorProto() const;
  absl::Status MarkAs(const v1::Actor& actor, VersionId version, bool bad,
                      const std::string& reason);
  absl::Status TagAs(const v1::Actor& actor, const std::string& name, VersionId version);
  // One attempt to move head.
  struct Attempt {
    const char* why;  // "publish", "rollback" or "promote"
    std::optional<VersionId> to;
    TransactionNumber transaction;
    std::string transaction_id;
    std::string message;
    int64_t begun_monotonic_micros = 0;
  };
  // Its record, with the highest move number reserved so far.
  v1::RecordBody MoveBody(const HeadInfo& from, const Attempt& attempt) const;
  v1::RecordBody HoldBody(bool hold, const std::string& reason) const;
  // Records that an attempt was refused, and returns the refusal. Needs write_mutex_.
  absl::Status Refuse(const absl::Status& refusal, const Attempt& attempt);
  // Reserves the numbers of a transaction and a head move. Needs write_mutex_.
  absl::StatusOr<TransactionNumber> ReserveMove();
  std::optional<IdUse> FindId(const std::string& transaction_id) const;

  absl::Status CheckVersionPatch(const VersionState& version, VerifyReport* report) const;
  absl::Status CheckVersionSums(const VersionState& version, const ProgressFn& progress,
                                VerifyReport* report) const;
  absl::Status CheckAllSums(const std::vector<VersionId>& versions, const ProgressFn& progress,
                            VerifyReport* report) const;
  absl::Status CheckBaseFiles(const ProgressFn& progress, VerifyReport* report);

  const std::unique_ptr<Journal> journal_;
  const std::string actor_;
  const bool read_only_;
  const int threads_;
  Clock& clock_;

  // Serializes what changes the store; held while it waits for the disk.
  mutable std::mutex write_mutex_;
  // Guards state_; held for moments only. Locked after write_mutex_ where both are.
  mutable std::mutex mutex_;
  StoreState state_;

  // Fixed once the store exists, so readers need no lock.
  const Manifest manifest_;
  const FingerprintKey fingerprint_key_;

  mutable std::mutex base_mutex_;  // guards what follows; never locked before another
  mutable std::shared_ptr<const Checkpoint> opened_base_;

  // What publishes know of their parents; mostly head. Nothing depends on it but their speed.
  mutable std::mutex chain_mutex_;  // guards chain_; held while the journal is read
  mutable ChainMap chain_;
  mutable RecentTiles recent_;

  // May be null. Its thread uses everything above.
  std::unique_ptr<HeadImage> image_;
};

}  // namespace wstore
