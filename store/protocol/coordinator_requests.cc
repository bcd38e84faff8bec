// What callers ask for: beginning, joining, preempting, awaiting and aborting transactions.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "store/protocol/coordinator_step.h"

namespace wstore::protocol {
namespace {

bool MakesVersion(TransactionKind kind) {
  return kind == TransactionKind::kPublish || kind == TransactionKind::kCandidate;
}

bool SameVersion(const Position& a, const Position& b) {
  return a.version == b.version && a.chain_digest == b.chain_digest;
}

}  // namespace

void CoordinatorStep::Reply(uint64_t waiter, AnswerKind kind, absl::Status status,
                            TransactionNumber transaction, const Position& to) {
  Answer answer;
  answer.waiter = waiter;
  answer.kind = kind;
  answer.status = std::move(status);
  answer.transaction = transaction;
  answer.to = to;
  if (!s_.moves.empty()) answer.head = s_.head().head;
  Emit(std::move(answer));
}

void CoordinatorStep::Refuse(uint64_t waiter, absl::Status status) {
  Reply(waiter, AnswerKind::kRefused, std::move(status), {}, {});
}

void CoordinatorStep::AddWaiter(uint64_t waiter) {
  if (s_.active->waiters.size() >= s_.config.max_waiters) {
    Refuse(waiter,
           absl::ResourceExhaustedError(absl::StrCat(
               s_.config.max_waiters, " callers wait for this transaction; that is the limit")));
    return;
  }
  s_.active->waiters.push_back(waiter);
}

// Promise 6: an id that was committed answers with its first outcome, for as long as it is
// remembered.
bool CoordinatorStep::AnswerFromOutcomes(const StartTransaction& request) {
  if (Mutated(Mutation::kRepeatCommitsAgain)) return false;
  const auto found = std::find_if(s_.outcomes.rbegin(), s_.outcomes.rend(),
                                  [&](const Outcome& o) { return o.id == request.id; });
  if (found == s_.outcomes.rend()) return false;
  const bool other_content = found->content && request.content && found->content != request.content;
  const bool other_target = !MakesVersion(request.kind) &&
                            request.kind != TransactionKind::kRevert &&
                            found->to.version != request.to.version;
  if (found->kind != request.kind || other_content || other_target) {
    Refuse(request.waiter,
           absl::AlreadyExistsError(absl::StrCat(
               "id ", request.id, " was used for a ", std::string(TransactionKindName(found->kind)),
               " that led to ", wstore::ToString(found->to.version),
               "; use another id for other content")));
    return true;
  }
  const bool durable = s_.durable || found->transaction != s_.head().transaction;
  Reply(request.waiter, durable ? AnswerKind::kRepeated : AnswerKind::kServedNotDurable,
        absl::OkStatus(), found->transaction, found->to);
  return true;
}

// True: there is a transaction of this id, and the caller has joined it or was refused.
bool CoordinatorStep::JoinActive(const StartTransaction& request) {
  if (!s_.active || s_.active->request.id != request.id) return false;
  const StartTransaction& first = s_.active->request;
  const bool same = first.kind == request.kind && first.contributors == request.contributors &&
                    (MakesVersion(request.kind) || first.to.version == request.to.version) &&
                    (!first.content || !request.content || first.content == request.content);
  if (!same) {
    Refuse(request.waiter,
           absl::AlreadyExistsError(absl::StrCat(
               "id ", request.id, " is in use by a ", std::string(TransactionKindName(first.kind)),
               " of ", first.contributors, " contributors with other content")));
  } else if (MakesVersion(request.kind) && s_.active->phase != TransactionPhase::kReserving) {
    Reply(request.waiter, AnswerKind::kBegun, absl::OkStatus(), s_.active->number, s_.active->to);
  } else {
    AddWaiter(request.waiter);
  }
  return true;
}

absl::Status CoordinatorStep::CheckRequest(const StartTransaction& request) const {
  if (request.id.empty() || request.id.size() > 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("transaction id of ", request.id.size(), " bytes; 1 to 256 are allowed"));
  }
  if (MakesVersion(request.kind) && (request.contributors == 0 || request.contributors > 65'535)) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.contributors, " contributors; 1 to 65535 are allowed"));
  }
  if (request.durability == Durability::kAsync &&
      (request.kind != TransactionKind::kPublish || request.policy != Policy::kAll)) {
    return absl::InvalidArgumentError(
        "durability async is for publishes under policy all; use sync");
  }
  const bool names = !request.instances.empty();
  if (names != (request.kind == TransactionKind::kRollout) ||
      request.instances.size() > s_.config.max_instances) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.instances.size(), " instances are named; a rollout names 1 to ",
                     s_.config.max_instances, ", anything else none"));
  }
  return absl::OkStatus();
}

// What may have changed since the caller looked.
absl::Status CoordinatorStep::CheckAgainstHead(const StartTransaction& request) const {
  const Move& head = s_.head();
  if (request.kind == TransactionKind::kRollback) return absl::OkStatus();
  if (s_.hold && request.kind != TransactionKind::kRevert) {
    return absl::FailedPreconditionError(absl::StrCat(
        "publishing is on hold, head is ", ToString(head.head), "; resume it, then rebase"));
  }
  if (request.parent && *request.parent != head.head) {
    return absl::FailedPreconditionError(absl::StrCat("built on ", ToString(*request.parent),
                                                      ", but head is ", ToString(head.head),
                                                      "; rebase and publish again"));
  }
  if (request.kind == TransactionKind::kPublish && head.trial) {
    return absl::FailedPreconditionError(
        absl::StrCat(wstore::ToString(head.trial->version), " is being tried out on ",
                     head.trial->instances.size(), " instances; promote or revert it first"));
  }
  if (request.kind == TransactionKind::kRevert && !head.trial) {
    return absl::FailedPreconditionError("no candidate is being tried out");
  }
  if (!s_.durable) {
    return absl::UnavailableError(
        absl::StrCat(ToString(head.head), " is not durable yet; try again"));
  }
  return absl::OkStatus();
}

void CoordinatorStep::On(const StartTransaction& request) {
  if (absl::Status status = CheckRequest(request); !status.ok()) {
    return Refuse(request.waiter, std::move(status));
  }
  if (AnswerFromOutcomes(request) || JoinActive(request)) return;
  const bool rollback = request.kind == TransactionKind::kRollback;
  if (rollback) {
    if (s_.pending_rollback || (s_.active && s_.active->request.kind == request.kind)) {
      return Refuse(request.waiter, absl::UnavailableError("another rollback is in progress"));
    }
    // It preempts a publish, unless that one's record is being written.
    if (s_.active && (s_.active->phase < TransactionPhase::kRecording ||
                      Mutated(Mutation::kAbortWhileRecording))) {
      AbortActive(absl::AbortedError(
          absl::StrCat("preempted by a rollback to ", wstore::ToString(request.to.version))));
    }
    s_.pending_rollback = request;
    return;
  }
  if (s_.phase != CoordinatorPhase::kReady) {
    return Refuse(request.waiter,
                  absl::UnavailableError("the store has just started, and leases that it gave "
                                         "before may still be good; try again in a few seconds"));
  }
  if (absl::Status status = CheckAgainstHead(request); !status.ok()) {
    return Refuse(request.waiter, std::move(status));
  }
  if (s_.active || s_.pending_rollback) {
    return Refuse(request.waiter, absl::UnavailableError(absl::StrCat(
                                      "transaction ", s_.active ? s_.active->request.id : "",
                                      " is in progress; try again after it")));
  }
  BeginTransaction(request);
}

void CoordinatorStep::BeginTransaction(const StartTransaction& request) {
  const Move& head = s_.head();
  if (request.kind == TransactionKind::kRollback && !head.trial &&
      SameVersion(request.to, head.head)) {
    return Reply(request.waiter, AnswerKind::kUnchanged, absl::OkStatus(), {}, head.head);
  }
  ActiveTransaction active;
  active.request = request;
  active.number = s_.next.transaction;
  active.from = head.head;
  active.begun_at = now_;
  active.deadline = now_ + timing().stage_deadline;
  active.waiters.push_back(request.waiter);
  s_.next.transaction = s_.next.transaction.next();
  active.to = request.kind == TransactionKind::kRollout || request.kind == TransactionKind::kRevert
                  ? head.head
                  : request.to;
  if (MakesVersion(request.kind)) {
    active.staged.resize(request.contributors);
    active.to = {MoveNumber(0), s_.next.version, Digest{}};
    s_.next.version = s_.next.version.next();
  }
  if (request.kind != TransactionKind::kCandidate) {
    active.to.move = s_.next.move;
    s_.next.move = s_.next.move.next();
  }
  active.move.head = active.to;
  active.move.transaction = active.number;
  active.move.policy = request.policy;
  if (request.kind == TransactionKind::kRollout) {
    active.move.trial = Trial{request.to.version, request.to.chain_digest, request.instances};
  }
  s_.active = std::move(active);
  if (Mutated(Mutation::kEpochNotSynced)) {
    On(NumbersReserved{s_.active->number});
  } else {
    Emit(ReserveNumbers{s_.next});
  }
}

void CoordinatorStep::On(const NumbersReserved& event) {
  if (!s_.active || s_.active->number != event.transaction ||
      s_.active->phase != TransactionPhase::kReserving) {
    return;
  }
  s_.active->phase = TransactionPhase::kStaging;
  if (MakesVersion(s_.active->request.kind)) {
    for (const uint64_t waiter : s_.active->waiters) {
      Reply(waiter, AnswerKind::kBegun, absl::OkStatus(), s_.active->number, s_.active->to);
    }
    s_.active->waiters.clear();
  }
  DriveAll();
}

void CoordinatorStep::On(const AwaitOutcome& event) {
  if (s_.active && s_.active->request.id == event.id) return AddWaiter(event.waiter);
  for (auto it = s_.outcomes.rbegin(); it != s_.outcomes.rend(); ++it) {
    if (it->id == event.id) {
      const bool durable = s_.durable || it->transaction != s_.head().transaction;
      return Reply(event.waiter, durable ? AnswerKind::kCommitted : AnswerKind::kServedNotDurable,
                   absl::OkStatus(), it->transaction, it->to);
    }
  }
  for (auto it = s_.aborted.rbegin(); it != s_.aborted.rend(); ++it) {
    if (it->first == event.id) {
      return Reply(event.waiter, AnswerKind::kAborted, it->second, {}, {});
    }
  }
  Refuse(event.waiter, absl::NotFoundError(absl::StrCat(
                           "no transaction of id ", event.id,
                           " was committed; if it was begun, it was aborted: it may be begun "
                           "again under the same id")));
}

void CoordinatorStep::On(const AbortTransaction& event) {
  if (!s_.active || s_.active->request.id != event.id) {
    return Refuse(event.waiter, absl::NotFoundError(absl::StrCat("no transaction of id ", event.id,
                                                                 " is in progress")));
  }
  if (s_.active->phase >= TransactionPhase::kRecording) {
    return Refuse(event.waiter, absl::FailedPreconditionError(
                                    "its record is being written: it can no longer be aborted"));
  }
  AbortActive(absl::AbortedError(event.reason));
  Reply(event.waiter, AnswerKind::kAborted, absl::OkStatus(), {}, {});
}

}  // namespace wstore::protocol
