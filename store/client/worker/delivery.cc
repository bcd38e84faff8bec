#include "store/client/worker/delivery.h"

#include <utility>

namespace wstore::client {
namespace {

constexpr auto kLookAgain = std::chrono::milliseconds(20);
// Without a frame of a publisher that has sent all.
constexpr auto kSilence = std::chrono::milliseconds(500);

}  // namespace

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

void Delivery::Arrived(const FrameHeader& frame, uint32_t contributor) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = parts_.find(contributor);
  if (found == parts_.end() || !found->second.epochs.contains(frame.epoch)) return;
  Part& part = found->second;
  part.used = frame.epoch;
  part.has_last |= frame.is_last;
  ++part.taken;
}

void Delivery::Take(const FrameHeader& frame, uint32_t contributor,
                    absl::Span<const DeviceChunk> chunks, Deadline deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto found = parts_.find(contributor);
  // Or its group has broken since it arrived, and with it the part.
  if (found == parts_.end() || !found->second.epochs.contains(frame.epoch)) return;
  Part& part = found->second;
  const absl::Status status = StageFrame(chunks, deadline, lock, part);
  if (part.status.ok()) part.status = status;
  // Those that are for others count as well: together they are what the contributor says it sent.
  if (part.status.ok()) part.chunks += frame.chunks.size() + frame.unsent_chunks;
  --part.taken;
  if (part.under_way > 0) --part.under_way;
  part.last_sign = std::chrono::steady_clock::now();
  part.is_whole = part.status.ok() && part.has_last && part.taken == 0;
  changed_.notify_all();
}

absl::Status Delivery::StageFrame(absl::Span<const DeviceChunk> chunks, Deadline deadline,
                                  std::unique_lock<std::mutex>& lock, const Part& part) {
  if (chunks.empty()) return absl::OkStatus();
  changed_.wait_for(lock, std::chrono::microseconds(deadline.left_micros()),
                    [&] { return stage_ != nullptr || is_closed_ || !part.status.ok(); });
  if (is_closed_ || !part.status.ok()) return absl::CancelledError("not wanted any more");
  if (stage_ == nullptr) return absl::UnavailableError("the update was not begun in time");
  ++staging_;
  const Stage stage = stage_;
  lock.unlock();
  absl::Status status = stage(chunks);
  lock.lock();
  --staging_;
  return status;
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
    const bool is_quiet = part.under_way == 0 && part.taken == 0;
    if (is_quiet && std::chrono::steady_clock::now() - part.last_sign > kSilence) {
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
  changed_.wait(lock, [this] { return staging_ == 0; });
}

}  // namespace wstore::client
