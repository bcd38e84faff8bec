// What the protocol decides, carried out.
#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "store/client/worker/worker_impl.h"
#include "store/client/worker/worker_messages.h"

namespace wstore {
namespace {

constexpr auto kFlush = std::chrono::milliseconds(500);
// No transaction of a store has this number.
constexpr TransactionNumber kTakeBackTransaction{UINT64_MAX};

ChangeReason ReasonOf(const v1::Order& order) {
  if (order.why() == "rollback") return ChangeReason::kRollback;
  return order.why() == "catch-up" ? ChangeReason::kCatchUp : ChangeReason::kPublish;
}

}  // namespace

// Events that follow from effects are fed after the effects of the step are carried out.
void Worker::Impl::Feed(const protocol::WorkerEvent& event) {
  events_.push_back(event);
  if (is_feeding_) return;
  is_feeding_ = true;
  while (!events_.empty()) {
    const protocol::WorkerEvent next = std::move(events_.front());
    events_.pop_front();
    const protocol::WorkerEffects effects = protocol::Step(state_, now(), next);
    wake_at_ = effects.wake_at;
    // At once: an effect may take a moment.
    const bool serves = state_.standing == protocol::Standing::kServing;
    const int64_t until = options_.serves_on_lost_lease ? protocol::kNever : state_.lease_until;
    serving_until_.store(serves ? until : 0);
    for (const protocol::WorkerEffect& effect : effects.list) {
      std::visit([this](const auto& one) { Carry(one); }, effect);
    }
  }
  is_feeding_ = false;
  // Before the engine can go on: what it then asks must be about the version that it runs.
  PublishStatus();
}

// Of what follows at once, all steps but the last are not worth a message.
void Worker::Impl::Carry(const protocol::SendReport& effect) {
  report_ = client::ToProto(effect.report);
  report_->mutable_report()->set_carried_bytes(CarriedBytes());
  report_->mutable_report()->set_served_bytes(served_bytes_.load());
}

void Worker::Impl::SendReport() {
  if (!report_) return;
  link_->Send(*std::exchange(report_, std::nullopt));
}

void Worker::Impl::Carry(const protocol::Begin& effect) {
  const protocol::Plan& plan = effect.plan;
  auto update = std::make_shared<Update>();
  UpdateHeader& header = update->header;
  header.transaction = plan.transaction;
  header.parent_move = plan.from.move;
  header.move = plan.to.move;
  header.from = {plan.from.version, plan.from.chain_digest};
  header.to = plan.to.version;
  header.base_digest = key_.base_digest();
  header.layout_generation = plan.layout_generation;
  header.contributors = static_cast<uint16_t>(std::clamp(last_order_.contributors(), 1u, 65'535u));
  header.reason = ReasonOf(last_order_);
  update->from = header.from;
  update->to = {plan.to.version, plan.to.chain_digest};
  update->open_publish = last_order_.open_publish();
  if (!update->open_publish) header.contributors = 1;
  if (update->open_publish && last_order_.carried() && intake_ != nullptr) {
    update->delivery = intake_->Expect(header.transaction, header.contributors);
  }
  update_ = update;
  stage_->Post([this, update] {
    const absl::StatusOr<StagedReport> report = Stage(*update);
    if (update->delivery != nullptr) update->delivery->Close();
    // Whatever it came to: nothing of it must be left for the next to stumble over.
    if (!report.ok()) replica_->Abort(update->header.transaction).IgnoreError();
    Post([this, update, report] { Staged(update, report); });
  });
}

void Worker::Impl::Carry(const protocol::Finish& effect) {
  if (update_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(update_->mutex);
  update_->finish = effect.plan;
  update_->changed.notify_all();
}

// Its staging ends soon.
void Worker::Impl::Cancel(Update& update) {
  update.cancellation.Cancel();
  const std::lock_guard<std::mutex> lock(update.mutex);
  update.is_dropped = true;
  update.changed.notify_all();
}

// In the stage thread.
absl::StatusOr<StagedReport> Worker::Impl::Stage(Update& update) {
  const UpdateHeader& header = update.header;
  ASSIGN_OR_RETURN(const bool begun, replica_->BeginUpdate(header));
  if (!begun) return absl::FailedPreconditionError("the transaction is committed here already");
  if (update.delivery != nullptr) {
    update.delivery->Open([this](absl::Span<const DeviceChunk> chunks) {
      return replica_->StageDeviceChunks(chunks);
    });
  }
  absl::StatusOr<UpdateSummary> summary = StageContent(update);
  RETURN_IF_ERROR(summary.status());
  {
    std::unique_lock<std::mutex> lock(update.mutex);
    update.changed.wait(lock, [&] { return update.finish || update.is_dropped; });
    if (update.is_dropped) return absl::CancelledError("dropped");
    summary->to_chain_digest = update.finish->to.chain_digest;
  }
  // Where the model is spread over ranks the server compares the sums of all.
  if (ranks_ > 1) summary->declared.reset();
  return replica_->FinishStaging(*summary);
}

absl::StatusOr<UpdateSummary> Worker::Impl::StageContent(Update& update) {
  const UpdateHeader& header = update.header;
  const client::StageTarget target{*replica_, header.transaction, Subscription(), served_bytes_,
                                   update.cancellation};
  if (update.open_publish) {
    return client::StageOpenPublish(*connection_, target, header.contributors,
                                    update.delivery.get());
  }
  // The way back may be here already. The sums of it are judged like any other's.
  const std::vector<VersionName> kept = replica_->history();
  if (std::find(kept.begin(), kept.end(), update.to) != kept.end()) {
    const absl::Status staged = replica_->StageFromHistory(header.transaction);
    if (!absl::IsNotFound(staged)) {
      RETURN_IF_ERROR(staged);
      return UpdateSummary();
    }
  }
  return client::StageDifference(*connection_, target, base_->manifest, update.from, update.to);
}

void Worker::Impl::Staged(const std::shared_ptr<Update>& update,
                          const absl::StatusOr<StagedReport>& report) {
  if (update_ != update) return;  // dropped meanwhile, and aborted by that
  const TransactionNumber transaction = update->header.transaction;
  if (!report.ok()) {
    update_.reset();
    const std::string error(report.status().message());
    Log(absl::StrCat("level=warning event=refused transaction=", transaction.value(), " error=\"",
                     error, "\""));
    Feed(protocol::StagingDone{transaction, false, {}, error});
    if (absl::IsDataLoss(report.status())) AuditSoon();
    return;
  }
  Log(absl::StrCat("level=info event=staged transaction=", transaction.value(),
                   " elements=", report->elements, " carried_bytes=", CarriedBytes(),
                   " served_bytes=", served_bytes_.load()));
  AtStep("staged");
  update->sums = report->total;
  update->has_voted = true;
  update->vote = report->cells;
  SendVote();
  Feed(protocol::StagingDone{transaction, true, report->total, ""});
  if (!options_.on_step) return;
  SendReport();
  const auto until = std::chrono::steady_clock::now() + kFlush;
  while (!link_->is_drained() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  AtStep("voted");
}

// Before any report that says that it was given.
void Worker::Impl::SendVote() {
  if (update_ == nullptr || !update_->has_voted) return;
  for (v1::FromRank& message : client::VoteMessages(update_->header.transaction, update_->vote)) {
    link_->Send(std::move(message));
  }
}

void Worker::Impl::Carry(const protocol::Drop& effect) {
  if (update_ == nullptr || update_->header.transaction != effect.transaction) return;
  const std::shared_ptr<Update> update = std::move(update_);
  update_.reset();
  Cancel(*update);
  replica_->Abort(effect.transaction).IgnoreError();
  // Perhaps because the old bits of this instance were wrong.
  if (update->has_voted && state_.position) AuditSoon(100'000);
}

// Turn sees that it is wanted.
void Worker::Impl::Carry(const protocol::Pause&) {}

// Writes once the engine stands still. `done` is the core's.
void Worker::Impl::WriteMemory(std::function<absl::Status()> write,
                               std::function<void(const absl::Status&)> done) {
  memory_job_ = [this, write = std::move(write), done = std::move(done)] {
    const absl::Status status = write();
    Post([this, status, done] {
      is_writing_ = false;
      done(status);
    });
  };
}

void Worker::Impl::Damaged(const std::string& why) {
  update_.reset();
  memory_job_ = nullptr;
  // Whoever reads of it in the log finds a rank that serves no more.
  Feed(protocol::Unproven{true, why});
  Log(absl::StrCat("level=alarm event=poisoned error=\"", why, "\""));
  if (options_.rebuilds && !is_withdrawn_) StartProof(Rebuilding());
}

void Worker::Impl::Carry(const protocol::Apply& effect) {
  const TransactionNumber transaction = effect.transaction;
  if (paused_at_ == 0) paused_at_ = now();
  WriteMemory(
      [this, transaction] {
        AtStep("applying");
        RETURN_IF_ERROR(replica_->Approve(transaction));
        const absl::Status status = replica_->Apply(transaction);
        if (status.ok()) AtStep("applied");
        return status;
      },
      [this, transaction](const absl::Status& status) {
        const std::string error(status.message());
        if (replica_->status().state == ReplicaState::kPoisoned) return Damaged(error);
        const TouchedSums sums = update_ != nullptr ? update_->sums : TouchedSums();
        if (!status.ok()) {
          Log(absl::StrCat("level=warning event=apply transaction=", transaction.value(),
                           " error=\"", error, "\""));
          replica_->Abort(transaction).IgnoreError();
          update_.reset();
        }
        Feed(protocol::ApplyDone{transaction, status.ok(), sums, error});
      });
}

void Worker::Impl::Carry(const protocol::Commit& effect) {
  AtStep("decided");
  const absl::Status status = replica_->Commit(effect.transaction);
  update_.reset();
  // It was applied: nothing but a fault of the program refuses it now.
  if (!status.ok()) Damaged(std::string(status.message()));
}

void Worker::Impl::Carry(const protocol::Undo& effect) {
  const TransactionNumber transaction = effect.transaction;
  WriteMemory([this, transaction] { return replica_->Abort(transaction); },
              [this](const absl::Status& status) {
                update_.reset();
                if (!status.ok()) return Damaged(std::string(status.message()));
                Feed(protocol::UndoDone{});
              });
}

void Worker::Impl::Carry(const protocol::TakeBack&) {
  const protocol::Position before = *state_.before;
  WriteMemory(
      [this, before] {
        is_taking_back_.store(true);
        const absl::Status status = TakeBackCommitted(before);
        is_taking_back_.store(false);
        if (!status.ok()) replica_->Poison(std::string(status.message())).IgnoreError();
        return status;
      },
      [this](const absl::Status& status) {
        if (!status.ok()) return Damaged(std::string(status.message()));
        Feed(protocol::UndoDone{});
      });
}

// In the memory thread. The way back is in the replica's history. For the replica it is an update
// like any other; then its move is set to what it was.
absl::Status Worker::Impl::TakeBackCommitted(const protocol::Position& before) {
  const ReplicaStatus held = replica_->status();
  if (!held.version) return absl::InternalError("nothing is proved that could be taken back");
  const VersionName to{before.version, before.chain_digest};
  UpdateHeader header;
  header.transaction = kTakeBackTransaction;
  header.parent_move = held.move;
  header.move = held.move.next();
  header.from = *held.version;
  header.to = to.version;
  header.base_digest = key_.base_digest();
  header.layout_generation = held.layout_generation;
  header.reason = ChangeReason::kRollback;
  UpdateSummary summary;
  summary.to_chain_digest = to.chain_digest;
  if (to != header.from) {
    RETURN_IF_ERROR(replica_->BeginUpdate(header).status());
    RETURN_IF_ERROR(replica_->StageFromHistory(header.transaction));
    RETURN_IF_ERROR(replica_->FinishStaging(summary).status());
    RETURN_IF_ERROR(replica_->Approve(header.transaction));
    RETURN_IF_ERROR(replica_->Apply(header.transaction));
    RETURN_IF_ERROR(replica_->Commit(header.transaction));
  }
  RETURN_IF_ERROR(replica_->Invalidate("a move that was not durable is taken back"));
  ASSIGN_OR_RETURN(const AuditReport proof, replica_->Audit());
  return replica_->Adopt(proof, to, before.move);
}

void Worker::Impl::Carry(const protocol::ForgetUndo&) {}

void Worker::Impl::Carry(const protocol::Ready& effect) { ready_key_ = effect.key; }
void Worker::Impl::Carry(const protocol::NotReady&) { ready_key_.reset(); }

void Worker::Impl::Carry(const protocol::Start& effect) {
  if (paused_at_ != 0) last_pause_ = now() - paused_at_;
  paused_at_ = 0;
  last_proved_ = effect.position;
  Log(absl::StrCat("level=info event=serving position=\"", protocol::ToString(effect.position),
                   "\" pause_us=", last_pause_));
}

void Worker::Impl::Carry(const protocol::Stop& effect) {
  paused_at_ = 0;
  Log(absl::StrCat("level=info event=out reason=\"", effect.reason, "\""));
}

void Worker::Impl::Carry(const protocol::WorkerLog& effect) {
  Log(absl::StrCat("level=info event=note text=\"", effect.text, "\""));
}

}  // namespace wstore
