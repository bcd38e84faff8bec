// What callers ask for. What is wrong with a request by itself, or against the store, is refused
// here; what is wrong against the fleet, by the coordinator.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "store/service/fleet.h"
#include "store/service/live_events.h"

namespace wstore::service {
namespace {

using protocol::AnswerKind;
using protocol::StartTransaction;
using protocol::TransactionKind;

absl::Status Stopping() {
  return absl::UnavailableError("the server is stopping; try again when it is back");
}

absl::Status Busy() { return absl::UnavailableError("too many requests are waiting; try again"); }

FleetAnswer Refusal(const absl::Status& status) {
  FleetAnswer answer;
  answer.kind = AnswerKind::kRefused;
  answer.status = status;
  return answer;
}

}  // namespace

bool Fleet::Enter(const AnswerFn& done, std::function<void()> task) {
  if (!stopping_ && strand_.TryPost(std::move(task))) return true;
  FleetAnswer answer = Refusal(stopping_ ? Stopping() : Busy());
  answer.head = head();
  done(answer);
  return false;
}

bool Fleet::EnterPlain(const StatusFn& done, std::function<void()> task) {
  if (!stopping_ && strand_.TryPost(std::move(task))) return true;
  done(stopping_ ? Stopping() : Busy());
  return false;
}

// Refuses an attempt, and records it.
void Fleet::Refuse(const Waiter& waiter, const absl::Status& status) {
  const bool transient = absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
  if (!waiter.why.empty() && !transient) {
    LiveAttempt attempt;
    attempt.why = waiter.why;
    attempt.to = waiter.to;
    attempt.id = waiter.id;
    attempt.reason = status;
    attempt.caller = waiter.caller;
    attempt.duration_micros = now() - waiter.begun_at;
    Ended(attempt.why, "refused", attempt.duration_micros);
    RecordAttempt(std::move(attempt));
  }
  FleetAnswer answer = Refusal(status);
  answer.head = head();
  answer.duration_micros = now() - waiter.begun_at;
  waiter.done(answer);
}

// Whether the store can be asked; the coordinator refuses everything while it cannot.
bool Fleet::CanLook() const {
  return !state_.moves.empty() && state_.phase != protocol::CoordinatorPhase::kUnknown &&
         live_.store() != nullptr;
}

bool Fleet::IsOpen(const std::string& id) const {
  return (state_.active && state_.active->request.id == id) ||
         (state_.pending_rollback && state_.pending_rollback->id == id);
}

// An id that was committed, however long ago, answers with its first outcome.
bool Fleet::AnsweredFromStore(const StartTransaction& start, const Waiter& waiter) {
  const std::optional<LiveOutcome> outcome = live_.FindOutcome(start.id);
  if (!outcome) return false;
  const bool other_content =
      start.content && outcome->patch_digest && *start.content != *outcome->patch_digest;
  const bool other_target = !MakesVersion(start.kind) && start.kind != TransactionKind::kRevert &&
                            outcome->to.version != start.to.version;
  if (FromLive(outcome->kind) != start.kind || other_content || other_target) {
    Refuse(waiter, absl::AlreadyExistsError(absl::StrCat(
                       "the id '", start.id, "' was used for a ",
                       std::string(protocol::TransactionKindName(FromLive(outcome->kind))),
                       " that led to ", wstore::ToString(outcome->to.version),
                       other_content ? ", with other content" : "", "; use another id")));
    return true;
  }
  FleetAnswer answer;
  answer.kind = AnswerKind::kRepeated;
  answer.transaction = outcome->transaction;
  answer.to = {outcome->move, outcome->to.version, outcome->to.chain_digest};
  answer.head = head();
  waiter.done(answer);
  return true;
}

void Fleet::StartNow(StartTransaction start, Waiter waiter, Details details) {
  details.caller = waiter.caller;
  details.begun_at = waiter.begun_at;
  details.why = waiter.why;
  details_.try_emplace(start.id, std::move(details));
  start.waiter = next_waiter_++;
  waiters_.emplace(start.waiter, std::move(waiter));
  Feed(start);
}

void Fleet::Begin(BeginPublish request, AnswerFn done) {
  Enter(done, [this, request = std::move(request), done] { BeginNow(request, done); });
}

void Fleet::BeginNow(const BeginPublish& request, const AnswerFn& done) {
  Waiter waiter{done, "publish", request.id, std::nullopt, request.caller, now()};
  StartTransaction start;
  start.id = request.id;
  start.kind = request.expected.candidate ? TransactionKind::kCandidate : TransactionKind::kPublish;
  start.policy = request.policy;
  start.durability = request.durability;
  start.laggards = request.laggards;
  start.contributors = std::max(request.contributors, 1u);
  start.content = request.patch_digest;
  if (!IsOpen(request.id) && CanLook()) {
    if (AnsweredFromStore(start, waiter)) return;
    const absl::Status status = live_.CheckBegin(request.expected);
    if (!status.ok()) return Refuse(waiter, status);
    start.parent = state_.head().head;
  }
  Details details;
  details.publish = request;
  StartNow(std::move(start), std::move(waiter), std::move(details));
}

void Fleet::ContentStaged(TransactionNumber transaction, uint32_t contributor) {
  strand_.Post([this, transaction, contributor] { ContentCame(transaction, contributor); });
}

void Fleet::Abort(const std::string& id, const std::string& reason, StatusFn done) {
  EnterPlain(done, [this, id, reason, done] {
    const uint64_t number = next_waiter_++;
    Waiter waiter;
    waiter.begun_at = now();
    waiter.done = [done](const FleetAnswer& answer) { done(answer.status); };
    waiters_.emplace(number, std::move(waiter));
    Feed(protocol::AbortTransaction{number, id, reason});
  });
}

void Fleet::Await(const std::string& id, AnswerFn done) {
  Enter(done, [this, id, done] { AwaitNow(id, done); });
}

void Fleet::AwaitTransaction(TransactionNumber transaction, AnswerFn done) {
  Enter(done, [this, transaction, done] {
    const auto found = ids_.find(transaction);
    if (found != ids_.end()) return AwaitNow(found->second, done);
    FleetAnswer answer = Refusal(
        absl::NotFoundError(absl::StrCat("transaction ", transaction.value(),
                                         " is not known to this run of the server; ask by id")));
    answer.head = head();
    done(answer);
  });
}

void Fleet::AwaitNow(const std::string& id, const AnswerFn& done) {
  Waiter waiter;
  waiter.id = id;
  waiter.begun_at = now();
  waiter.done = [this, id, done](const FleetAnswer& answer) {
    const std::optional<LiveOutcome> outcome =
        absl::IsNotFound(answer.status) ? live_.FindOutcome(id) : std::nullopt;
    if (!outcome) return done(answer);
    FleetAnswer old = answer;  // too old for the coordinator to remember
    old.kind = AnswerKind::kCommitted;
    old.status = absl::OkStatus();
    old.transaction = outcome->transaction;
    old.to = {outcome->move, outcome->to.version, outcome->to.chain_digest};
    done(old);
  };
  const uint64_t number = next_waiter_++;
  waiters_.emplace(number, std::move(waiter));
  Feed(protocol::AwaitOutcome{number, id});
}

void Fleet::Rollback(BeginRollback request, AnswerFn done) {
  Enter(done, [this, request = std::move(request), done] { RollbackNow(request, done); });
}

void Fleet::RollbackNow(const BeginRollback& request, const AnswerFn& done) {
  Waiter waiter{done, "rollback", request.id, std::nullopt, request.caller, now()};
  StartTransaction start;
  start.id = request.id;
  start.kind = TransactionKind::kRollback;
  const std::shared_ptr<Store> store = live_.store();
  if (CanLook() && store != nullptr) {
    const absl::StatusOr<VersionId> to = store->Resolve(request.to);
    if (!to.ok()) return Refuse(waiter, to.status());
    const absl::StatusOr<VersionInfo> info = store->version(*to);
    if (!info.ok()) return Refuse(waiter, info.status());
    waiter.to = *to;
    start.to = {MoveNumber(), *to, info->chain_digest};
    if (!IsOpen(request.id)) {
      if (AnsweredFromStore(start, waiter)) return;
      if (info->bad && !request.force) {
        return Refuse(waiter, absl::FailedPreconditionError(absl::StrCat(
                                  "rollback refused: ", wstore::ToString(*to), " is marked bad (",
                                  *info->bad, "); choose another version, or force it")));
      }
    }
  }
  Details details;
  details.message = request.message;
  HurryLate();
  StartNow(std::move(start), std::move(waiter), std::move(details));
}

void Fleet::Move(MoveCandidate request, AnswerFn done) {
  Enter(done, [this, request = std::move(request), done] { MoveNow(request, done); });
}

absl::Status Fleet::CheckMove(const MoveCandidate& request, VersionId to) const {
  if (request.kind == TransactionKind::kRevert) return absl::OkStatus();
  RETURN_IF_ERROR(live_.CheckPromote(to));
  std::vector<std::string> absent;
  for (const std::string& name : request.instances) {
    if (!state_.instances.contains(name)) absent.push_back(name);
  }
  if (absent.empty()) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("rollout refused: there is no instance ",
                                          absl::StrJoin(absent, ", "), "; 'wstore workers' lists ",
                                          "those that there are"));
}

void Fleet::MoveNow(const MoveCandidate& request, const AnswerFn& done) {
  const std::string why(protocol::TransactionKindName(request.kind));
  Waiter waiter{done, why, request.id, std::nullopt, request.caller, now()};
  StartTransaction start;
  start.id = request.id;
  start.kind = request.kind;
  start.instances = request.instances;
  const std::shared_ptr<Store> store = live_.store();
  if (CanLook() && store != nullptr) {
    if (request.kind == TransactionKind::kRevert) {
      start.to = state_.head().head;
    } else {
      const absl::StatusOr<VersionId> to = store->Resolve(request.version);
      if (!to.ok()) return Refuse(waiter, to.status());
      const absl::StatusOr<VersionInfo> info = store->version(*to);
      if (!info.ok()) return Refuse(waiter, info.status());
      waiter.to = *to;
      start.to = {MoveNumber(), *to, info->chain_digest};
    }
    if (!IsOpen(request.id)) {
      if (AnsweredFromStore(start, waiter)) return;
      const absl::Status status = CheckMove(request, start.to.version);
      if (!status.ok()) return Refuse(waiter, status);
      start.parent = state_.head().head;
    }
  }
  Details details;
  details.message = request.message;
  StartNow(std::move(start), std::move(waiter), std::move(details));
}

void Fleet::SetHold(bool hold, const std::string& reason, const Caller& caller, StatusFn done) {
  EnterPlain(done, [this, hold, reason, caller, done] {
    const auto change = [this, hold, reason, caller, done] {
      const absl::Status status = live_.SetHold(hold, reason, caller);
      if (status.ok()) {
        strand_.Post([this, hold, done] {
          Feed(protocol::HoldChanged{hold});
          done(absl::OkStatus());
        });
        return;
      }
      done(status);
      if (absl::IsUnknown(status) || JournalFailed()) ReopenUntilItWorks();
    };
    PostJournal(change, [done] {
      done(absl::UnavailableError("the journal was closed meanwhile; try again"));
    });
  });
}

void Fleet::Evict(const std::string& instance, StatusFn done) {
  EnterPlain(done, [this, instance, done] {
    if (!state_.instances.contains(instance)) {
      return done(absl::NotFoundError(
          absl::StrCat("no instance '", instance, "'; there are ", state_.instances.size())));
    }
    Feed(protocol::Evict{instance});
    done(absl::OkStatus());
  });
}

void Fleet::CheckJournal() {
  strand_.Post([this] {
    PostJournal([this] {
      if (JournalFailed()) ReopenUntilItWorks();
    });
  });
}

HeadState Fleet::head() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return head_;
}

uint64_t Fleet::Watch(std::function<void(const HeadState&)> changed) {
  const std::lock_guard<std::mutex> lock(mutex_);
  watchers_.emplace(next_watch_, std::move(changed));
  return next_watch_++;
}

void Fleet::Unwatch(uint64_t watch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  watchers_.erase(watch);
}

absl::StatusOr<std::shared_ptr<const DifferenceInfo>> Fleet::Describe(VersionId from,
                                                                      VersionId to) {
  return differences_.Get(from, to);
}

absl::StatusOr<LiveContent> Fleet::OpenContent(TransactionNumber transaction) const {
  RETURN_IF_ERROR(live_.FindContent(transaction).status());
  const std::lock_guard<std::mutex> lock(mutex_);
  if (content_ && content_->first == transaction) return content_->second;
  return absl::UnavailableError(
      absl::StrCat("the content of transaction ", transaction.value(), " is not complete yet"));
}

}  // namespace wstore::service
