#include "wstore/transfer_lead.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/strings.h"
#include "store/client/connection.h"
#include "store/client/frame_cutting.h"
#include "store/client/transfer_messages.h"

namespace wstore {
namespace {

constexpr int64_t kFirstPauseMicros = 50'000;
constexpr int64_t kLongestPauseMicros = 1'000'000;
constexpr int64_t kLookMicros = 50'000;

using Stream = grpc::ClientReaderWriter<v1::FromRoot, v1::ToRoot>;

class LeadImpl final : public TransferLead {
 public:
  LeadImpl(std::shared_ptr<client::Connection> connection, std::shared_ptr<TransferPort> port,
           const TransferLeadOptions& options)
      : connection_(std::move(connection)), port_(std::move(port)), options_(options) {
    leaving_ = std::thread([this] { RunLeaving(); });
    thread_ = std::thread([this] { Run(); });
  }
  ~LeadImpl() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_stopping_ = true;
      if (context_ != nullptr) context_->TryCancel();
      changed_.notify_all();
    }
    thread_.join();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      has_ended_ = true;
      changed_.notify_all();
    }
    leaving_.join();
  }

  TransferLeadStatus status() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return status_;
  }

  absl::Status AwaitRanks(size_t ranks, Deadline deadline) const override {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      size_t reached = 0;
      for (const TransferLeadStatus::Rank& rank : status_.ranks) {
        if (rank.route != TransferRoute::kService) ++reached;
      }
      if (status_.epoch == planned_ && status_.epoch != 0 && reached >= ranks) {
        return absl::OkStatus();
      }
      if (deadline.has_passed()) return absl::DeadlineExceededError(Describe(ranks));
      changed_.wait_for(
          lock, std::chrono::microseconds(std::min<int64_t>(deadline.left_micros(), 1'000'000)));
    }
  }

  absl::Status SendPart(TransactionNumber transaction, absl::Span<const DeviceChunk> chunks,
                        SetPart part, Deadline deadline) override {
    if (!sending_ || sending_->transaction != transaction) {
      sending_ = Sending{transaction, ReadyGroup(), absl::OkStatus(), 0};
    }
    absl::Status status = sending_->status;
    if (status.ok()) {
      status = sending_->group == nullptr
                   ? absl::UnavailableError("no transfer group is ready")
                   : SendThrough(*sending_->group, transaction, chunks, part, deadline);
    }
    sending_->status = status;
    if (part == SetPart::kLast) sending_.reset();
    return status;
  }

 private:
  struct Group {
    uint64_t epoch = 0;
    client::FrameTakers takers;
    bool has_shared = false;
    std::string unique_id;
    std::atomic<bool> is_ended{false};
    std::thread joining;
    std::mutex mutex;  // guards the pointer
    std::unique_ptr<FrameSender> sender;
    std::mutex use;  // held while it is used, but for Cancel, and while it is destroyed
    uint64_t next_frame = 0;
  };

  // A set of which not all parts have been sent. They take one group, since what comes by another
  // would be counted as another set.
  struct Sending {
    TransactionNumber transaction;
    std::shared_ptr<Group> group;  // null: none was ready
    absl::Status status;           // of the part that failed
    uint64_t unsent = 0;           // chunks that nobody wants, and no frame has told so far
  };

  std::string Describe(size_t ranks) const {
    std::string text = absl::StrCat("no transfer group with ", ranks, " ranks is ready");
    if (!status_.is_connected) absl::StrAppend(&text, "; the server is not connected");
    for (const TransferLeadStatus::Rank& rank : status_.ranks) {
      absl::StrAppend(&text, "; ", rank.name, ": ", ToAbsl(TransferRouteName(rank.route)),
                      rank.why.empty() ? "" : ", since ", rank.why);
    }
    if (!status_.error.empty()) absl::StrAppend(&text, "; last error: ", status_.error);
    return text;
  }

  std::shared_ptr<Group> ReadyGroup() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = groups_.find(status_.epoch);
    return found == groups_.end() ? nullptr : found->second;
  }

  absl::Status SendThrough(Group& group, TransactionNumber transaction,
                           absl::Span<const DeviceChunk> chunks, SetPart part, Deadline deadline) {
    const std::lock_guard<std::mutex> use(group.use);
    // Its sender may be gone.
    if (group.is_ended.load()) return absl::UnavailableError("the transfer group has ended");
    absl::Status status = SendFrames(group, transaction, chunks, part, deadline);
    if (status.ok() && part == SetPart::kLast) status = group.sender->Drain(deadline);
    if (!status.ok()) {
      Forget(group.epoch, std::string(status.message()));
      SendJoined(group.epoch, status);
    }
    return status;
  }

  absl::Status SendFrames(Group& group, TransactionNumber transaction,
                          absl::Span<const DeviceChunk> chunks, SetPart part, Deadline deadline) {
    for (client::Stretch& stretch :
         client::CutFrames(chunks, group.takers, part, &sending_->unsent)) {
      FrameHeader& frame = stretch.frame;
      frame.epoch = group.epoch;
      frame.sequence = group.next_frame;
      frame.transaction = transaction;
      if (group.has_shared && frame.size_bytes > 0) {
        ASSIGN_OR_RETURN(frame.location, group.sender->Locate(stretch.data, frame.size_bytes));
      }
      v1::FromRoot message;
      *message.mutable_frame() = wire::ToProto(frame);
      if (!Write(message)) return absl::UnavailableError("the connection to the server was lost");
      RETURN_IF_ERROR(group.sender->Send(frame, stretch.data, deadline));
      ++group.next_frame;
    }
    return absl::OkStatus();
  }

  // --- The stream, in a thread of its own ---

  void Run() {
    int64_t pause_micros = kFirstPauseMicros;
    for (;;) {
      const bool was_led = LeadOnce();
      EndAll();
      if (was_led) pause_micros = kFirstPauseMicros;
      if (!PauseUnlessStopping(pause_micros)) return;
      pause_micros = std::min(2 * pause_micros, kLongestPauseMicros);
    }
  }

  // False: it is to stop.
  bool PauseUnlessStopping(int64_t micros) {
    const Deadline end = Deadline::After(micros);
    for (bool is_connected = false;;) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (is_stopping_) return false;
      }
      if (is_connected || end.has_passed()) return true;
      is_connected = connection_->Pause(std::min(end.left_micros(), kLookMicros));
    }
  }

  // One stream, until it ends. Whether the server took it.
  bool LeadOnce() {
    grpc::ClientContext context;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (is_stopping_) return false;
      context_ = &context;
    }
    std::unique_ptr<Stream> stream = connection_->stub().Lead(&context);
    {
      const std::lock_guard<std::mutex> lock(write_mutex_);
      stream_ = stream.get();
    }
    v1::FromRoot hello;
    hello.mutable_hello()->set_contributor(options_.contributor);
    hello.mutable_hello()->set_frame_bytes(options_.frame_bytes);
    *hello.mutable_hello()->mutable_transfer() = wire::ToProto(port_->hello());
    bool was_led = false;
    v1::ToRoot message;
    if (Write(hello)) {
      Update([](TransferLeadStatus& status) { status.is_connected = true; });
      while (stream->Read(&message)) {
        was_led = true;
        Received(message);
      }
    }
    {
      const std::lock_guard<std::mutex> lock(write_mutex_);
      stream_ = nullptr;
    }
    const absl::Status ended = connection_->FromGrpc(stream->Finish());
    Update([&](TransferLeadStatus& status) {
      status = {};
      status.error = std::string(ended.message());
    });
    const std::lock_guard<std::mutex> lock(mutex_);
    context_ = nullptr;
    return was_led;
  }

  template <typename Change>
  void Update(const Change& change) {
    const std::lock_guard<std::mutex> lock(mutex_);
    change(status_);
    changed_.notify_all();
  }

  bool Write(const v1::FromRoot& message) {
    const std::lock_guard<std::mutex> lock(write_mutex_);
    return stream_ != nullptr && stream_->Write(message);
  }

  void SendJoined(uint64_t epoch, const absl::Status& status) {
    v1::FromRoot message;
    *message.mutable_joined() = wire::ToProto(epoch, status);
    static_cast<void>(Write(message));
  }

  void Received(const v1::ToRoot& message) {
    switch (message.kind_case()) {
      case v1::ToRoot::kPlan:
        return Planned(message.plan());
      case v1::ToRoot::kNamed: {
        const std::shared_ptr<Group> group = Find(message.named());
        if (group == nullptr || group->joining.joinable()) return;
        group->joining = std::thread([this, group] { Join(group); });
        return;
      }
      case v1::ToRoot::kReady:
        return Update([&](TransferLeadStatus& status) { status.epoch = message.ready(); });
      case v1::ToRoot::kEnd:
        return Forget(message.end().epoch(), message.end().reason());
      default:
        return;
    }
  }

  void Planned(const v1::ToRoot::Plan& plan) {
    auto group = std::make_shared<Group>();
    group->epoch = plan.epoch();
    group->takers.communicator = plan.size();
    group->takers.frame_bytes = plan.frame_bytes();
    std::vector<TransferLeadStatus::Rank> ranks;
    for (const v1::ToRoot::Member& member : plan.members()) {
      const TransferRoute route = wire::FromProto(member.route());
      ranks.push_back({absl::StrCat(member.instance(), "/", member.rank()), route, member.why()});
      group->has_shared = group->has_shared || route == TransferRoute::kShared;
      if (route == TransferRoute::kService) continue;
      client::FrameTakers::Member taker{member.index(), {}};
      if (member.has_tensors()) {
        // The server has checked them.
        absl::StatusOr<TensorSet> tensors = wire::FromProto(member.tensors(), UINT32_MAX);
        if (tensors.ok()) taker.tensors = *std::move(tensors);
      }
      group->takers.members.push_back(std::move(taker));
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      status_.ranks = std::move(ranks);
      changed_.notify_all();
      if (group->epoch == 0) return;
      groups_[group->epoch] = group;
      planned_ = group->epoch;
    }
    if (group->takers.communicator == 0) return;
    const absl::StatusOr<std::string> id = port_->NewUniqueId();
    if (!id.ok()) {
      Forget(group->epoch, std::string(id.status().message()));
      return SendJoined(group->epoch, id.status());
    }
    group->unique_id = *id;
    v1::FromRoot message;
    message.mutable_name()->set_epoch(group->epoch);
    message.mutable_name()->set_unique_id(*id);
    static_cast<void>(Write(message));
  }

  // In a thread of its own, which Leave waits for.
  void Join(const std::shared_ptr<Group>& group) {
    if (options_.on_thread) options_.on_thread();
    TransferPlan plan;
    plan.epoch = group->epoch;
    plan.route = group->takers.communicator > 0 ? TransferRoute::kNccl : TransferRoute::kShared;
    plan.unique_id = group->unique_id;
    plan.size = group->takers.communicator;
    plan.frame_bytes = group->takers.frame_bytes;
    absl::StatusOr<std::unique_ptr<FrameSender>> sender = port_->Lead(
        plan, Deadline::After(options_.join_micros), [group] { return group->is_ended.load(); });
    if (sender.ok()) {
      const std::lock_guard<std::mutex> lock(group->mutex);
      group->sender = *std::move(sender);
      if (group->is_ended.load()) group->sender->Cancel();
      SendJoined(group->epoch, absl::OkStatus());
    } else if (!group->is_ended.load()) {
      SendJoined(group->epoch, sender.status());
    }
  }

  std::shared_ptr<Group> Find(uint64_t epoch) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = groups_.find(epoch);
    return found == groups_.end() ? nullptr : found->second;
  }

  // Gives a group up. What is under way in it returns soon; it is left in the background.
  void Forget(uint64_t epoch, const std::string& reason) {
    std::shared_ptr<Group> group;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = groups_.find(epoch);
      if (found == groups_.end()) return;
      group = found->second;
      groups_.erase(found);
      if (status_.epoch == epoch) status_.epoch = 0;
      status_.error = reason;
      changed_.notify_all();
    }
    if (options_.log) {
      options_.log(
          absl::StrCat("level=info event=transfer_end group=", epoch, " reason=\"", reason, "\""));
    }
    group->is_ended.store(true);
    const std::lock_guard<std::mutex> lock(group->mutex);
    if (group->sender != nullptr) group->sender->Cancel();
    const std::lock_guard<std::mutex> left_lock(mutex_);
    left_.push_back(std::move(group));
    changed_.notify_all();
  }

  void EndAll() {
    std::vector<uint64_t> epochs;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (const auto& [epoch, group] : groups_) epochs.push_back(epoch);
    }
    for (const uint64_t epoch : epochs) Forget(epoch, "the connection to the server was lost");
  }

  // Destroys groups that were given up, which may take seconds each.
  void RunLeaving() {
    for (;;) {
      std::shared_ptr<Group> group;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return !left_.empty() || has_ended_; });
        if (left_.empty()) return;
        group = std::move(left_.front());
        left_.erase(left_.begin());
      }
      if (group->joining.joinable()) group->joining.join();
      const std::lock_guard<std::mutex> use(group->use);
      const std::lock_guard<std::mutex> lock(group->mutex);
      group->sender.reset();
    }
  }

  const std::shared_ptr<client::Connection> connection_;
  const std::shared_ptr<TransferPort> port_;
  const TransferLeadOptions options_;

  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable changed_;
  TransferLeadStatus status_;
  uint64_t planned_ = 0;
  std::map<uint64_t, std::shared_ptr<Group>> groups_;
  std::vector<std::shared_ptr<Group>> left_;
  grpc::ClientContext* context_ = nullptr;
  bool is_stopping_ = false;
  bool has_ended_ = false;  // nothing is given up any more

  std::mutex write_mutex_;  // guards:
  Stream* stream_ = nullptr;

  std::optional<Sending> sending_;  // of the thread that sends

  std::thread thread_;
  std::thread leaving_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TransferLead>> TransferLead::Start(
    const ConnectOptions& connect, std::shared_ptr<TransferPort> port,
    const TransferLeadOptions& options) {
  if (options.frame_bytes > kMaxFrameBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "frames of ", options.frame_bytes, " bytes; at most ", kMaxFrameBytes, " are allowed"));
  }
  ASSIGN_OR_RETURN(std::shared_ptr<client::Connection> connection,
                   client::Connection::Open(connect));
  return std::make_unique<LeadImpl>(std::move(connection), std::move(port), options);
}

}  // namespace wstore
