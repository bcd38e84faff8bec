// Publishes that are decided while their content is still on its way here. Ranks have it already,
// and have proved it against what was declared; the fleet serves it as "not durable" until the
// record is in the journal. If the content never comes, or is not what was declared, the version is
// lost as if the power had failed: the journal is reopened without it, and the ranks take it back.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "store/service/fleet.h"

namespace wstore::service {
namespace {

// Without another chunk. Until then nothing else can be published, and a rollback waits.
constexpr int64_t kPatienceMicros = 10'000'000;
constexpr int64_t kPatienceForRollbackMicros = 2'000'000;

}  // namespace

bool Fleet::MayDecideEarly(TransactionNumber transaction) const {
  if (!state_.active || state_.active->number != transaction) return false;
  const protocol::StartTransaction& request = state_.active->request;
  const auto details = details_.find(request.id);
  if (request.kind != protocol::TransactionKind::kPublish || request.contributors != 1 ||
      request.durability != protocol::Durability::kAsync || details == details_.end() ||
      details->second.publish.check_sums) {
    return false;
  }
  const auto content = live_.FindContent(transaction);
  if (!content.ok()) return false;
  const std::shared_ptr<const ContributorSummary> summary = (*content)->summary(0);
  return summary && summary->IsForetelling();
}

// It has finished or declared, or the last of what it declared has come. What was declared early is
// looked at after the decision, which it would only keep from the processors.
void Fleet::ContentCame(TransactionNumber transaction, uint32_t contributor) {
  const auto content = live_.FindContent(transaction);
  if (!content.ok()) return;
  const bool is_whole = (*content)->is_whole(contributor);
  if (late_ && late_->transaction == transaction) {
    late_->is_here = late_->is_here || is_whole;
    return CompleteLate();
  }
  if (is_whole || MayDecideEarly(transaction)) {
    Feed(protocol::ContentStaged{transaction, contributor});
  }
}

void Fleet::CompleteLate() {
  if (!late_->is_here || !late_->record || std::exchange(late_->is_completing, true)) return;
  late_->deadline = protocol::kNever;
  PostJournal([this, number = late_->transaction] {
    const absl::Status status = live_.CompleteContent(number).status();
    strand_.Post([this, number, status] { LateCompleted(number, status); });
  });
}

void Fleet::LateCompleted(TransactionNumber transaction, const absl::Status& status) {
  if (!late_ || late_->transaction != transaction) return;
  if (!status.ok()) return LoseLate(status);
  const Late late = *std::exchange(late_, std::nullopt);
  LiveRecord record = *late.record;
  record.sync = true;
  PostJournal([this, record, why = late.why] { CommitRecord(record, why); });
}

// The fleet goes on with it at once.
void Fleet::DecidedEarly(LiveRecord record, const std::string& why) {
  const TransactionNumber number = record.transaction;
  late_->record = std::move(record);
  late_->why = why;
  late_->deadline = now() + LatePatience();
  strand_.Post([this, number] {
    Feed(protocol::RecordWritten{number, protocol::RecordOutcome::kAppended, absl::OkStatus()});
    if (late_ && late_->transaction == number) CompleteLate();
  });
}

void Fleet::LoseLate(const absl::Status& status) {
  const Late late = *std::exchange(late_, std::nullopt);
  Log(absl::StrCat("level=alarm event=lost transaction=", late.transaction.value(), " id=\"",
                   late.id, "\" version=", ToString(late.record->to.version), " error=\"",
                   status.message(), "\" text=\"served, and never durable; ranks take it back\""));
  Ended(late.why, "aborted", late.record->duration_micros);
  Feed(protocol::RecordWritten{late.transaction, protocol::RecordOutcome::kUnknown, status});
}

int64_t Fleet::LatePatience() const {
  return std::min(options_.coordinator.timing.stage_deadline,
                  state_.pending_rollback ? kPatienceForRollbackMicros : kPatienceMicros);
}

// A rollback is about to wait for it.
void Fleet::HurryLate() {
  if (!late_ || late_->deadline == protocol::kNever) return;
  late_->deadline = std::min(late_->deadline, now() + kPatienceForRollbackMicros);
}

void Fleet::Tick() {
  if (late_ && now() >= late_->deadline) {
    const auto content = live_.FindContent(late_->transaction);
    const uint64_t bytes = content.ok() ? (*content)->size_bytes() : 0;
    if (bytes > std::exchange(late_->seen_bytes, bytes)) {
      late_->deadline = now() + LatePatience();
    } else {
      LoseLate(absl::DeadlineExceededError(
          absl::StrCat("nothing more of its content has come for ", LatePatience() / 1000, " ms")));
    }
  }
  Feed(protocol::CoordinatorTick{});
}

}  // namespace wstore::service
