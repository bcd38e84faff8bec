#include "store/client/worker/frame_intake.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "store/client/transfer_messages.h"
#include "store/client/worker/job_thread.h"

namespace wstore::client {
namespace {

constexpr size_t kMaxAnnounced = 1024;
constexpr int64_t kFirstPauseMicros = 200'000;
constexpr int64_t kLongestPauseMicros = 30'000'000;
constexpr auto kLookAgain = std::chrono::milliseconds(20);
// Without a frame of a publisher that has sent all.
constexpr auto kSilence = std::chrono::milliseconds(500);

}  // namespace

// --- Delivery ---

void Delivery::Open(Stage stage) {
  const std::lock_guard<std::mutex> lock(mutex_);
  stage_ = std::move(stage);
  changed_.notify_all();
}

void Delivery::Announced(const FrameHeader& frame) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [contributor, part] : parts_) {
    if (part.epochs.contains(frame.epoch)) ++part.under_way;
  }
}

void Delivery::Take(const FrameHeader& frame, uint32_t contributor,
                    absl::Span<const DeviceChunk> chunks, Deadline deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto found = parts_.find(contributor);
  if (found == parts_.end() || !found->second.epochs.contains(frame.epoch)) return;
  Part& part = found->second;
  part.used = frame.epoch;
  StageFrame(frame, chunks, deadline, lock, part);
  if (part.under_way > 0) --part.under_way;
  part.last_sign = std::chrono::steady_clock::now();
}

void Delivery::StageFrame(const FrameHeader& frame, absl::Span<const DeviceChunk> chunks,
                          Deadline deadline, std::unique_lock<std::mutex>& lock, Part& part) {
  absl::Status status;
  if (!chunks.empty()) {
    changed_.wait_for(lock, std::chrono::microseconds(deadline.left_micros()),
                      [this] { return stage_ != nullptr || is_closed_; });
    status = absl::UnavailableError("the update was not begun in time");
  }
  if (is_closed_ || !part.status.ok()) return;
  if (!chunks.empty() && stage_ != nullptr) {
    is_staging_ = true;
    const Stage stage = stage_;
    lock.unlock();
    status = stage(chunks);
    lock.lock();
    is_staging_ = false;
  }
  if (part.status.ok()) part.status = status;
  // Those that are for others count as well: together they are what the contributor says it sent.
  if (part.status.ok()) part.chunks += frame.chunks.size() + frame.unsent_chunks;
  part.is_whole = part.status.ok() && frame.is_last;
  changed_.notify_all();
}

void Delivery::Fail(uint64_t epoch, const absl::Status& status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [contributor, part] : parts_) {
    if (part.epochs.erase(epoch) == 0 || part.is_whole || !part.status.ok()) continue;
    part.under_way = 0;
    if (part.used == epoch || part.epochs.empty()) part.status = status;
  }
  changed_.notify_all();
}

absl::StatusOr<uint64_t> Delivery::Await(uint32_t contributor, const Cancellation& cancellation) {
  std::unique_lock<std::mutex> lock(mutex_);
  Part& part = parts_.at(contributor);
  part.last_sign = std::chrono::steady_clock::now();
  while (!part.is_whole && part.status.ok()) {
    if (cancellation.is_cancelled()) return absl::CancelledError("cancelled");
    if (part.under_way == 0 && std::chrono::steady_clock::now() - part.last_sign > kSilence) {
      part.status = absl::UnavailableError("not all frames were sent to this rank");
    }
    changed_.wait_for(lock, kLookAgain);
  }
  if (!part.status.ok()) return part.status;
  return part.chunks;
}

void Delivery::Close() {
  std::unique_lock<std::mutex> lock(mutex_);
  is_closed_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return !is_staging_; });
}

// --- Groups ---

struct FrameIntake::Group {
  TransferPlan plan;
  uint32_t contributor = 0;
  std::atomic<bool> is_ended{false};
  std::thread joining;
  std::mutex mutex;  // guards the pointer
  std::unique_ptr<FrameReceiver> receiver;
  std::mutex use;  // held while the receiver is used, but for Cancel, and while it is destroyed
};

struct FrameIntake::Entered {
  std::shared_ptr<Group> group;
  FrameHeader frame;
  Deadline deadline;
};

FrameIntake::FrameIntake(Options options)
    : options_(std::move(options)),
      leaving_([this] { RunLeaving(); }),
      frames_([this] { RunFrames(); }) {}

FrameIntake::~FrameIntake() {
  LinkEnded();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopping_ = true;
    changed_.notify_all();
  }
  frames_.join();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
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
      const std::lock_guard<std::mutex> use(left.group->use);
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
    delivery->parts_[group->contributor].epochs.insert(epoch);
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
      if (!is_stopping_ && announced_.empty() && entered_.empty()) {
        const int64_t pause = hello_at_ ? hello_at_->left_micros() : kLongestPauseMicros;
        changed_.wait_for(lock, std::chrono::microseconds(pause));
      }
      if (is_stopping_) break;
      says_hello = hello_at_ && hello_at_->has_passed();
      if (says_hello) hello_at_.reset();
      says_hello = says_hello && is_linked_;
    }
    if (says_hello) SendHello();
    // The next frame is under way while this one is staged.
    while (entered_.size() < kMaxHeldFrames && EnterNext()) continue;
    if (!entered_.empty()) TakeNext();
  }
  entered_.clear();
}

// False: nothing was announced, or it is of another group than what is under way.
bool FrameIntake::EnterNext() {
  std::optional<FrameHeader> frame;
  std::shared_ptr<Group> group;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (announced_.empty()) return false;
    const auto found = groups_.find(announced_.front().epoch);
    if (found != groups_.end()) group = found->second;
    if (group != nullptr && !entered_.empty() && entered_.front().group != group) return false;
    frame = std::move(announced_.front());
    announced_.pop_front();
  }
  if (group == nullptr) return true;  // it has ended
  const Deadline deadline = Deadline::After(options_.frame_micros);
  absl::Status status = absl::FailedPreconditionError("a frame before the group was joined");
  const std::lock_guard<std::mutex> use(group->use);
  if (group->receiver != nullptr) status = group->receiver->Enter(*frame, deadline);
  if (status.ok()) {
    entered_.push_back({group, *std::move(frame), deadline});
    AtStep("receiving");
  } else {
    Break(group, status, /*tell=*/true);
  }
  return true;
}

void FrameIntake::TakeNext() {
  const Entered next = std::move(entered_.front());
  entered_.pop_front();
  const std::lock_guard<std::mutex> use(next.group->use);
  if (next.group->is_ended.load()) return;
  const absl::StatusOr<std::vector<DeviceChunk>> chunks =
      next.group->receiver->Await(next.deadline);
  if (!chunks.ok()) return Break(next.group, chunks.status(), /*tell=*/true);
  for (const DeviceChunk& chunk : *chunks) received_bytes_ += chunk.size_bytes;
  std::shared_ptr<Delivery> delivery;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (transaction_ == next.frame.transaction) delivery = delivery_;
    hello_pause_micros_ = 0;
  }
  // What nobody waits for was received all the same: the others' collective needs this rank.
  if (delivery != nullptr) {
    delivery->Take(next.frame, next.group->contributor, *chunks, next.deadline);
  }
  next.group->receiver->Release();
}

}  // namespace wstore::client
