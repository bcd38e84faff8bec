#include "tools/wstore/served_access.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "store/checkpoint/checkpoint.h"
#include "store/version/same_tensors.h"

namespace wstore::cli {
namespace {

// Without --timeout.
constexpr int64_t kConnectMicros = 2'000'000;
constexpr int64_t kCallMicros = 60'000'000;
constexpr int64_t kContentMicros = 600'000'000;
// At least so much, after a change, for the calls that tell what came of it.
constexpr int64_t kReportMicros = 2'000'000;

// The bits of a version: from the store's own files where they are at hand, otherwise from the
// server.
struct Bits {
  std::unique_ptr<Store> store;
  std::unique_ptr<DenseSource> dense;
};

class ServedAccess final : public StoreAccess {
 public:
  ServedAccess(std::shared_ptr<Client> client, const ServedOptions& options)
      : client_(std::move(client)),
        directory_(options.directory),
        timeout_micros_(options.timeout_ms * 1000) {
    RestartTimeout();
  }

  absl::Status Connect() { return client_->WaitUntilConnected(Within(kConnectMicros)); }

  absl::StatusOr<std::shared_ptr<const Manifest>> manifest() override {
    return client_->ReadManifest(NextDeadline());
  }

  absl::StatusOr<AccessStatus> Status() override {
    ASSIGN_OR_RETURN(ServerStatus served, client_->Status(NextDeadline()));
    AccessStatus status;
    status.store.head = served.head.head;
    status.store.base = {served.head.head.base_digest, std::move(served.base_path),
                         served.base_tensors, served.base_elements, served.base_bytes};
    status.store.state = served.head.state;
    status.store.detail = served.detail;
    status.store.hold = served.hold;
    status.store.journal_bytes = served.journal_bytes;
    status.store.versions = served.versions;
    status.durable = served.head.durable;
    status.address = client_->address();
    ASSIGN_OR_RETURN(status.workers, client_->Workers(NextDeadline()));
    return status;
  }

  absl::StatusOr<HeadInfo> Head() override {
    ASSIGN_OR_RETURN(ServedHead head, client_->Head(NextDeadline()));
    return std::move(head.head);
  }
  absl::StatusOr<VersionInfo> Version(const std::string& name) override {
    return client_->Version(name, NextDeadline());
  }
  absl::StatusOr<std::vector<VersionInfo>> Versions(size_t limit) override {
    return client_->Versions(limit, NextDeadline());
  }
  absl::StatusOr<std::vector<MoveInfo>> Moves(size_t limit) override {
    return client_->Moves(limit, NextDeadline());
  }
  absl::StatusOr<std::vector<TagInfo>> Tags() override { return client_->Tags(NextDeadline()); }
  absl::StatusOr<std::unique_ptr<PatchSource>> Difference(VersionId from, VersionId to) override {
    ASSIGN_OR_RETURN(ServedDifference difference,
                     client_->ReadDifference(from, to, ContentDeadline()));
    return std::move(difference.patches);
  }

  absl::StatusOr<CommitResult> Publish(const PublishRequest& request) override {
    PublishOptions options;
    options.begin = request.begin;
    options.policy = request.policy;
    options.durability = request.durability;
    options.check_sums = true;  // so that the version says how far it was verified
    std::optional<InterchangeFile> file;
    std::unique_ptr<Checkpoint> checkpoint;
    ASSIGN_OR_RETURN(const std::shared_ptr<const Manifest> tensors, manifest());
    if (!request.parent.empty()) {
      ASSIGN_OR_RETURN(const VersionInfo parent, Version(request.parent));
      options.begin.parent = parent.version;
    }
    if (request.patch_file.empty()) {
      ASSIGN_OR_RETURN(checkpoint, Checkpoint::Open(request.checkpoint));
      RETURN_IF_ERROR(
          Prefixed(CheckSameTensors(*tensors, checkpoint->manifest()), request.checkpoint));
    } else {
      ASSIGN_OR_RETURN(file, InterchangeFile::Read(request.patch_file));
      RETURN_IF_ERROR(TakeExpectations(*file, request.patch_file, &options.begin));
    }
    RETURN_IF_ERROR(CheckEarly(options));
    if (!options.begin.parent) {
      ASSIGN_OR_RETURN(const HeadInfo head, Head());
      options.begin.parent = head.version;
    }
    ASSIGN_OR_RETURN(const Bits old, BitsOf(*options.begin.parent));
    if (file) {
      return Result(client_->Publish(file->patches(), old.dense.get(), options, ContentDeadline()));
    }
    const std::unique_ptr<DenseSource> now = MakeDense(*tensors, *checkpoint);
    options.before_sending = [&checkpoint] { return checkpoint->CheckUnchanged(); };
    return Result(client_->Publish(*old.dense, *now, options, ContentDeadline(), request.progress));
  }

  absl::StatusOr<CommitResult> Rollback(const RollbackRequest& request) override {
    MoveOptions options;
    options.version = ToString(request.to);
    options.transaction_id = request.transaction_id;
    options.message = request.message;
    options.force = request.force;
    return Result(client_->Rollback(options, NextDeadline()));
  }
  absl::StatusOr<CommitResult> Promote(VersionId version) override {
    MoveOptions options;
    options.version = ToString(version);
    return Result(client_->Promote(options, NextDeadline()));
  }
  absl::Status Mark(VersionId version, bool bad, const std::string& reason) override {
    return Changed(client_->Mark(ToString(version), bad, reason, NextDeadline()));
  }
  absl::Status SetHold(bool hold, const std::string& reason) override {
    return Changed(client_->SetHold(hold, reason, NextDeadline()).status());
  }
  absl::Status Tag(const std::string& name, VersionId version) override {
    return Changed(client_->Tag(name, ToString(version), NextDeadline()));
  }

  absl::Status Export(VersionId version, const ExportOptions& options) override {
    ASSIGN_OR_RETURN(const std::unique_ptr<Store> store, OpenBeside("export"));
    return store->Export(version, options);
  }
  absl::StatusOr<VerifyReport> Verify(const VerifyOptions& options) override {
    ASSIGN_OR_RETURN(const std::unique_ptr<Store> store, OpenBeside("verify"));
    return store->Verify(options);
  }

  absl::StatusOr<Client*> Server() override { return client_.get(); }
  Deadline NextDeadline() const override { return Within(kCallMicros); }
  void RestartTimeout() override {
    if (timeout_micros_ > 0) end_ = Deadline::After(timeout_micros_);
  }

 private:
  Deadline ContentDeadline() const { return Within(kContentMicros); }

  // What --timeout leaves; without it, so much for one call.
  Deadline Within(int64_t default_micros) const {
    return end_.value_or(Deadline::After(default_micros));
  }

  // What was done is told, however little time is left.
  absl::Status Changed(const absl::Status& status) {
    if (status.ok() && end_) end_ = Deadline::After(std::max(end_->left_micros(), kReportMicros));
    return status;
  }

  absl::StatusOr<CommitResult> Result(const absl::StatusOr<Decision>& decision) {
    RETURN_IF_ERROR(Changed(decision.status()));
    CommitResult result;
    result.outcome = decision->outcome;
    result.version = decision->version;
    result.head = decision->head.head.version;
    result.transaction = decision->transaction;
    result.duration_micros = decision->duration_micros;
    return result;
  }

  // What would be refused is refused, and recorded by the server, before anything is compared. An
  // id may have been committed, and is asked for with its content.
  absl::Status CheckEarly(const PublishOptions& options) {
    if (!options.begin.transaction_id.empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(const ServedHead head, client_->Head(NextDeadline()));
    const bool is_other = options.begin.parent && *options.begin.parent != head.head.version;
    if (!is_other && !head.hold) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::unique_ptr<Upload> upload, client_->Begin(options, NextDeadline()));
    return upload->Abort("head moved while it was begun", NextDeadline());
  }

  absl::StatusOr<std::unique_ptr<Store>> OpenBeside(const char* verb) const {
    if (directory_.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat(verb, " reads the store's files, and ", client_->address(),
                       " may be on another machine: run it there, with --store DIR"));
    }
    OpenOptions options;
    options.read_only = true;
    return Store::Open(directory_, options);
  }

  absl::StatusOr<Bits> BitsOf(VersionId version) const {
    Bits bits;
    if (!directory_.empty()) {
      ASSIGN_OR_RETURN(bits.store, OpenBeside("publish"));
      absl::StatusOr<std::unique_ptr<DenseSource>> dense = bits.store->Materialise(version);
      // Who looks on sees what is durable. What is only served so far, the server has.
      if (!absl::IsNotFound(dense.status())) {
        ASSIGN_OR_RETURN(bits.dense, std::move(dense));
        return bits;
      }
      bits.store.reset();
    }
    ASSIGN_OR_RETURN(bits.dense, client_->ReadDense(version, ContentDeadline()));
    return bits;
  }

  const std::shared_ptr<Client> client_;
  const std::string directory_;
  const int64_t timeout_micros_;  // 0: none
  std::optional<Deadline> end_;   // of the whole command
};

}  // namespace

absl::StatusOr<std::unique_ptr<StoreAccess>> ConnectAccess(std::shared_ptr<Client> client,
                                                           const ServedOptions& options) {
  auto access = std::make_unique<ServedAccess>(std::move(client), options);
  RETURN_IF_ERROR(access->Connect());
  return access;
}

}  // namespace wstore::cli
