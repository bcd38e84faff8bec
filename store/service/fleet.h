// The core of the service: a store, the coordinator of its fleet, and what carries out its
// decisions. Knows nothing of the network.
//
// One thread (the strand) owns the coordinator's state and feeds it events; a second does the
// journal's writes, in order; a third what takes long (joining content, composing differences,
// comparing sums). So reports are answered within moments whatever the disk does.
//
// Threads: any. No call blocks; answers come by callback, once each, from the strand or from the
// calling thread, and must not block either. Bounded: at most Options::max_waiting requests and
// reports wait; past it they are refused as UNAVAILABLE, and reports are dropped.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "store/live.h"
#include "store/protocol/coordinator.h"
#include "store/service/differences.h"
#include "store/service/fleet_types.h"
#include "store/service/serial_executor.h"
#include "store/service/transfer_book.h"
#include "store/service/vote_book.h"

namespace wstore::service {

class Fleet {
 public:
  struct Options {
    protocol::CoordinatorConfig coordinator;
    size_t max_waiting = 65'536;
    std::string actor;  // of the server itself
    // One line each, without a newline. From any thread; empty: nowhere.
    std::function<void(const std::string&)> log;
    // Told of every transaction that ends: "publish", "rollback", "rollout", "promote" or "revert";
    // "committed", "aborted" or "refused"; and how long it took. From any thread; empty: nobody.
    std::function<void(std::string_view why, std::string_view outcome, int64_t micros)> ended;
    // "reserving", "completing", "applying", "recording", "recorded", "answering", and "syncing" of
    // one that is answered before that: before each is done, of every transaction. For tests of
    // faults: it may stop the process, or never return.
    std::function<void(std::string_view)> on_step;
    Clock* clock = nullptr;  // null: the system's
  };

  // `live` must outlive it.
  Fleet(LiveStore& live, const Options& options);
  // Stops without grace.
  ~Fleet();

  // Begins: syncs an epoch, then answers ranks and callers.
  absl::Status Start();
  // Refuses what is new, aborts a publish that is not being decided, waits for one that is, at most
  // until `grace_micros` have passed, and ends all threads. What is still open then is answered as
  // UNKNOWN, and settled by the next start. A write that has begun is always waited for.
  void Stop(int64_t grace_micros);

  // Publishing. kBegun or kRepeated, or an error; then content goes to LiveStore::FindContent.
  void Begin(BeginPublish request, AnswerFn done);
  // The contributor has put and finished its content (StagedContent::Finish), or has declared it
  // (Declare). Where the declaration is enough the decision does not wait for the chunks; for them
  // this is called again.
  void ContentStaged(TransactionNumber transaction, uint32_t contributor);
  void Abort(const std::string& id, const std::string& reason, StatusFn done);
  // Waits while it is open.
  void Await(const std::string& id, AnswerFn done);
  // Likewise, by number, for who has just finished its content.
  void AwaitTransaction(TransactionNumber transaction, AnswerFn done);

  void Rollback(BeginRollback request, AnswerFn done);
  // Tries a candidate out, makes it head, or ends the trial.
  void Move(MoveCandidate request, AnswerFn done);
  void SetHold(bool hold, const std::string& reason, const Caller& caller, StatusFn done);
  void Evict(const std::string& instance, StatusFn done);
  // After a write past the fleet that did not end well: reopens the journal, if that must be.
  void CheckJournal();

  // Ranks, each process for itself. The sink is kept until it is detached, or superseded by another
  // connection of the same process.
  void Attach(RankRegistration registration, std::shared_ptr<RankSink> sink);
  void Detach(const RankProcess& process, const RankSink* sink);
  void Report(protocol::Report report, const ReceivedBytes& received, const RankSink* sink);
  void Vote(const RankProcess& process, TransactionNumber transaction, std::vector<CellSums> cells);
  void Audit(const RankProcess& process, uint64_t audit, const VersionName& version,
             std::vector<CellSums> cells, bool last);

  // Transfer groups: see TransferBook. A rank's words count while its sink is the attached one.
  void TransferHello(const RankProcess& process, const RankSink* sink, wstore::TransferHello hello);
  void TransferJoined(const RankProcess& process, uint64_t epoch, const absl::Status& status);
  // `refused` is called instead of anything else if another publisher leads.
  void Lead(uint32_t contributor, std::shared_ptr<RootSink> sink, const std::string& peer,
            wstore::TransferHello hello, uint64_t frame_bytes, StatusFn refused);
  void RootGone(std::shared_ptr<RootSink> sink);
  void RootNames(std::shared_ptr<RootSink> sink, uint64_t epoch, const std::string& unique_id);
  void RootJoined(std::shared_ptr<RootSink> sink, uint64_t epoch, const absl::Status& status);
  void Announce(std::shared_ptr<RootSink> sink, FrameHeader frame, StatusFn refused);

  // Has all connected ranks audit what they hold. `done` is called when all were judged, or upon
  // EndVerification with the number that is returned.
  uint64_t VerifyWorkers(std::function<void(std::vector<WorkerAudit>)> done);
  void EndVerification(uint64_t number);

  // Looking.
  HeadState head() const;
  void ListWorkers(std::function<void(std::vector<WorkerRow>)> done);
  void ListTransactions(std::function<void(std::vector<TransactionRow>)> done);
  // `changed` is called from the strand with every new state, until it is unwatched.
  uint64_t Watch(std::function<void(const HeadState&)> changed);
  void Unwatch(uint64_t watch);
  // The digest and sums of the way between two versions; keeps the latest. Blocks.
  absl::StatusOr<std::shared_ptr<const DifferenceInfo>> Describe(VersionId from, VersionId to);
  // What a publish that is open declares, once all of its content has come.
  //   kNotFound: not open; kUnavailable: not complete yet
  absl::StatusOr<LiveContent> OpenContent(TransactionNumber transaction) const;

 private:
  // A request that waits for its answer.
  struct Waiter {
    AnswerFn done;
    std::string why;  // of an attempt that is recorded if it is refused; empty: none
    std::string id;
    std::optional<VersionId> to;
    Caller caller;
    int64_t begun_at = 0;
  };
  // What the coordinator need not know of a transaction.
  struct Details {
    BeginPublish publish;
    std::string why;  // "publish", "rollback" or "promote"
    std::string message;
    Caller caller;
    int64_t begun_at = 0;
    bool unchanged = false;  // nothing differs
  };
  // A publish that is decided before its content has come.
  struct Late {
    TransactionNumber transaction;
    std::string id;
    bool is_here = false;  // all that was declared
    bool is_completing = false;
    std::optional<LiveRecord> record;  // decided: to be written as soon as the content is there
    std::string why;
    uint64_t seen_bytes = 0;              // of the content, when the deadline was set
    int64_t deadline = protocol::kNever;  // for more of it; set with `record`
  };
  struct Verification {
    std::map<RankProcess, WorkerAudit> rows;
    size_t missing = 0;
    std::function<void(std::vector<WorkerAudit>)> done;
  };
  struct RankConnection {
    std::shared_ptr<RankSink> sink;
    std::string peer;
    ReceivedBytes received;
  };

  int64_t now() const { return clock_.NowMonotonicMicros(); }
  void Log(const std::string& line) const;
  void AtStep(std::string_view step) const;
  void Ended(std::string_view why, std::string_view outcome, int64_t micros) const;

  // fleet.cc: the strand, and effects. All that follow run on the strand, unless they say else.
  void Feed(const protocol::CoordinatorEvent& event);
  void Carry(const protocol::SendOrder& effect);
  void Carry(const protocol::SyncEpoch& effect);
  void Carry(const protocol::ReserveNumbers& effect);
  void Carry(const protocol::CompleteContent& effect);
  void Carry(const protocol::Judge& effect);
  void Carry(const protocol::WriteRecord& effect);
  void Carry(const protocol::ReopenJournal& effect);
  void Carry(const protocol::DiscardContent& effect);
  void Carry(const protocol::Answer& effect);
  void Carry(const protocol::Alarm& effect);
  void Carry(const protocol::CoordinatorLog& effect);
  void AnswerAll(const absl::Status& status);
  void PublishState();
  // `lost` is called instead if the journal is reopened or closed before.
  void PostJournal(std::function<void()> task, std::function<void()> lost = {});
  void RecordAttempt(LiveAttempt attempt);
  // In the journal's thread.
  void ReopenUntilItWorks();
  void CommitRecord(const LiveRecord& record, const std::string& why);
  // fleet_late.cc
  bool MayDecideEarly(TransactionNumber transaction) const;
  void ContentCame(TransactionNumber transaction, uint32_t contributor);
  void CompleteLate();
  void LateCompleted(TransactionNumber transaction, const absl::Status& status);
  void DecidedEarly(LiveRecord record, const std::string& why);
  void LoseLate(const absl::Status& status);
  int64_t LatePatience() const;
  void HurryLate();
  void Tick();
  bool JournalFailed() const;  // in any

  // fleet_calls.cc
  bool Enter(const AnswerFn& done, std::function<void()> task);
  bool EnterPlain(const StatusFn& done, std::function<void()> task);
  void Refuse(const Waiter& waiter, const absl::Status& status);
  void AwaitNow(const std::string& id, const AnswerFn& done);
  bool CanLook() const;
  bool IsOpen(const std::string& id) const;
  void BeginNow(const BeginPublish& request, const AnswerFn& done);
  void RollbackNow(const BeginRollback& request, const AnswerFn& done);
  void MoveNow(const MoveCandidate& request, const AnswerFn& done);
  absl::Status CheckMove(const MoveCandidate& request, VersionId to) const;
  bool AnsweredFromStore(const protocol::StartTransaction& start, const Waiter& waiter);
  void StartNow(protocol::StartTransaction start, Waiter waiter, Details details);

  // fleet_ranks.cc
  bool JudgeAudits(const std::string& instance);
  void SendVerdict(const RankProcess& process, const AuditVerdict& verdict,
                   const VersionName& version);
  void EndVerifications();

  LiveStore& live_;
  const Options options_;
  Clock& clock_;
  Differences differences_;
  std::atomic<bool> stopping_ = false;
  std::atomic<uint64_t> next_verification_{1};

  // The strand's.
  protocol::CoordinatorState state_;
  uint64_t generation_ = 0;  // of the opened journal
  std::map<uint64_t, Waiter> waiters_;
  uint64_t next_waiter_ = 1;
  std::map<std::string, Details> details_;        // by id, of what is open or waits
  std::map<TransactionNumber, std::string> ids_;  // of the latest publishes
  std::optional<Late> late_;
  std::map<RankProcess, RankConnection> ranks_;
  VoteBook votes_;
  TransferBook transfers_;
  std::map<uint64_t, Verification> verifications_;

  Judge judge_;                      // the content thread's
  uint64_t journal_generation_ = 0;  // the journal thread's

  mutable std::mutex mutex_;  // guards what follows
  HeadState head_;
  std::map<uint64_t, std::function<void(const HeadState&)>> watchers_;
  uint64_t next_watch_ = 1;
  std::optional<std::pair<TransactionNumber, LiveContent>> content_;  // of the open publish

  // Last: their threads use the others.
  SerialExecutor journal_;
  SerialExecutor work_;
  SerialExecutor strand_;
};

}  // namespace wstore::service
