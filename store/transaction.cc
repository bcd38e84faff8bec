#include "wstore/transaction.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "store/records.h"
#include "store/store_impl.h"
#include "store/version/chain.h"
#include "store/version/publish.h"
#include "store/version/same_tensors.h"
#include "store/version/sums.h"

namespace wstore {
namespace {

constexpr size_t kMaxIdBytes = 256;
constexpr size_t kMaxMessageBytes = 64 << 10;
constexpr size_t kMaxMetaBytes = 64 << 10;

absl::Status CheckLimit(const char* what, size_t bytes, size_t limit) {
  if (bytes <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the ", what, " has ", bytes, " bytes; the limit is ", limit));
}

}  // namespace

absl::Status CheckLimits(const BeginOptions& options) {
  size_t meta_bytes = 0;
  for (const auto& [key, value] : options.meta) meta_bytes += key.size() + value.size();
  RETURN_IF_ERROR(CheckLimit("transaction id", options.transaction_id.size(), kMaxIdBytes));
  RETURN_IF_ERROR(CheckLimit("message", options.message.size(), kMaxMessageBytes));
  return CheckLimit("metadata", meta_bytes, kMaxMetaBytes);
}

// A publish into a StoreImpl. Everything up to the commit record happens without the store's locks.
class TransactionImpl final : public Transaction {
 public:
  // `repeats`: the version that was committed under the same id, if one was; then this transaction
  // only finds out whether its content is the same.
  TransactionImpl(StoreImpl* store, BeginOptions options, TransactionNumber number, HeadInfo parent,
                  std::optional<VersionState> repeats)
      : store_(*store),
        options_(std::move(options)),
        number_(number),
        parent_(parent),
        repeats_(std::move(repeats)),
        builder_(std::make_unique<PatchSetBuilder>(store->manifest())),
        begun_micros_(store->clock_.NowMonotonicMicros()) {}

  TransactionNumber number() const override { return number_; }
  const HeadInfo& parent() const override { return parent_; }

  absl::Status Add(absl::Span<const TensorPatch> patches) override {
    RETURN_IF_ERROR(CheckOpen());
    if (target_ != nullptr) {
      return absl::FailedPreconditionError(
          "the transaction has a checkpoint; patches cannot be added");
    }
    RETURN_IF_ERROR(builder_->Add(patches));
    has_patches_ = true;
    return absl::OkStatus();
  }

  absl::Status SetCheckpoint(const std::string& path) override {
    RETURN_IF_ERROR(CheckOpen());
    if (has_patches_) {
      return absl::FailedPreconditionError(
          "the transaction has patches; a checkpoint cannot be set");
    }
    ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> target, Checkpoint::Open(path));
    RETURN_IF_ERROR(Prefixed(CheckSameTensors(store_.manifest(), target->manifest()), path));
    target_ = std::move(target);
    return absl::OkStatus();
  }

  absl::StatusOr<CommitResult> Commit(const ProgressFn& progress) override {
    RETURN_IF_ERROR(CheckOpen());
    absl::StatusOr<CommitResult> result = DoCommit(progress);
    Abort();
    return result;
  }

  void Abort() override {
    ended_ = true;
    target_.reset();
    builder_.reset();
  }

 private:
  absl::Status CheckOpen() const {
    if (!ended_) return absl::OkStatus();
    return absl::FailedPreconditionError("the transaction has ended");
  }

  // Whether the parent is still head and may be published on. Needs write_mutex_.
  absl::Status CheckHead() {
    if (repeats_.has_value()) return absl::OkStatus();
    absl::Status status;
    {
      const std::lock_guard<std::mutex> lock(store_.mutex_);
      status = store_.CheckBegin(options_);
    }
    return status.ok() ? status : store_.Refuse(status, MakeAttempt(std::nullopt));
  }

  StoreImpl::Attempt MakeAttempt(std::optional<VersionId> to) const {
    return {"publish", to, number_, options_.transaction_id, options_.message, begun_micros_};
  }

  absl::StatusOr<CommitResult> DoCommit(const ProgressFn& progress) {
    {
      // Early, before the work, where the commit would be refused anyway.
      const std::lock_guard<std::mutex> write_lock(store_.write_mutex_);
      RETURN_IF_ERROR(CheckHead());
    }
    ASSIGN_OR_RETURN(const std::unique_ptr<DenseSource> parent, ParentBits());
    ASSIGN_OR_RETURN(std::unique_ptr<PayloadWriter> payload, store_.journal_->Stage(number_));
    ASSIGN_OR_RETURN(const PublishOutcome outcome, Encode(*parent, payload.get(), progress));
    if (outcome.elements == 0) return Result(CommitResult::Outcome::kUnchanged, parent_.version);
    ASSIGN_OR_RETURN(const Fingerprint fingerprint, CheckSums(outcome));
    if (repeats_.has_value()) return Repeat(outcome);
    return Append(outcome, fingerprint, std::move(payload));
  }

  // A checkpoint is compared with all of the parent; patches need the tiles that they touch.
  absl::StatusOr<std::unique_ptr<DenseSource>> ParentBits() {
    if (target_ != nullptr) return store_.Bits(parent_.version);
    touched_ = std::make_shared<const TileList>(builder_->Places());
    return store_.ParentBits(parent_.version, touched_, &tiles_);
  }

  // Streams the packed chunks into the payload.
  absl::StatusOr<PublishOutcome> Encode(const DenseSource& parent, PayloadWriter* payload,
                                        const ProgressFn& progress) {
    PublishInput input;
    input.manifest = &store_.manifest();
    input.key = &store_.fingerprint_key_;
    input.parent = &parent;
    input.transaction = number_;
    input.threads = store_.threads_;
    input.progress = progress;
    std::unique_ptr<DenseSource> target;
    if (target_ != nullptr) {
      target = MakeDense(store_.manifest(), *target_);
      input.target = target.get();
    } else {
      RETURN_IF_ERROR(builder_->Resolve(parent));
      input.patches = builder_.get();
    }
    const auto write = [payload](const ChunkKey& key, std::string_view chunk) {
      return payload->Add(key, chunk);
    };
    absl::StatusOr<PublishOutcome> outcome = EncodePublish(input, write);
    RETURN_IF_ERROR(outcome.status());
    if (target_ != nullptr) RETURN_IF_ERROR(target_->CheckUnchanged());
    return outcome;
  }

  // The new version's fingerprint. Where it was summed from the new bits alone it must agree with
  // the parent's recorded one plus the changes; otherwise the old bits were not the parent's.
  absl::StatusOr<Fingerprint> CheckSums(const PublishOutcome& outcome) {
    ASSIGN_OR_RETURN(const VersionInfo parent, store_.version(parent_.version));
    Fingerprint expected = parent.fingerprint;
    for (const auto& [tensor, sums] : outcome.touched) expected += sums.change();
    if (target_ != nullptr && Total(outcome.target_sums) != expected) {
      return absl::DataLossError(
          absl::StrCat("the bits read for ", ToString(parent_.version),
                       " do not have its recorded fingerprint: the base's files or the journal are "
                       "damaged, or the "
                       "new checkpoint changed while it was read; 'wstore verify ",
                       ToString(parent_.version), " --base' tells which"));
    }
    return expected;
  }

  absl::StatusOr<CommitResult> Repeat(const PublishOutcome& outcome) {
    const VersionInfo& first = repeats_->info;
    if (outcome.patch_digest != first.patch_digest || options_.message != first.message ||
        options_.meta != first.meta) {
      return absl::AlreadyExistsError(absl::StrCat(
          "the id '", options_.transaction_id, "' was committed as ", ToString(first.version),
          " with other content (patch ", ToHex(first.patch_digest), ", this one is ",
          ToHex(outcome.patch_digest), "); use another id"));
    }
    CommitResult result = Result(CommitResult::Outcome::kRepeated, first.version);
    result.transaction = first.transaction;
    return result;
  }

  absl::StatusOr<CommitResult> Append(const PublishOutcome& outcome, const Fingerprint& fingerprint,
                                      std::unique_ptr<PayloadWriter> payload) {
    ASSIGN_OR_RETURN(const v1::TouchedTable table, TouchedTable(outcome));
    const std::string table_bytes = SerializeDeterministic(table);
    RETURN_IF_ERROR(payload->Add(kTouchedTableKey, table_bytes));
    TileBits tiles;
    if (!tiles_.empty()) {
      ASSIGN_OR_RETURN(tiles, wstore::Patched(store_.manifest(), tiles_, *builder_));
    }
    const std::lock_guard<std::mutex> write_lock(store_.write_mutex_);
    RETURN_IF_ERROR(CheckHead());
    HighWaterMarks marks = store_.journal_->high_water_marks();
    const VersionId version(++marks.version);
    if (!options_.candidate) ++marks.move;
    RETURN_IF_ERROR(store_.journal_->RaiseHighWaterMarks(marks));

    std::vector<v1::RecordBody> bodies(1);
    v1::VersionRecord* const record = bodies[0].mutable_version();
    record->set_version(version.value());
    record->set_parent(parent_.version.value());
    record->set_transaction(number_.value());
    record->set_transaction_id(options_.transaction_id);
    record->set_patch_digest(ToBytes(outcome.patch_digest));
    record->set_chain_digest(ToBytes(VersionChainDigest(
        parent_.chain_digest, outcome.patch_digest, fingerprint, options_.message, options_.meta)));
    record->set_elements(outcome.elements);
    record->set_tensors(outcome.touched.size());
    record->set_payload_bytes(payload->size_bytes());
    *record->mutable_fingerprint() = ToProto(fingerprint);
    record->set_touched_digest(ToBytes(Sha256().Update(table_bytes).Finish()));
    record->set_verified(std::string(VerifiedName(Verified::kMaterialised)));
    record->set_created_unix_micros(store_.clock_.NowUnixMicros());
    *record->mutable_actor() = store_.ActorProto();
    record->set_message(options_.message);
    record->mutable_meta()->insert(options_.meta.begin(), options_.meta.end());
    record->set_candidate(options_.candidate);
    if (!options_.candidate) bodies.push_back(store_.MoveBody(parent_, MakeAttempt(version)));
    RETURN_IF_ERROR(store_.Append(std::move(bodies), std::move(payload)));
    store_.Published(parent_.version, version, options_.candidate, table, touched_.get(), tiles);
    return Result(CommitResult::Outcome::kCommitted, version);
  }

  // The fingerprints after this version of the tensors that it touches.
  absl::StatusOr<v1::TouchedTable> TouchedTable(const PublishOutcome& outcome) {
    if (target_ == nullptr) return store_.TableOf(parent_.version, outcome.touched);
    v1::TouchedTable table;
    for (const auto& [tensor, sums] : outcome.touched) {
      v1::TouchedTensor* const entry = table.add_tensors();
      entry->set_tensor(tensor);
      *entry->mutable_fingerprint() = ToProto(outcome.target_sums[tensor]);
      *entry->mutable_touched_before() = ToProto(sums.before);
      *entry->mutable_touched_after() = ToProto(sums.after);
    }
    return table;
  }

  CommitResult Result(CommitResult::Outcome outcome, VersionId version) const {
    CommitResult result;
    result.outcome = outcome;
    result.version = version;
    result.head = store_.head().version;
    result.transaction = number_;
    result.duration_micros = store_.clock_.NowMonotonicMicros() - begun_micros_;
    return result;
  }

  StoreImpl& store_;
  const BeginOptions options_;
  const TransactionNumber number_;
  const HeadInfo parent_;
  const std::optional<VersionState> repeats_;
  std::unique_ptr<PatchSetBuilder> builder_;
  std::unique_ptr<Checkpoint> target_;
  std::shared_ptr<const TileList> touched_;  // by patches
  TileBits tiles_;                           // of the parent, of these; empty: not held
  bool has_patches_ = false;
  bool ended_ = false;
  const int64_t begun_micros_;
};

absl::Status StoreImpl::CheckBegin(const BeginOptions& options) const {
  const HeadInfo head = state_.head();
  const std::string head_now =
      absl::StrCat("head is ", ToString(head.version), " now (move ", head.move.value(), ")");
  const auto refuse = [](const std::string& made_for, const std::string& is,
                         absl::string_view advice) {
    return absl::FailedPreconditionError(
        absl::StrCat("publish refused: made for ", made_for, ", but ", is, "; ", advice));
  };
  constexpr absl::string_view kRebase =
      "bring the trainer to head and publish from there, or roll head back first";
  if (options.base_digest.has_value() && *options.base_digest != head.base_digest) {
    return refuse(absl::StrCat("the base ", ToHex(*options.base_digest)),
                  absl::StrCat("the base here is ", ToHex(head.base_digest), ", and ", head_now),
                  "publish to the store of that base");
  }
  if (options.parent.has_value() && *options.parent != head.version) {
    return refuse(ToString(*options.parent), head_now, kRebase);
  }
  if (options.parent_chain_digest.has_value() &&
      *options.parent_chain_digest != head.chain_digest) {
    return refuse(
        absl::StrCat("a version with the chain digest ", ToHex(*options.parent_chain_digest)),
        absl::StrCat(head_now, ", and has the chain digest ", ToHex(head.chain_digest)), kRebase);
  }
  if (options.move.has_value() && *options.move != head.move) {
    return refuse(absl::StrCat("head move ", options.move->value()), head_now, kRebase);
  }
  if (const std::optional<std::string>& bad = (*state_.Find(head.version))->info.bad;
      bad.has_value() && !options.force) {
    return absl::FailedPreconditionError(
        absl::StrCat("publish refused: head ", ToString(head.version), " is marked bad (", *bad,
                     "); roll back to a good version, or force it"));
  }
  if (const std::optional<HoldInfo>& hold = state_.hold(); hold.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "publish refused: publishing is on hold since ", FormatRfc3339(hold->created_unix_micros),
        " by ", hold->actor, " (", hold->reason, "); head is ", ToString(head.version),
        "; 'wstore resume' releases it"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Transaction>> StoreImpl::Begin(const BeginOptions& options) {
  RETURN_IF_ERROR(CheckWritable());
  RETURN_IF_ERROR(CheckLimits(options));
  const StoreImpl::Attempt attempt{"publish",           std::nullopt,
                                   TransactionNumber(), options.transaction_id,
                                   options.message,     clock_.NowMonotonicMicros()};
  std::optional<VersionState> repeats;
  const std::lock_guard<std::mutex> write_lock(write_mutex_);
  HeadInfo parent = head();
  if (const std::optional<IdUse> use = FindId(options.transaction_id); use.has_value()) {
    if (use->why != "publish") {
      return Refuse(absl::AlreadyExistsError(
                        absl::StrCat("the id '", options.transaction_id, "' was used for a ",
                                     use->why, " to ", ToString(use->version), "; use another id")),
                    attempt);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    repeats = **state_.Find(use->version);
    parent.version = *repeats->info.parent;
    parent.chain_digest = (*state_.Find(parent.version))->info.chain_digest;
  } else {
    absl::Status status;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      status = CheckBegin(options);
    }
    if (!status.ok()) return Refuse(status, attempt);
  }
  ASSIGN_OR_RETURN(const TransactionNumber number, NewTransactionNumber());
  // From here on the parent is fixed, whatever the caller left open.
  BeginOptions fixed = options;
  if (!repeats.has_value()) {
    fixed.parent = parent.version;
    fixed.parent_chain_digest = parent.chain_digest;
    fixed.move = parent.move;
  }
  return std::make_unique<TransactionImpl>(this, std::move(fixed), number, parent,
                                           std::move(repeats));
}

}  // namespace wstore
