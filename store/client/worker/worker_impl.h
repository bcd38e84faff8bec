// The worker, inside. See wstore/worker.h for what it promises.
//
// The core thread owns the protocol's state: it feeds it events and carries out its effects. What
// takes long runs beside it: fetching and checking content in the stage thread, writing and
// auditing a stopped engine's memory in the memory thread; both post their results to the core.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/job_thread.h"
#include "store/client/connection.h"
#include "store/client/worker/board_record.h"
#include "store/client/worker/content_stream.h"
#include "store/client/worker/frame_intake.h"
#include "store/client/worker/rank_link.h"
#include "store/client/worker/safe_point_gate.h"
#include "store/protocol/worker.h"
#include "wstore/worker.h"

namespace wstore {

class Worker::Impl {
 public:
  Impl(std::shared_ptr<const WorkerBase> base, WorkerOptions options,
       std::shared_ptr<client::Connection> connection);
  ~Impl();

  // Blocks until the layouts of all ranks are known, and begins.
  absl::Status Start(std::shared_ptr<const Layout> layout, absl::Span<const LocalBuffer> buffers,
                     Deadline deadline);

  SafePoint AtSafePoint(Deadline deadline);
  bool MayServe() const;
  WorkerStatus status() const;
  absl::Status AwaitServing(Deadline deadline) const;
  absl::Status Invalidate(const std::string& reason);
  void Prove();
  absl::Status Suspend();
  absl::Status Resume(absl::Span<const LocalBuffer> buffers);
  absl::Status Relayout(std::shared_ptr<const Layout> layout, absl::Span<const LocalBuffer> buffers,
                        Deadline deadline);
  void Leave(Deadline deadline);

 private:
  // An update from the order to prepare it to its decision.
  struct Update {
    UpdateHeader header;
    VersionName from;
    VersionName to;  // digest: once it is known
    bool open_publish = false;
    std::shared_ptr<client::Delivery> delivery;  // null: all comes from the server
    client::Cancellation cancellation;
    std::mutex mutex;  // guards what follows
    std::condition_variable changed;
    std::optional<protocol::Plan> finish;
    bool is_dropped = false;
    // The core's.
    TouchedSums sums;
    bool has_voted = false;
    std::vector<CellSums> vote;
  };
  // How an unproven memory is to be proved.
  enum class Source { kAudit, kBase, kServer };
  struct Claim {
    protocol::Position position;
    AuditReport report;
  };
  struct Proof {
    Source source = Source::kAudit;
    uint64_t audit = 0;  // the name of it
    client::Cancellation cancellation;
    std::optional<Claim> claim;  // once memory was summed
    protocol::Micros summed_at = 0;
    protocol::Micros send_at = 0;
    protocol::Micros begin_at = 0;
    bool is_running = false;
  };

  // worker_core.cc: the loop.
  protocol::Micros now() const;
  void Run();
  void Tick();
  protocol::Micros NextWake();
  bool Post(std::function<void()> task, bool may_drop = false);
  void Wake();
  void Turn();
  bool WantsStop() const;
  std::vector<std::optional<client::BoardRecord>> LookAtMates();
  void ShowRecord();
  bool AllMatesReady(const std::vector<std::optional<client::BoardRecord>>& mates) const;
  void WatchMates(const std::vector<std::optional<client::BoardRecord>>& mates);
  void PublishStatus();
  void Log(const std::string& line) const;
  void AtStep(std::string_view step) const;

  // worker_core.cc: the link.
  void KeepLink();
  void Connect();
  v1::FromRank Registration() const;
  void Received(const v1::ToRank& message);

  // worker_effects.cc: the protocol.
  void Feed(const protocol::WorkerEvent& event);
  void SendReport();
  void SendVote();
  void Carry(const protocol::SendReport& effect);
  void Carry(const protocol::Begin& effect);
  void Carry(const protocol::Finish& effect);
  void Carry(const protocol::Drop& effect);
  void Carry(const protocol::Pause& effect);
  void Carry(const protocol::Apply& effect);
  void Carry(const protocol::Commit& effect);
  void Carry(const protocol::Undo& effect);
  void Carry(const protocol::TakeBack& effect);
  void Carry(const protocol::ForgetUndo& effect);
  void Carry(const protocol::Ready& effect);
  void Carry(const protocol::NotReady& effect);
  void Carry(const protocol::Start& effect);
  void Carry(const protocol::Stop& effect);
  void Carry(const protocol::WorkerLog& effect);
  absl::StatusOr<StagedReport> Stage(Update& update);
  absl::StatusOr<UpdateSummary> StageContent(Update& update);
  TensorSet Subscription() const;
  uint64_t CarriedBytes() const { return intake_ != nullptr ? intake_->received_bytes() : 0; }
  void Cancel(Update& update);
  void Staged(const std::shared_ptr<Update>& update, const absl::StatusOr<StagedReport>& report);
  void WriteMemory(std::function<absl::Status()> write,
                   std::function<void(const absl::Status&)> done);
  absl::Status TakeBackCommitted(const protocol::Position& before);
  void Damaged(const std::string& why);

  // worker_proof.cc: what the memory holds.
  void StartProof(Source source, protocol::Micros after = 0);
  void EndProof();
  void DriveProof();
  void RunProof(const std::shared_ptr<Proof>& proof);
  absl::StatusOr<Claim> MakeClaim(Proof& proof, const std::optional<protocol::Position>& last);
  absl::StatusOr<protocol::Position> BasePosition(client::Cancellation& cancellation) const;
  absl::StatusOr<protocol::Position> HeadPosition(client::Cancellation& cancellation) const;
  void Judged(const v1::Verdict& verdict);
  void JudgedClaim(const absl::Status& verdict);
  void AuditBeside();
  void AuditSoon(protocol::Micros after = 0);
  Source Rebuilding() const { return options_.base != nullptr ? Source::kBase : Source::kServer; }

  // worker.cc
  absl::StatusOr<ReplicaPlacement> ExchangeLayouts(std::shared_ptr<const Layout> layout,
                                                   Deadline deadline);
  absl::Status Withdraw(const std::string& reason);
  template <typename Result>
  Result Ask(std::function<Result()> question);

  const std::shared_ptr<const WorkerBase> base_;
  const FingerprintKey key_;
  const WorkerOptions options_;
  const std::shared_ptr<client::Connection> connection_;
  const protocol::RankId id_;
  const uint32_t ranks_;
  protocol::Incarnation incarnation_;
  std::unique_ptr<Replica> replica_;
  client::SafePointGate gate_;
  std::atomic<int64_t> serving_until_{0};
  std::atomic<uint64_t> changes_{0};
  std::atomic<uint64_t> served_bytes_{0};
  std::atomic<bool> is_taking_back_{false};

  // The core's.
  protocol::WorkerState state_;
  protocol::Micros wake_at_ = 0;
  std::deque<protocol::WorkerEvent> events_;
  bool is_feeding_ = false;
  std::optional<v1::FromRank> report_;  // is sent at the end of the turn; the latest alone
  v1::Order last_order_;
  std::shared_ptr<Update> update_;
  std::function<void()> memory_job_;  // waits for the engine to stand
  bool is_writing_ = false;
  std::optional<protocol::ReadyKey> ready_key_;
  std::shared_ptr<Proof> proof_;
  bool is_withdrawn_ = false;
  bool is_leaving_ = false;
  std::optional<protocol::Position> last_proved_;
  uint64_t next_audit_ = 1;
  struct SideAudit {
    uint64_t audit = 0;
    VersionName version;
  };
  std::optional<SideAudit> side_audit_;
  bool is_auditing_ = false;
  protocol::Micros audit_at_ = protocol::kNever;
  protocol::Micros reconnect_at_ = 0;
  protocol::Micros reconnect_pause_ = 0;
  protocol::Micros heard_at_ = 0;
  protocol::Micros paused_at_ = 0;
  protocol::Micros last_pause_ = 0;
  protocol::Micros wanted_at_ = 0;
  bool is_polled_ = false;
  std::string link_error_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wakened_;
  std::deque<std::function<void()>> tasks_;
  bool is_poked_ = false;
  bool is_stopping_ = false;
  bool has_left_ = false;
  mutable std::condition_variable status_changed_;
  WorkerStatus status_;
  std::shared_ptr<const Layout> layout_;

  std::mutex group_mutex_;  // guards the group, and:
  client::BoardRecord shown_;

  // Last: their threads use the others.
  std::unique_ptr<client::RankLink> link_;
  std::unique_ptr<client::FrameIntake> intake_;  // null: without transfer groups
  std::unique_ptr<JobThread> stage_;
  std::unique_ptr<JobThread> memory_;
  std::thread core_;
};

}  // namespace wstore
