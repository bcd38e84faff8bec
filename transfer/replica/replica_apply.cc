// An update from the first write to its decision.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/strings.h"
#include "transfer/replica/replica_impl.h"

namespace wstore {

// Sets the state after an exchange that was not wholly done, and then says why: the message needs
// memory, the state does not.
absl::Status Replica::Impl::EndExchange(const ExchangeResult& result, std::string_view what) {
  const bool is_intact = result.end == ExchangeEnd::kTakenBack;
  const std::shared_ptr<Pending> pending = pending_;
  DropPending(is_intact ? ReplicaState::kReady : ReplicaState::kPoisoned);
  std::string text = absl::StrCat(ToAbsl(what), " of transaction ",
                                  pending->header.transaction.value(), " failed");
  if (result.unit != nullptr) absl::StrAppend(&text, " at ", DescribeUnit(*plan_, *result.unit));
  switch (result.end) {
    case ExchangeEnd::kForeignChange:
      absl::StrAppend(&text, ": someone else changed these weights after they were checked; what ",
                      "was found is put back");
      break;
    case ExchangeEnd::kUnknown:
      absl::StrAppend(&text, ": how far the write came is unknown");
      break;
    case ExchangeEnd::kNotTakenBack:
      absl::StrAppend(&text, ": the bits from before did not come back");
      break;
    case ExchangeEnd::kTakenBack:
    case ExchangeEnd::kDone:
      if (result.backend.ok()) absl::StrAppend(&text, ": other bits were read back than written");
  }
  if (!result.backend.ok()) absl::StrAppend(&text, ": ", result.backend.message());
  if (!is_intact) detail_ = text;
  absl::StrAppend(&text, is_intact
                             ? absl::StrCat("; ", ToString(*held_), " is in place, bit for bit")
                             : "; the replica is poisoned");
  const bool is_backend = is_intact && !result.backend.ok();
  return absl::Status(is_backend ? result.backend.code() : absl::StatusCode::kDataLoss, text);
}

absl::Status Replica::Impl::Apply(TransactionNumber transaction) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (IsCommitted(transaction)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::shared_ptr<Pending> pending, FindPending(transaction));
  if (status_.state == ReplicaState::kApplied) return absl::OkStatus();
  if (status_.state != ReplicaState::kApproved) return RefuseTransaction(transaction);
  gate_.Close();
  SetState(ReplicaState::kApplying);
  ++epoch_;
  const ExchangeResult result = WritePatch(*backend_, *pending->patch, &pending->room);
  gate_.Open();
  if (result.end != ExchangeEnd::kDone) return EndExchange(result, "apply");
  SetState(ReplicaState::kApplied);
  return absl::OkStatus();
}

absl::Status Replica::Impl::Commit(TransactionNumber transaction) {
  ChangeEvent event;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (IsCommitted(transaction)) return absl::OkStatus();
    if (!IsPending(transaction) || status_.state != ReplicaState::kApplied) {
      return RefuseTransaction(transaction);
    }
    // Not a reference of its own: that of the reaper shall be the last.
    const Pending& pending = *pending_;
    const UpdateHeader& header = pending.header;
    event = {*held_, pending.to, header.reason, header.move, pending.patch->changed};
    if (!pending.back.empty()) {
      history_.DropNewest(pending.back.size());
    } else if (pending.to != *held_) {
      history_.Add({*held_, pending.to, pending.patch});
    }
    held_ = pending.to;
    status_.move = header.move;
    committed_ = {transaction, header.move, pending.to};
    DropPending(ReplicaState::kReady);
  }
  if (event.from != event.to && options_.on_change) options_.on_change(event);
  return absl::OkStatus();
}

absl::Status Replica::Impl::Abort(TransactionNumber transaction) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (IsCommitted(transaction)) {
    return absl::FailedPreconditionError(absl::StrCat("transaction ", transaction.value(),
                                                      " is committed here, as ", ToString(*held_),
                                                      "; go back by another update"));
  }
  if (!IsPending(transaction)) return absl::OkStatus();
  if (status_.state != ReplicaState::kApplied) {
    DropPending(ReplicaState::kReady);
    return absl::OkStatus();
  }
  gate_.Close();
  SetState(ReplicaState::kApplying);
  ++epoch_;
  const ExchangeResult result = TakeBackPatch(*backend_, *pending_->patch, &pending_->room);
  gate_.Open();
  if (result.end != ExchangeEnd::kDone) return EndExchange(result, "abort");
  DropPending(ReplicaState::kReady);
  return absl::OkStatus();
}

}  // namespace wstore
