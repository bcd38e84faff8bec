// Opening, looking, and writing what was decided. Content is in live_content.cc.
#include "store/live.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "store/live_pending.h"

namespace wstore {
namespace {

constexpr auto kCloseTimeout = std::chrono::seconds(60);

const char* WhyOf(LiveKind kind) {
  switch (kind) {
    case LiveKind::kPublish:
    case LiveKind::kCandidate:
      return "publish";
    case LiveKind::kRollout:
      return "rollout";
    case LiveKind::kPromote:
      return "promote";
    case LiveKind::kRevert:
      return "revert";
    case LiveKind::kRollback:
      return "rollback";
  }
  return "publish";
}

LiveKind KindOf(const std::string& why, bool has_move) {
  for (const LiveKind kind :
       {LiveKind::kRollout, LiveKind::kPromote, LiveKind::kRevert, LiveKind::kRollback}) {
    if (why == WhyOf(kind)) return kind;
  }
  return has_move ? LiveKind::kPublish : LiveKind::kCandidate;
}

LiveVersion NameOf(const StoreState& state, VersionId version) {
  return {version, state.versions().at(version).info.chain_digest};
}

LiveOutcome OutcomeOf(const StoreState& state, const std::string& id, const IdUse& use,
                      std::optional<MoveNumber> move) {
  const VersionInfo& info = state.versions().at(use.version).info;
  LiveOutcome outcome;
  outcome.id = id;
  outcome.kind = KindOf(use.why, move.has_value());
  outcome.transaction = use.transaction;
  outcome.move = move.value_or(MoveNumber());
  outcome.to = {use.version, info.chain_digest};
  if (use.why == "publish") outcome.patch_digest = info.patch_digest;
  return outcome;
}

LiveMove MoveOf(const StoreState& state, const MoveInfo& info) {
  LiveMove move;
  move.move = info.move;
  move.head = NameOf(state, info.to);
  move.transaction = info.transaction;
  move.for_all = info.policy == "all";
  if (info.trial) {
    move.trial = LiveTrial{NameOf(state, *info.trial), info.trial_instances};
  }
  return move;
}

v1::Actor ToProto(const Caller& caller) {
  v1::Actor actor;
  actor.set_name(caller.actor);
  actor.set_peer(caller.peer);
  return actor;
}

v1::RecordBody HoldBody(bool hold, const std::string& reason, const Caller& caller, int64_t now) {
  v1::RecordBody body;
  body.mutable_hold()->set_hold(hold);
  body.mutable_hold()->set_reason(reason);
  *body.mutable_hold()->mutable_actor() = ToProto(caller);
  body.mutable_hold()->set_created_unix_micros(now);
  return body;
}

v1::RecordBody MoveBody(const LiveRecord& record, const std::string& message, int64_t now) {
  v1::RecordBody body;
  v1::MoveRecord* const move = body.mutable_move();
  move->set_move(record.move.value());
  move->set_from_version(record.from.value());
  move->set_to_version(record.to.version.value());
  move->set_why(WhyOf(record.kind));
  move->set_transaction(record.transaction.value());
  move->set_transaction_id(record.id);
  move->set_policy(record.for_all ? "all" : "each");
  move->set_outcome("committed");
  move->set_message(message);
  *move->mutable_actor() = ToProto(record.caller);
  move->set_created_unix_micros(now);
  move->set_duration_micros(record.duration_micros);
  if (record.trial) {
    move->mutable_trial()->set_version(record.trial->candidate.version.value());
    for (const std::string& name : record.trial->instances) {
      move->mutable_trial()->add_instances(name);
    }
  }
  return body;
}

}  // namespace

// Tells when a StoreImpl, and with it the journal, is closed.
class LiveStore::Closing {
 public:
  void Done() {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }
  bool Wait(std::chrono::seconds timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, timeout, [this] { return done_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

LiveStore::LiveStore(std::string directory, const Options& options, const Manifest& manifest,
                     const Digest& base_digest)
    : directory_(std::move(directory)),
      options_(options),
      manifest_(manifest),
      fingerprint_key_(base_digest) {}

LiveStore::~LiveStore() = default;

absl::StatusOr<std::unique_ptr<LiveStore>> LiveStore::Open(const std::string& directory,
                                                           const Options& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Journal> journal, Journal::Open(directory, {}));
  ASSIGN_OR_RETURN(std::unique_ptr<StoreImpl> store,
                   StoreImpl::Make(std::move(journal), options.open));
  std::unique_ptr<LiveStore> live(
      new LiveStore(directory, options, store->manifest(), store->head().base_digest));
  live->SetStore(std::move(store));
  return live;
}

void LiveStore::SetStore(std::unique_ptr<StoreImpl> store) {
  auto closing = std::make_shared<Closing>();
  const std::lock_guard<std::mutex> lock(mutex_);
  closing_ = closing;
  store_ = std::shared_ptr<StoreImpl>(store.release(), [closing](StoreImpl* closed) {
    delete closed;
    closing->Done();
  });
}

std::shared_ptr<Store> LiveStore::store() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return store_;
}

absl::StatusOr<std::shared_ptr<StoreImpl>> LiveStore::OpenedStore() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (store_ == nullptr) {
    return absl::UnavailableError("the journal is being reopened; try again");
  }
  return store_;
}

absl::StatusOr<LiveView> LiveStore::View() const {
  ASSIGN_OR_RETURN(const std::shared_ptr<StoreImpl> store, OpenedStore());
  LiveView view;
  const HighWaterMarks marks = store->journal_->high_water_marks();
  view.next = {TransactionNumber(marks.transaction + 1), VersionId(marks.version + 1),
               MoveNumber(marks.move + 1)};
  const std::lock_guard<std::mutex> lock(store->mutex_);
  const StoreState& state = store->state_;
  view.epoch = state.epoch();
  view.hold = state.hold().has_value();
  view.moves.push_back({MoveNumber(), NameOf(state, VersionId(0)), TransactionNumber(), true, {}});
  absl::flat_hash_map<TransactionNumber, MoveNumber> move_of;
  for (const MoveInfo& info : state.moves()) {
    if (info.outcome != "committed") continue;
    move_of[info.transaction] = info.move;
    view.moves.push_back(MoveOf(state, info));
  }
  for (const auto& [id, use] : state.ids()) {
    const auto move = move_of.find(use.transaction);
    view.outcomes.push_back(
        OutcomeOf(state, id, use,
                  move == move_of.end() ? std::nullopt : std::optional<MoveNumber>(move->second)));
  }
  std::sort(
      view.outcomes.begin(), view.outcomes.end(),
      [](const LiveOutcome& a, const LiveOutcome& b) { return a.transaction < b.transaction; });
  const auto keep_last = [](auto* list, size_t count) {
    if (list->size() > count)
      list->erase(list->begin(), list->end() - static_cast<ptrdiff_t>(count));
  };
  keep_last(&view.moves, options_.max_moves);
  keep_last(&view.outcomes, options_.max_outcomes);
  return view;
}

std::optional<LiveOutcome> LiveStore::FindOutcome(const std::string& id) const {
  const absl::StatusOr<std::shared_ptr<StoreImpl>> store = OpenedStore();
  if (!store.ok()) return std::nullopt;
  const std::lock_guard<std::mutex> lock((*store)->mutex_);
  const StoreState& state = (*store)->state_;
  const IdUse* const use = state.FindId(id);
  if (use == nullptr) return std::nullopt;
  // It is mostly a recent one that is asked for.
  const auto move =
      std::find_if(state.moves().rbegin(), state.moves().rend(), [use](const MoveInfo& info) {
        return info.outcome == "committed" && info.transaction == use->transaction;
      });
  return OutcomeOf(
      state, id, *use,
      move == state.moves().rend() ? std::nullopt : std::optional<MoveNumber>(move->move));
}

absl::Status LiveStore::CheckBegin(const BeginOptions& expected) const {
  RETURN_IF_ERROR(CheckLimits(expected));
  ASSIGN_OR_RETURN(const std::shared_ptr<StoreImpl> store, OpenedStore());
  const std::lock_guard<std::mutex> lock(store->mutex_);
  return store->CheckBegin(expected);
}

absl::Status LiveStore::CheckPromote(VersionId version) const {
  ASSIGN_OR_RETURN(const std::shared_ptr<StoreImpl> store, OpenedStore());
  ASSIGN_OR_RETURN(const VersionInfo target, store->version(version));
  return store->CheckPromote(target, store->head());
}

absl::Status LiveStore::Append(StoreImpl& store, std::vector<v1::RecordBody> bodies,
                               std::unique_ptr<PayloadWriter> payload, bool sync) const {
  const std::lock_guard<std::mutex> write_lock(store.write_mutex_);
  return store.Append(std::move(bodies), std::move(payload), sync);
}

absl::Status LiveStore::SyncEpoch(uint64_t epoch, const Caller& caller) {
  ASSIGN_OR_RETURN(const std::shared_ptr<StoreImpl> store, OpenedStore());
  v1::RecordBody body;
  body.mutable_epoch()->set_epoch(epoch);
  *body.mutable_epoch()->mutable_actor() = ToProto(caller);
  body.mutable_epoch()->set_created_unix_micros(store->clock_.NowUnixMicros());
  return Append(*store, {std::move(body)}, nullptr, true);
}

absl::Status LiveStore::ReserveNumbers(const LiveNumbers& next) {
  ASSIGN_OR_RETURN(const std::shared_ptr<StoreImpl> store, OpenedStore());
  return store->journal_->RaiseHighWaterMarks(
      {next.transaction.value() - 1, next.version.value() - 1, next.move.value() - 1});
}

absl::Status LiveStore::SetHold(bool hold, const std::string& reason, const Caller& caller) {
  ASSIGN_OR_RETURN(const std::shared_ptr<StoreImpl> store, OpenedStore());
  const std::lock_guard<std::mutex> write_lock(store->write_mutex_);
  if (store->status().hold.has_value() == hold) return absl::OkStatus();
  return store->Append({HoldBody(hold, reason, caller, store->clock_.NowUnixMicros())}, nullptr);
}

absl::Status LiveStore::SetMark(VersionId version, bool bad, const std::string& reason,
                                const Caller& caller) {
  ASSIGN_OR_RETURN(const std::shared_ptr<StoreImpl> store, OpenedStore());
  return store->MarkAs(ToProto(caller), version, bad, reason);
}

absl::Status LiveStore::SetTag(const std::string& name, VersionId version, const Caller& caller) {
  ASSIGN_OR_RETURN(const std::shared_ptr<StoreImpl> store, OpenedStore());
  return store->TagAs(ToProto(caller), name, version);
}

absl::Status LiveStore::RecordAttempt(const LiveAttempt& attempt) {
  ASSIGN_OR_RETURN(const std::shared_ptr<StoreImpl> store, OpenedStore());
  const char* const outcome = attempt.refused ? "refused" : "aborted";
  const std::lock_guard<std::mutex> write_lock(store->write_mutex_);
  const VersionId head = store->head().version;
  {
    // A client that tries again and again must not fill the journal.
    const std::lock_guard<std::mutex> lock(store->mutex_);
    if (!store->state_.moves().empty()) {
      const MoveInfo& last = store->state_.moves().back();
      if (last.outcome == outcome && last.why == attempt.why &&
          last.actor == attempt.caller.actor && last.transaction_id == attempt.id &&
          last.message == attempt.reason.message()) {
        return absl::OkStatus();
      }
    }
  }
  v1::RecordBody body;
  v1::MoveRecord* const move = body.mutable_move();
  move->set_from_version(head.value());
  move->set_to_version(attempt.to.value_or(head).value());
  move->set_why(attempt.why);
  move->set_transaction(attempt.transaction.value());
  move->set_transaction_id(attempt.id);
  move->set_policy("all");
  move->set_outcome(outcome);
  move->set_message(std::string(attempt.reason.message()));
  *move->mutable_actor() = ToProto(attempt.caller);
  move->set_created_unix_micros(store->clock_.NowUnixMicros());
  move->set_duration_micros(attempt.duration_micros);
  return store->Append({std::move(body)}, nullptr);
}

absl::Status LiveStore::Write(const LiveRecord& record) {
  ASSIGN_OR_RETURN(const std::shared_ptr<StoreImpl> store, OpenedStore());
  const int64_t now = store->clock_.NowUnixMicros();
  std::vector<v1::RecordBody> bodies;
  std::shared_ptr<Pending> pending;
  std::unique_ptr<PayloadWriter> payload;
  std::string message = record.message;
  if (record.kind == LiveKind::kPublish || record.kind == LiveKind::kCandidate) {
    ASSIGN_OR_RETURN(pending, FindPending(record.transaction));
    if (pending->payload == nullptr || pending->result.chain_digest != record.to.chain_digest) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the content of transaction ", record.transaction.value(), " is not complete"));
    }
    payload = std::move(pending->payload);
    v1::RecordBody body;
    v1::VersionRecord* const version = body.mutable_version();
    *version = pending->record;
    version->set_version(record.to.version.value());
    version->set_transaction_id(record.id);
    version->set_verified(std::string(
        VerifiedName(record.installed ? Verified::kInstalled : pending->result.verified)));
    version->set_created_unix_micros(now);
    *version->mutable_actor() = ToProto(record.caller);
    version->set_candidate(record.kind == LiveKind::kCandidate);
    bodies.push_back(std::move(body));
    message = pending->publish.message;
  }
  if (record.kind != LiveKind::kCandidate) bodies.push_back(MoveBody(record, message, now));
  if (record.hold) {
    bodies.push_back(
        HoldBody(true,
                 absl::StrCat("rolled back from ", ToString(record.from), " to ",
                              ToString(record.to.version), message.empty() ? "" : ": ", message),
                 record.caller, now));
  }
  RETURN_IF_ERROR(Append(*store, std::move(bodies), std::move(payload), record.sync));
  if (pending == nullptr) return absl::OkStatus();
  store->Published(pending->publish.parent, record.to.version, record.kind == LiveKind::kCandidate,
                   pending->table, pending->touched.get(), pending->tiles);
  const std::lock_guard<std::mutex> lock(mutex_);
  pending_.erase(record.transaction);
  return absl::OkStatus();
}

absl::Status LiveStore::Sync() {
  ASSIGN_OR_RETURN(const std::shared_ptr<StoreImpl> store, OpenedStore());
  return store->journal_->Sync();
}

absl::Status LiveStore::Reopen() {
  std::shared_ptr<Closing> closing;
  {
    std::shared_ptr<StoreImpl> store;
    std::map<TransactionNumber, std::shared_ptr<Pending>> pending;  // goes before the store
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      store.swap(store_);
      pending.swap(pending_);
      closing = closing_;
    }
    for (const auto& [number, entry] : pending) entry->content->Discard();
  }
  if (!closing->Wait(kCloseTimeout)) {
    return absl::UnavailableError(
        "the journal is to be reopened, but something has read from it for a minute; try again");
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Journal> journal, Journal::Open(directory_, {}));
  ASSIGN_OR_RETURN(std::unique_ptr<StoreImpl> store,
                   StoreImpl::Make(std::move(journal), options_.open));
  if (store->head().base_digest != fingerprint_key_.base_digest()) {
    return absl::DataLossError(absl::StrCat("another store is in ", directory_, " now"));
  }
  SetStore(std::move(store));
  return absl::OkStatus();
}

}  // namespace wstore
