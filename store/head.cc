// What moves head or stops it from moving: rollback, promotion, hold; and names and marks of
// versions.
#include <algorithm>
#include <cctype>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "store/store_impl.h"

namespace wstore {
namespace {

absl::Status CheckTagName(const std::string& name) {
  const auto is_allowed = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-' || c == '/';
  };
  if (name.empty() || name.size() > 128 || !std::all_of(name.begin(), name.end(), is_allowed) ||
      std::isalnum(static_cast<unsigned char>(name[0])) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", name,
        "' cannot be a tag: use 1 to 128 letters, digits and '._-/', a letter or digit first"));
  }
  if (name == "head" || ParseVersionId(name).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' cannot be a tag: it names a version already"));
  }
  return absl::OkStatus();
}

}  // namespace

v1::RecordBody StoreImpl::MoveBody(const HeadInfo& from, const Attempt& attempt) const {
  v1::RecordBody body;
  v1::MoveRecord* const move = body.mutable_move();
  move->set_move(journal_->high_water_marks().move);
  move->set_from_version(from.version.value());
  move->set_to_version(attempt.to.value_or(from.version).value());
  move->set_why(attempt.why);
  move->set_transaction(attempt.transaction.value());
  move->set_transaction_id(attempt.transaction_id);
  move->set_policy("all");
  move->set_outcome("committed");
  move->set_message(attempt.message);
  *move->mutable_actor() = ActorProto();
  move->set_created_unix_micros(clock_.NowUnixMicros());
  move->set_duration_micros(clock_.NowMonotonicMicros() - attempt.begun_monotonic_micros);
  return body;
}

std::optional<IdUse> StoreImpl::FindId(const std::string& transaction_id) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const IdUse* const use = state_.FindId(transaction_id);
  return use != nullptr ? std::optional<IdUse>(*use) : std::nullopt;
}

absl::Status StoreImpl::Refuse(const absl::Status& refusal, const Attempt& attempt) {
  const HeadInfo head = this->head();
  v1::RecordBody body = MoveBody(head, attempt);
  v1::MoveRecord* const move = body.mutable_move();
  move->set_move(0);
  move->set_outcome("refused");
  move->set_message(std::string(refusal.message()));
  {
    // A client that tries again and again must not fill the journal.
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!state_.moves().empty()) {
      const MoveInfo& last = state_.moves().back();
      if (last.outcome == "refused" && last.why == attempt.why && last.actor == actor_ &&
          last.transaction_id == attempt.transaction_id && last.message == refusal.message()) {
        return refusal;
      }
    }
  }
  const absl::Status recorded = Append({std::move(body)}, nullptr);
  if (recorded.ok()) return refusal;
  return absl::Status(refusal.code(),
                      absl::StrCat(refusal.message(), " (not recorded: ", recorded.message(), ")"));
}

absl::StatusOr<CommitResult> StoreImpl::Rollback(const RollbackOptions& options) {
  RETURN_IF_ERROR(CheckWritable());
  Attempt attempt{"rollback",          options.to,
                  TransactionNumber(), options.transaction_id,
                  options.message,     clock_.NowMonotonicMicros()};
  const std::lock_guard<std::mutex> write_lock(write_mutex_);
  ASSIGN_OR_RETURN(const VersionInfo target, version(options.to));
  const HeadInfo from = head();
  CommitResult result;
  result.version = options.to;
  result.head = options.to;
  if (const std::optional<IdUse> use = FindId(options.transaction_id); use.has_value()) {
    if (!use->is_rollback() || use->version != options.to) {
      return Refuse(
          absl::AlreadyExistsError(absl::StrCat(
              "the id '", options.transaction_id, "' was used for ",
              use->is_rollback() ? "a " : "the ", use->why, use->is_rollback() ? " to " : " of ",
              ToString(use->version), "; use another id")),
          attempt);
    }
    result.outcome = CommitResult::Outcome::kRepeated;
    result.head = from.version;
    result.transaction = use->transaction;
    return result;
  }
  if (from.version == options.to) {
    result.outcome = CommitResult::Outcome::kUnchanged;
    return result;
  }
  if (target.bad.has_value() && !options.force) {
    return Refuse(absl::FailedPreconditionError(
                      absl::StrCat("rollback refused: ", ToString(options.to), " is marked bad (",
                                   *target.bad, "); choose another version, or force it")),
                  attempt);
  }
  ASSIGN_OR_RETURN(attempt.transaction, ReserveMove());
  std::vector<v1::RecordBody> bodies;
  bodies.push_back(MoveBody(from, attempt));
  bodies.push_back(HoldBody(
      true, absl::StrCat("rolled back from ", ToString(from.version), " to ", ToString(options.to),
                         options.message.empty() ? "" : ": ", options.message)));
  RETURN_IF_ERROR(Append(std::move(bodies), nullptr));
  result.transaction = attempt.transaction;
  result.duration_micros = clock_.NowMonotonicMicros() - attempt.begun_monotonic_micros;
  return result;
}

absl::Status StoreImpl::CheckPromote(const VersionInfo& target, const HeadInfo& head) const {
  std::string why;
  if (!target.candidate) {
    why = absl::StrCat(ToString(target.version),
                       " is not a candidate; 'wstore rollback' goes to any version");
  } else if (target.bad.has_value()) {
    why = absl::StrCat(ToString(target.version), " is marked bad (", *target.bad, ")");
  } else if (*target.parent != head.version) {
    why = absl::StrCat(ToString(target.version), " was made on ", ToString(*target.parent),
                       ", but head is ", ToString(head.version), "; publish it anew on head");
  } else if (const std::optional<HoldInfo> hold = status().hold; hold.has_value()) {
    why = absl::StrCat("publishing is on hold (", hold->reason, "); 'wstore resume' releases it");
  }
  if (why.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("promotion or rollout refused: ", why));
}

absl::StatusOr<CommitResult> StoreImpl::Promote(VersionId version) {
  RETURN_IF_ERROR(CheckWritable());
  Attempt attempt{"promote", version, TransactionNumber(), "", "", clock_.NowMonotonicMicros()};
  const std::lock_guard<std::mutex> write_lock(write_mutex_);
  ASSIGN_OR_RETURN(const VersionInfo target, this->version(version));
  const HeadInfo from = head();
  CommitResult result;
  result.version = version;
  result.head = version;
  if (from.version == version) {
    result.outcome = CommitResult::Outcome::kUnchanged;
    return result;
  }
  if (const absl::Status status = CheckPromote(target, from); !status.ok()) {
    return Refuse(status, attempt);
  }
  ASSIGN_OR_RETURN(attempt.transaction, ReserveMove());
  RETURN_IF_ERROR(Append({MoveBody(from, attempt)}, nullptr));
  result.transaction = attempt.transaction;
  result.duration_micros = clock_.NowMonotonicMicros() - attempt.begun_monotonic_micros;
  return result;
}

absl::StatusOr<TransactionNumber> StoreImpl::ReserveMove() {
  HighWaterMarks marks = journal_->high_water_marks();
  ++marks.transaction;
  ++marks.move;
  RETURN_IF_ERROR(journal_->RaiseHighWaterMarks(marks));
  return TransactionNumber(marks.transaction);
}

v1::RecordBody StoreImpl::HoldBody(bool hold, const std::string& reason) const {
  v1::RecordBody body;
  v1::HoldRecord* const record = body.mutable_hold();
  record->set_hold(hold);
  record->set_reason(reason);
  *record->mutable_actor() = ActorProto();
  record->set_created_unix_micros(clock_.NowUnixMicros());
  return body;
}

absl::Status StoreImpl::Hold(const std::string& reason) {
  RETURN_IF_ERROR(CheckWritable());
  const std::lock_guard<std::mutex> write_lock(write_mutex_);
  if (status().hold.has_value()) return absl::OkStatus();
  return Append({HoldBody(true, reason)}, nullptr);
}

absl::Status StoreImpl::Resume() {
  RETURN_IF_ERROR(CheckWritable());
  const std::lock_guard<std::mutex> write_lock(write_mutex_);
  if (!status().hold.has_value()) return absl::OkStatus();
  return Append({HoldBody(false, "")}, nullptr);
}

absl::Status StoreImpl::Mark(VersionId version, bool bad, const std::string& reason) {
  return MarkAs(ActorProto(), version, bad, reason);
}

absl::Status StoreImpl::MarkAs(const v1::Actor& actor, VersionId version, bool bad,
                               const std::string& reason) {
  RETURN_IF_ERROR(CheckWritable());
  const std::lock_guard<std::mutex> write_lock(write_mutex_);
  ASSIGN_OR_RETURN(const VersionInfo info, this->version(version));
  const std::optional<std::string> wanted = bad ? std::optional<std::string>(reason) : std::nullopt;
  if (info.bad == wanted) return absl::OkStatus();
  v1::RecordBody body;
  v1::MarkRecord* const record = body.mutable_mark();
  record->set_version(version.value());
  record->set_bad(bad);
  record->set_reason(reason);
  *record->mutable_actor() = actor;
  record->set_created_unix_micros(clock_.NowUnixMicros());
  return Append({std::move(body)}, nullptr);
}

absl::Status StoreImpl::Tag(const std::string& name, VersionId version) {
  return TagAs(ActorProto(), name, version);
}

absl::Status StoreImpl::TagAs(const v1::Actor& actor, const std::string& name, VersionId version) {
  RETURN_IF_ERROR(CheckWritable());
  RETURN_IF_ERROR(CheckTagName(name));
  RETURN_IF_ERROR(this->version(version).status());
  const std::lock_guard<std::mutex> write_lock(write_mutex_);
  v1::RecordBody body;
  body.mutable_tag()->set_name(name);
  body.mutable_tag()->set_version(version.value());
  *body.mutable_tag()->mutable_actor() = actor;
  body.mutable_tag()->set_created_unix_micros(clock_.NowUnixMicros());
  return Append({std::move(body)}, nullptr);
}

}  // namespace wstore
