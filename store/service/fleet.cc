// The strand, and what carries out the coordinator's decisions.
#include "store/service/fleet.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "store/service/live_events.h"

namespace wstore::service {
namespace {

using protocol::AnswerKind;
using protocol::RecordOutcome;
using protocol::TransactionKind;

constexpr size_t kKeptDifferences = 16;
constexpr size_t kMaxJournalTasks = 4096;
constexpr size_t kMaxIds = 4096;
constexpr auto kReopenPause = std::chrono::seconds(1);
constexpr auto kStopPoll = std::chrono::milliseconds(5);

}  // namespace

Fleet::Fleet(LiveStore& live, const Options& options)
    : live_(live),
      options_(options),
      clock_(options.clock != nullptr ? *options.clock : SystemClock()),
      differences_(live, kKeptDifferences),
      state_(protocol::NewCoordinator(options.coordinator)),
      transfers_({.log = options.log}),
      judge_(live.manifest()),
      journal_(clock_, kMaxJournalTasks),
      work_(clock_, options.max_waiting),
      strand_(clock_, options.max_waiting) {}

Fleet::~Fleet() { Stop(0); }

void Fleet::Log(const std::string& line) const {
  if (options_.log) options_.log(line);
}

void Fleet::AtStep(std::string_view step) const {
  if (options_.on_step) options_.on_step(step);
}

void Fleet::Ended(std::string_view why, std::string_view outcome, int64_t micros) const {
  if (options_.ended) options_.ended(why, outcome, micros);
}

absl::Status Fleet::Start() {
  ASSIGN_OR_RETURN(const LiveView view, live_.View());
  strand_.Post([this, view] { Feed(protocol::Started{ToJournalView(view)}); });
  return absl::OkStatus();
}

void Fleet::Stop(int64_t grace_micros) {
  if (stopping_.exchange(true)) return;
  const int64_t deadline = now() + grace_micros;
  strand_.Post([this] {
    if (!state_.active || state_.active->phase >= protocol::TransactionPhase::kApplying) return;
    Feed(protocol::AbortTransaction{0, state_.active->request.id, "the server is stopping"});
  });
  for (bool open = grace_micros > 0; open && now() < deadline;) {
    std::atomic<bool> answered = false;
    strand_.Post([&] {
      open = state_.active.has_value() || !state_.durable;
      answered = true;
    });
    while (!answered) std::this_thread::sleep_for(kStopPoll);
    if (open) std::this_thread::sleep_for(kStopPoll);
  }
  // A write that has begun ends first; its outcome is still handed to the strand.
  journal_.Stop();
  strand_.Post([this] {
    if (state_.active) live_.DiscardContent(state_.active->number);
    AnswerAll(absl::UnknownError("the server stopped before the outcome was known; ask by id"));
    for (auto& [number, verification] : verifications_) verification.missing = 0;
    EndVerifications();
  });
  work_.Stop();
  strand_.Stop();
}

// Hands an event to the coordinator and carries out what it says.
void Fleet::Feed(const protocol::CoordinatorEvent& event) {
  const protocol::CoordinatorEffects effects = protocol::Step(state_, now(), event);
  for (const protocol::CoordinatorEffect& effect : effects.list) {
    std::visit([this](const auto& one) { Carry(one); }, effect);
  }
  const int64_t late_at = late_ ? late_->deadline : protocol::kNever;
  strand_.WakeAt(std::min({effects.wake_at, transfers_.Tick(now()), late_at}), [this] { Tick(); });
  std::erase_if(details_, [this](const auto& entry) {
    const bool open = state_.active && state_.active->request.id == entry.first;
    return !open && !(state_.pending_rollback && state_.pending_rollback->id == entry.first);
  });
  PublishState();
}

void Fleet::PublishState() {
  HeadState state;
  state.phase = state_.phase;
  state.epoch = state_.epoch.value();
  state.hold = state_.hold;
  state.durable = state_.durable;
  state.instances = state_.instances.size();
  if (!state_.moves.empty()) {
    state.head = state_.head().head;
    const size_t moves = state_.moves.size();
    state.durable_version =
        state_.durable || moves < 2 ? state.head.version : state_.moves[moves - 2].head.version;
  }
  std::vector<std::function<void(const HeadState&)>> watchers;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (state == head_) return;
    head_ = state;
    for (const auto& [number, watcher] : watchers_) watchers.push_back(watcher);
  }
  for (const auto& watcher : watchers) watcher(state);
}

void Fleet::PostJournal(std::function<void()> task, std::function<void()> lost) {
  // What was asked for before a reopening has no meaning after it.
  const bool taken = journal_.Post([this, generation = generation_, task = std::move(task), lost] {
    if (generation == journal_generation_) {
      task();
    } else if (lost) {
      lost();
    }
  });
  if (!taken && lost) lost();
}

void Fleet::Carry(const protocol::SendOrder& effect) {
  const protocol::Order& order = effect.order;
  const auto found = ranks_.find({order.rank, order.incarnation});
  if (found == ranks_.end()) return;
  if (order.kind == protocol::OrderKind::kApply) AtStep("applying");
  RankOrder out;
  out.order = order;
  const bool active = state_.active && state_.active->number == order.plan.transaction;
  if (active && !order.plan.decided) {
    const TransactionKind kind = state_.active->request.kind;
    out.open_publish = MakesVersion(kind);
    out.contributors = out.open_publish ? state_.active->request.contributors : 1;
    out.why = kind == TransactionKind::kRollback ? "rollback" : "publish";
    const auto details = details_.find(state_.active->request.id);
    out.carried = details != details_.end() && details->second.publish.carried;
  } else {
    out.why = "catch-up";
  }
  found->second.sink->Send(out);
}

void Fleet::Carry(const protocol::SyncEpoch& effect) {
  PostJournal([this, epoch = effect.epoch] {
    const absl::Status status = live_.SyncEpoch(epoch.value(), {options_.actor, ""});
    if (status.ok()) {
      strand_.Post([this, epoch] {
        transfers_.SetEpoch(epoch.value());
        Feed(protocol::EpochSynced{});
      });
      return;
    }
    Log(absl::StrCat("level=error event=epoch error=\"", status.ToString(), "\""));
    ReopenUntilItWorks();
  });
}

void Fleet::Carry(const protocol::ReserveNumbers& effect) {
  WSTORE_CHECK(state_.active.has_value());
  AtStep("reserving");
  const protocol::ActiveTransaction& active = *state_.active;
  std::optional<LivePublish> publish;
  if (MakesVersion(active.request.kind)) {
    const BeginPublish& begin = details_.at(active.request.id).publish;
    publish = LivePublish{active.from.version, begin.expected.message, begin.expected.meta,
                          active.request.contributors, begin.check_sums};
  }
  const LiveNumbers numbers = {effect.numbers.transaction, effect.numbers.version,
                               effect.numbers.move};
  PostJournal([this, numbers, publish, id = active.request.id, number = active.number] {
    absl::Status status = live_.ReserveNumbers(numbers);
    if (status.ok() && publish) status = live_.BeginContent(number, *publish);
    if (status.ok()) {
      strand_.Post([this, number] {
        Feed(protocol::NumbersReserved{number});
        // It may have been aborted before there was any content.
        if (!state_.active || state_.active->number != number) live_.DiscardContent(number);
      });
      return;
    }
    strand_.Post([this, id, status] {
      Feed(protocol::AbortTransaction{
          0, id, absl::StrCat("no numbers could be reserved: ", status.message())});
    });
    if (JournalFailed()) ReopenUntilItWorks();
  });
}

void Fleet::Carry(const protocol::CompleteContent& effect) {
  AtStep("completing");
  const protocol::ActiveTransaction& active = *state_.active;
  const TransactionNumber number = effect.transaction;
  if (MakesVersion(active.request.kind)) {
    late_.reset();
    const auto coming = live_.FindContent(number);
    if (coming.ok() && MayDecideEarly(number) && !(*coming)->is_whole(0)) {
      late_.emplace();
      late_->transaction = number;
      late_->id = active.request.id;
    }
    work_.Post([this, number, id = active.request.id, parent = active.from.version,
                is_late = late_.has_value()] {
      absl::StatusOr<LiveContent> content =
          is_late ? live_.ForetellContent(number) : live_.CompleteContent(number);
      const bool unchanged = content.ok() && content->elements == 0;
      absl::Status status = content.status();
      if (unchanged) {
        status = absl::AbortedError(absl::StrCat("nothing differs from ", wstore::ToString(parent),
                                                 ": no version was made"));
      }
      const Digest chain_digest = content.ok() ? content->chain_digest : Digest();
      if (status.ok()) {
        const std::lock_guard<std::mutex> lock(mutex_);
        content_.emplace(number, *std::move(content));
      }
      if (const auto staged = live_.FindContent(number); staged.ok()) (*staged)->Announce();
      strand_.Post([this, number, id, unchanged, status, chain_digest] {
        const auto details = details_.find(id);
        if (details != details_.end()) details->second.unchanged = unchanged;
        Feed(protocol::ContentComplete{number, status, chain_digest});
      });
    });
    return;
  }
  const VersionId from = active.from.version;
  const VersionId to = active.move.trial ? active.move.trial->version : active.to.version;
  const bool needed = !state_.instances.empty();
  work_.Post([this, number, from, to, needed] {
    absl::Status status = differences_.Get(from, to).status();
    // A damaged base must not stop an operator where no rank has to follow.
    if (!needed) status = absl::OkStatus();
    strand_.Post([this, number, status] {
      Feed(protocol::ContentComplete{number, status, Digest()});
    });
  });
}

void Fleet::Carry(const protocol::WriteRecord& effect) {
  LiveRecord record;
  const auto details = details_.find(effect.id);
  WSTORE_CHECK(details != details_.end());
  record.kind = ToLive(effect.kind);
  record.id = effect.id;
  record.transaction = effect.move.transaction;
  record.from = effect.parent.version;
  record.to = {effect.move.head.version, effect.move.head.chain_digest};
  record.move = effect.move.head.move;
  record.for_all = effect.move.policy == protocol::Policy::kAll;
  record.hold = effect.hold;
  record.installed = effect.installed;
  record.sync = effect.durability == protocol::Durability::kSync;
  if (effect.move.trial) {
    record.trial = LiveTrial{{effect.move.trial->version, effect.move.trial->chain_digest},
                             effect.move.trial->instances};
  }
  record.message = details->second.message;
  record.caller = details->second.caller;
  record.duration_micros = now() - details->second.begun_at;
  if (late_ && late_->transaction == record.transaction) {
    return DecidedEarly(std::move(record), details->second.why);
  }
  PostJournal([this, record, why = details->second.why] { CommitRecord(record, why); });
}

// In the journal's thread.
void Fleet::CommitRecord(const LiveRecord& record, const std::string& why) {
  const auto report = [this, number = record.transaction](RecordOutcome outcome,
                                                          const absl::Status& status) {
    strand_.Post([this, number, outcome, status] {
      Feed(protocol::RecordWritten{number, outcome, status});
    });
  };
  AtStep("recording");
  absl::Status status = live_.Write(record);
  if (status.ok()) AtStep("recorded");
  if (status.ok()) Ended(why, "committed", record.duration_micros);
  if (status.ok() && !record.sync) {
    report(RecordOutcome::kAppended, status);
    AtStep("syncing");
    status = live_.Sync();
    // Without knowing, it is as unknown as any write that failed.
    return report(status.ok() ? RecordOutcome::kDurable : RecordOutcome::kUnknown, status);
  }
  if (status.ok()) return report(RecordOutcome::kDurable, status);
  if (absl::IsUnknown(status)) return report(RecordOutcome::kUnknown, status);
  report(RecordOutcome::kNothing, status);
  if (JournalFailed()) ReopenUntilItWorks();
}

void Fleet::Carry(const protocol::ReopenJournal&) {
  late_.reset();
  PostJournal([this] { ReopenUntilItWorks(); });
}

bool Fleet::JournalFailed() const {
  const std::shared_ptr<Store> store = live_.store();
  return store == nullptr || store->status().state == "read-only";
}

// In the journal's thread.
void Fleet::ReopenUntilItWorks() {
  ++journal_generation_;
  for (;;) {
    absl::Status status = live_.Reopen();
    absl::StatusOr<LiveView> view = status.ok() ? live_.View() : absl::StatusOr<LiveView>(status);
    if (view.ok()) {
      Log("level=info event=reopened");
      strand_.Post([this, view = *std::move(view), generation = journal_generation_] {
        generation_ = generation;
        late_.reset();
        Feed(protocol::Started{ToJournalView(view)});
        AnswerAll(absl::UnknownError("the journal was reopened meanwhile; ask by id"));
      });
      return;
    }
    Log(absl::StrCat("level=error event=reopen error=\"", view.status().ToString(), "\""));
    if (stopping_) return;
    std::this_thread::sleep_for(kReopenPause);
  }
}

void Fleet::Carry(const protocol::DiscardContent& effect) {
  if (late_ && late_->transaction == effect.transaction) late_.reset();
  live_.DiscardContent(effect.transaction);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (content_ && content_->first == effect.transaction) content_.reset();
  }
  if (state_.aborted.empty()) return;
  const auto& [id, reason] = state_.aborted.back();
  const auto details = details_.find(id);
  if (details == details_.end() || details->second.unchanged) return;
  LiveAttempt attempt;
  attempt.why = details->second.why;
  attempt.refused = false;
  attempt.transaction = effect.transaction;
  attempt.id = id;
  attempt.reason = reason;
  attempt.caller = details->second.caller;
  attempt.duration_micros = now() - details->second.begun_at;
  Ended(attempt.why, "aborted", attempt.duration_micros);
  RecordAttempt(std::move(attempt));
}

void Fleet::RecordAttempt(LiveAttempt attempt) {
  PostJournal([this, attempt = std::move(attempt)] {
    const absl::Status status = live_.RecordAttempt(attempt);
    if (status.ok()) return;
    Log(absl::StrCat("level=error event=attempt id=\"", attempt.id, "\" not_recorded=\"",
                     status.ToString(), "\""));
    if (absl::IsUnknown(status) || JournalFailed()) ReopenUntilItWorks();
  });
}

void Fleet::Carry(const protocol::Answer& effect) {
  const auto found = waiters_.find(effect.waiter);
  if (found == waiters_.end()) return;  // nobody waits: it was the server's own
  const Waiter waiter = std::move(found->second);
  waiters_.erase(found);
  if (effect.kind != AnswerKind::kBegun) AtStep("answering");
  FleetAnswer answer;
  answer.kind = effect.kind;
  answer.status = effect.status;
  answer.transaction = effect.transaction;
  answer.to = effect.to;
  answer.duration_micros = now() - waiter.begun_at;
  if (effect.kind == AnswerKind::kBegun) {
    answer.parent = state_.active->from;
    ids_.emplace(effect.transaction, state_.active->request.id);
    if (ids_.size() > kMaxIds) ids_.erase(ids_.begin());
  }
  if (effect.kind == AnswerKind::kRefused && !waiter.why.empty()) {
    return Refuse(waiter, effect.status);
  }
  const auto details = details_.find(waiter.id);
  if (effect.kind == AnswerKind::kAborted && details != details_.end() &&
      details->second.unchanged) {
    answer.kind = AnswerKind::kUnchanged;
    answer.status = absl::OkStatus();
    answer.to = effect.head;
  }
  PublishState();
  answer.head = head();
  waiter.done(answer);
}

void Fleet::AnswerAll(const absl::Status& status) {
  std::map<uint64_t, Waiter> waiters;
  waiters.swap(waiters_);
  FleetAnswer answer;
  answer.kind = AnswerKind::kUnknown;
  answer.status = status;
  answer.head = head();
  for (const auto& [number, waiter] : waiters) waiter.done(answer);
}

void Fleet::Carry(const protocol::Alarm& effect) {
  Log(absl::StrCat("level=alarm text=\"", effect.text, "\""));
}

void Fleet::Carry(const protocol::CoordinatorLog& effect) {
  Log(absl::StrCat("level=info text=\"", effect.text, "\""));
}

}  // namespace wstore::service
