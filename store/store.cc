#include "wstore/store.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/parallel.h"
#include "common/random.h"
#include "common/status_macros.h"
#include "common/strings.h"
#include "store/records.h"
#include "store/store_impl.h"
#include "store/version/actor.h"

namespace wstore {
namespace {

// An earlier init that was killed may have left files of the journal; anything else is not ours.
absl::Status PrepareDirectory(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot create the directory ", directory, ": ", error.message()));
  }
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name == "witness") {
      return absl::AlreadyExistsError(absl::StrCat("there is a store in ", directory, " already"));
    }
    if (name != "LOCK" && name != "db" && name != "stage" && !name.starts_with("witness")) {
      return absl::AlreadyExistsError(
          absl::StrCat(directory, " is not empty: it holds '", name, "'"));
    }
  }
  return absl::OkStatus();
}

constexpr uint64_t kRecentTilesBytes = 32 << 20;

int Threads(int requested) { return requested > 0 ? requested : DefaultParallelism(); }

std::string ActorOrDefault(const std::string& actor) {
  return actor.empty() ? DefaultActor() : actor;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> Store::Create(const std::string& directory,
                                                     const std::string& base_checkpoint,
                                                     const CreateOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(base_checkpoint));
  RETURN_IF_ERROR(PrepareDirectory(directory));
  ASSIGN_OR_RETURN(v1::BaseRecord record,
                   DescribeBase(*checkpoint, Threads(options.threads), options.progress));
  record.set_store_id(SecureRandomBytes(16));
  record.mutable_actor()->set_name(ActorOrDefault(options.actor));
  record.set_created_unix_micros(SystemClock().NowUnixMicros());
  v1::RecordBody body;
  *body.mutable_base() = std::move(record);
  ASSIGN_OR_RETURN(std::unique_ptr<Journal> journal,
                   Journal::Create(directory, NewRecord{SerializeDeterministic(body), nullptr}));
  OpenOptions open;
  open.actor = options.actor;
  open.threads = options.threads;
  ASSIGN_OR_RETURN(std::unique_ptr<StoreImpl> store, StoreImpl::Make(std::move(journal), open));
  return store;
}

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const std::string& directory,
                                                   const OpenOptions& options) {
  JournalOptions journal_options;
  journal_options.read_only = options.read_only;
  ASSIGN_OR_RETURN(std::unique_ptr<Journal> journal, Journal::Open(directory, journal_options));
  ASSIGN_OR_RETURN(std::unique_ptr<StoreImpl> store, StoreImpl::Make(std::move(journal), options));
  return store;
}

absl::StatusOr<std::unique_ptr<StoreImpl>> StoreImpl::Make(std::unique_ptr<Journal> journal,
                                                           const OpenOptions& options) {
  StoreState state;
  for (const StoredRecord& record : journal->records()) {
    v1::RecordBody body;
    absl::Status status = body.ParseFromString(record.body)
                              ? state.Apply(body)
                              : absl::DataLossError("it cannot be read");
    RETURN_IF_ERROR(Prefixed(status, absl::StrCat("journal record ", record.sequence)));
  }
  if (!state.has_base()) return absl::DataLossError("the journal has no record of a base");
  std::unique_ptr<StoreImpl> store(new StoreImpl(std::move(journal), std::move(state), options));
  if (store->manifest_.size_bytes() <= options.head_image_bytes && !options.read_only) {
    RETURN_IF_ERROR(store->KeepImage());
  }
  return store;
}

StoreImpl::StoreImpl(std::unique_ptr<Journal> journal, StoreState state, const OpenOptions& options)
    : journal_(std::move(journal)),
      actor_(ActorOrDefault(options.actor)),
      read_only_(options.read_only),
      threads_(Threads(options.threads)),
      clock_(SystemClock()),
      state_(std::move(state)),
      manifest_(state_.base().manifest),
      fingerprint_key_(state_.base().digest),
      chain_(manifest_, {}),
      recent_(manifest_, kRecentTilesBytes) {}

StoreStatus StoreImpl::status() const {
  StoreStatus status;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    status.head = state_.head();
    status.hold = state_.hold();
    status.versions = state_.versions().size();
    status.base.path = state_.base().path;
    status.base.digest = state_.base().digest;
  }
  status.base.tensors = manifest_.size();
  status.base.elements = manifest_.elements();
  status.base.size_bytes = manifest_.size_bytes();
  status.journal_bytes = journal_->size_bytes();
  if (image_ != nullptr) status.image = image_->version();
  status.state = "ok";
  if (status.hold.has_value()) {
    status.state = "hold";
    status.detail = status.hold->reason;
  }
  if (journal_->failed()) {
    status.state = "read-only";
    status.detail = "a commit ended without a known outcome; reopen the store";
  }
  return status;
}

HeadInfo StoreImpl::head() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return state_.head();
}

std::vector<VersionInfo> StoreImpl::versions() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<VersionInfo> versions;
  versions.reserve(state_.versions().size());
  for (const auto& [id, version] : state_.versions()) versions.push_back(version.info);
  return versions;
}

absl::StatusOr<VersionInfo> StoreImpl::version(VersionId version) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  ASSIGN_OR_RETURN(const VersionState* const found, state_.Find(version));
  return found->info;
}

std::vector<MoveInfo> StoreImpl::moves() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return state_.moves();
}

std::vector<TagInfo> StoreImpl::tags() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<TagInfo> tags;
  for (const auto& [name, tag] : state_.tags()) tags.push_back(tag);
  return tags;
}

absl::StatusOr<VersionId> StoreImpl::Resolve(std::string_view name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (name == "head") return state_.head().version;
  if (const std::optional<VersionId> version = ParseVersionId(name); version.has_value()) {
    RETURN_IF_ERROR(state_.Find(*version).status());
    return *version;
  }
  const auto tag = state_.tags().find(std::string(name));
  if (tag != state_.tags().end()) return tag->second.version;
  std::vector<std::string> names;
  for (const auto& [known, unused] : state_.tags()) names.push_back(known);
  return absl::NotFoundError(
      absl::StrCat("no version or tag '", ToAbsl(name), "'; versions are v0 to ",
                   ToString(state_.versions().rbegin()->first),
                   names.empty() ? "" : absl::StrCat(", tags: ", absl::StrJoin(names, ", "))));
}

absl::Status StoreImpl::CheckWritable() const {
  if (!read_only_) return absl::OkStatus();
  return absl::FailedPreconditionError("the store was opened to look only");
}

v1::Actor StoreImpl::ActorProto() const {
  v1::Actor actor;
  actor.set_name(actor_);
  return actor;
}

absl::StatusOr<TransactionNumber> StoreImpl::NewTransactionNumber() {
  HighWaterMarks marks = journal_->high_water_marks();
  ++marks.transaction;
  RETURN_IF_ERROR(journal_->RaiseHighWaterMarks(marks));
  return TransactionNumber(marks.transaction);
}

absl::Status StoreImpl::Append(std::vector<v1::RecordBody> bodies,
                               std::unique_ptr<PayloadWriter> payload, bool sync) {
  std::vector<NewRecord> records;
  for (const v1::RecordBody& body : bodies) {
    records.push_back({SerializeDeterministic(body), std::move(payload)});
    payload = nullptr;
  }
  RETURN_IF_ERROR(sync ? journal_->Commit(std::move(records))
                       : journal_->Append(std::move(records)));
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const v1::RecordBody& body : bodies) WSTORE_CHECK(state_.Apply(body).ok());
  if (image_ != nullptr) image_->Follow(state_.head().version);
  return absl::OkStatus();
}

}  // namespace wstore
