#include "store/client/worker/frame_intake.h"

#include <algorithm>
#include <chrono>
#include <shared_mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "store/client/transfer_messages.h"

namespace wstore::client {
namespace {

constexpr size_t kMaxAnnounced = 1024;
constexpr int64_t kFirstPauseMicros = 200'000;
constexpr int64_t kLongestPauseMicros = 30'000'000;

}  // namespace

struct FrameIntake::Group {
  TransferPlan plan;
  uint32_t contributor = 0;
  std::atomic<bool> is_ended{false};
  std::thread joining;
  std::mutex mutex;  // guards the pointer
  std::unique_ptr<FrameReceiver> receiver;
  // Shared while the receiver or its bytes are used, but for Cancel; held while it is destroyed.
  std::shared_mutex use;

  FrameReceiver* get() {
    const std::lock_guard<std::mutex> lock(mutex);
    return receiver.get();
  }
};

struct FrameIntake::Entered {
  std::shared_ptr<Group> group;
  FrameHeader frame;
  Deadline deadline;
};

struct FrameIntake::Staging {
  Entered entered;
  std::vector<DeviceChunk> chunks;
  std::shared_ptr<Delivery> delivery;
  bool is_done = false;  // under the mutex
};

FrameIntake::FrameIntake(Options options)
    : options_(std::move(options)),
      leaving_([this] { RunLeaving(); }),
      stage_{JobThread("ws-stage-0", options_.on_thread),
             JobThread("ws-stage-1", options_.on_thread)},
      frames_([this] { RunFrames(); }) {}

FrameIntake::~FrameIntake() {
  LinkEnded();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopping_ = true;
    changed_.notify_all();
  }
  frames_.join();
  for (JobThread& thread : stage_) thread.Stop();
  staging_.clear();
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return breaking_ == 0; });
    has_ended_ = true;
    changed_.notify_all();
  }
  leaving_.join();
}

void FrameIntake::Log(const std::string& line) const {
  if (options_.log) options_.log(line);
}

void FrameIntake::AtStep(std::string_view step) const {
  if (options_.on_step) options_.on_step(step);
}

std::shared_ptr<FrameIntake::Group> FrameIntake::Find(uint64_t epoch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = groups_.find(epoch);
  return found == groups_.end() ? nullptr : found->second;
}

void FrameIntake::SendJoined(uint64_t epoch, const absl::Status& status) {
  v1::FromRank message;
  *message.mutable_joined() = wire::ToProto(epoch, status);
  options_.send(std::move(message));
}

void FrameIntake::SendHello() {
  AtStep("hello");
  v1::FromRank message;
  TransferHello hello = options_.port->hello();
  if (options_.tensors) hello.tensors = options_.tensors();
  *message.mutable_transfer() = wire::ToProto(hello);
  options_.send(std::move(message));
}

void FrameIntake::LinkBegun() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_linked_ = true;
  }
  SendHello();
}

void FrameIntake::LinkEnded() {
  std::vector<std::shared_ptr<Group>> groups;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_linked_ = false;
    for (const auto& [epoch, group] : groups_) groups.push_back(group);
  }
  const absl::Status status = absl::UnavailableError("the connection to the server was lost");
  for (const auto& group : groups) Break(group, status, /*tell=*/false);
}

void FrameIntake::Planned(const TransferPlan& plan, uint32_t contributor) {
  auto group = std::make_shared<Group>();
  group->plan = plan;
  group->contributor = contributor;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_stopping_ || !groups_.emplace(plan.epoch, group).second) return;
  group->joining = std::thread([this, group] { Join(group); });
}

// In a thread of its own, which Break waits for.
void FrameIntake::Join(const std::shared_ptr<Group>& group) {
  NameThread("ws-join");
  if (options_.on_thread) options_.on_thread();
  AtStep("joining");
  absl::StatusOr<std::unique_ptr<FrameReceiver>> receiver =
      options_.port->Join(group->plan, Deadline::After(options_.join_micros),
                          [group] { return group->is_ended.load(); });
  if (!receiver.ok()) return Break(group, receiver.status(), /*tell=*/true);
  {
    const std::lock_guard<std::mutex> lock(group->mutex);
    group->receiver = *std::move(receiver);
    if (group->is_ended.load()) group->receiver->Cancel();
  }
  Log(absl::StrCat("level=info event=transfer_joined group=", group->plan.epoch,
                   " contributor=", group->contributor,
                   " route=", std::string(TransferRouteName(group->plan.route))));
  SendJoined(group->plan.epoch, absl::OkStatus());
}

void FrameIntake::Ended(uint64_t epoch, const std::string& reason) {
  if (const auto group = Find(epoch)) {
    Break(group, absl::UnavailableError(reason), /*tell=*/false);
  }
}

// From any thread. The rank says hello anew once it has left, after a pause that grows while groups
// break one after another.
void FrameIntake::Break(const std::shared_ptr<Group>& group, const absl::Status& status,
                        bool tell) {
  std::shared_ptr<Delivery> delivery;
  int64_t pause_micros = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (groups_.erase(group->plan.epoch) == 0) return;
    ++breaking_;
    delivery = delivery_;
    if (tell) {
      hello_pause_micros_ =
          std::clamp(2 * hello_pause_micros_, kFirstPauseMicros, kLongestPauseMicros);
      pause_micros = hello_pause_micros_;
    }
  }
  group->is_ended.store(true);
  {
    const std::lock_guard<std::mutex> lock(group->mutex);
    if (group->receiver != nullptr) group->receiver->Cancel();
  }
  Log(absl::StrCat("level=", tell ? "warning" : "info", " event=transfer_left group=",
                   group->plan.epoch, " reason=\"", std::string(status.message()), "\""));
  if (delivery != nullptr) {
    delivery->Fail(group->plan.epoch,
                   absl::UnavailableError(
                       absl::StrCat("the transfer group broke: ", std::string(status.message()))));
  }
  if (tell) SendJoined(group->plan.epoch, status);
  const std::lock_guard<std::mutex> lock(mutex_);
  left_.push_back({group, tell ? std::optional(pause_micros) : std::nullopt});
  --breaking_;
  changed_.notify_all();
}

void FrameIntake::RunLeaving() {
  NameThread("ws-leave");
  if (options_.on_thread) options_.on_thread();
  for (;;) {
    Left left;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return !left_.empty() || has_ended_; });
      if (left_.empty()) return;
      left = std::move(left_.front());
      left_.pop_front();
    }
    if (left.group->joining.joinable()) left.group->joining.join();
    {
      const std::lock_guard<std::shared_mutex> use(left.group->use);
      const std::lock_guard<std::mutex> lock(left.group->mutex);
      left.group->receiver.reset();
    }
    if (!left.hello_after_micros) continue;
    const std::lock_guard<std::mutex> lock(mutex_);
    hello_at_ = Deadline::After(*left.hello_after_micros);
    changed_.notify_all();
  }
}

// --- Frames ---

std::shared_ptr<Delivery> FrameIntake::Expect(TransactionNumber transaction,
                                              uint32_t contributors) {
  auto delivery = std::make_shared<Delivery>();
  const std::lock_guard<std::mutex> lock(mutex_);
  // Of several groups of a contributor the root takes the latest that is ready; which that is, its
  // first frame shows. A rank that is in none has nothing to wait for.
  for (const auto& [epoch, group] : groups_) {
    const std::lock_guard<std::mutex> group_lock(group->mutex);
    if (group->receiver == nullptr || group->contributor >= contributors) continue;
    delivery->Expect(group->contributor, epoch);
  }
  transaction_ = transaction;
  delivery_ = delivery;
  return delivery;
}

void FrameIntake::Announced(FrameHeader frame) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (delivery_ != nullptr && transaction_ == frame.transaction) delivery_->Announced(frame);
  // Past the limit its group breaks by the gap.
  if (announced_.size() < kMaxAnnounced) announced_.push_back(std::move(frame));
  changed_.notify_all();
}

void FrameIntake::RunFrames() {
  NameThread("ws-frames");
  if (options_.on_thread) options_.on_thread();
  for (;;) {
    bool says_hello = false;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (!CanGoOn()) {
        const int64_t pause = hello_at_ ? hello_at_->left_micros() : kLongestPauseMicros;
        changed_.wait_for(lock, std::chrono::microseconds(pause));
      }
      if (is_stopping_) break;
      says_hello = hello_at_ && hello_at_->has_passed();
      if (says_hello) hello_at_.reset();
      says_hello = says_hello && is_linked_;
    }
    if (says_hello) SendHello();
    ReleaseStaged();
    // Frames are under way while others are staged.
    EnterNext();
    TakeNext();
  }
  entered_.clear();
}

// With the mutex.
bool FrameIntake::CanEnter() const {
  return !announced_.empty() && entered_.size() + staging_.size() < kMaxHeldFrames &&
         // One group at a time is under way.
         (entered_.empty() || entered_.front().frame.epoch == announced_.front().epoch);
}
bool FrameIntake::CanGoOn() const {
  return is_stopping_ || CanEnter() || (!entered_.empty() && staging_.size() < stage_.size()) ||
         (!staging_.empty() && staging_.front().is_done);
}

void FrameIntake::EnterNext() {
  for (;;) {
    std::optional<FrameHeader> frame;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!CanEnter()) return;
      frame = std::move(announced_.front());
      announced_.pop_front();
    }
    const std::shared_ptr<Group> group = Find(frame->epoch);
    if (group == nullptr) continue;  // it has ended
    const Deadline deadline = Deadline::After(options_.frame_micros);
    absl::Status status = absl::FailedPreconditionError("a frame before the group was joined");
    const std::shared_lock<std::shared_mutex> use(group->use);
    if (FrameReceiver* const receiver = group->get()) status = receiver->Enter(*frame, deadline);
    if (status.ok()) {
      entered_.push_back({group, *std::move(frame), deadline});
      AtStep("receiving");
    } else {
      Break(group, status, /*tell=*/true);
    }
  }
}

void FrameIntake::TakeNext() {
  if (entered_.empty() || staging_.size() == stage_.size()) return;
  Entered next = std::move(entered_.front());
  entered_.pop_front();
  const std::shared_lock<std::shared_mutex> use(next.group->use);
  if (next.group->is_ended.load()) return;
  absl::StatusOr<std::vector<DeviceChunk>> chunks = next.group->get()->Await(next.deadline);
  if (!chunks.ok()) return Break(next.group, chunks.status(), /*tell=*/true);
  for (const DeviceChunk& chunk : *chunks) received_bytes_ += chunk.size_bytes;
  staging_.push_back({std::move(next), *std::move(chunks), nullptr});
  Staging& staging = staging_.back();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (transaction_ == staging.entered.frame.transaction) staging.delivery = delivery_;
    hello_pause_micros_ = 0;
  }
  const FrameHeader& frame = staging.entered.frame;
  if (staging.delivery != nullptr) {
    staging.delivery->Arrived(frame, staging.entered.group->contributor);
  }
  stage_[frame.sequence % stage_.size()].Post([this, &staging] { Stage(&staging); });
}

// In a stage thread.
void FrameIntake::Stage(Staging* frame) {
  {
    Group& group = *frame->entered.group;
    const std::shared_lock<std::shared_mutex> use(group.use);
    // What nobody waits for was received all the same: the others' collective needs this rank. And
    // the bytes of a group that has been left are gone.
    if (frame->delivery != nullptr && !group.is_ended.load()) {
      frame->delivery->Take(frame->entered.frame, group.contributor, frame->chunks,
                            frame->entered.deadline);
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  frame->is_done = true;
  changed_.notify_all();
}

void FrameIntake::ReleaseStaged() {
  for (;;) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (staging_.empty() || !staging_.front().is_done) return;
    }
    Group& group = *staging_.front().entered.group;
    {
      const std::shared_lock<std::shared_mutex> use(group.use);
      if (FrameReceiver* const receiver = group.get()) receiver->Release();
    }
    staging_.pop_front();
  }
}

}  // namespace wstore::client
