#include "store/client/worker/safe_point_gate.h"

#include <algorithm>
#include <chrono>

namespace wstore::client {

bool SafePointGate::MustHold() const {
  if (is_closed_) return false;
  if (is_fresh_) return true;
  if (!is_in_round_) return false;
  const uint64_t here = passed_.load();
  return here >= record_.next && (!target_ || here >= *target_);
}

SafePointGate::Passed SafePointGate::Wait(Deadline deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (MustHold() && !is_waiting_) {
    is_waiting_ = true;
    lock.unlock();
    arrived_();
    lock.lock();
  }
  while (MustHold()) {
    const int64_t left = deadline.left_micros();
    if (left == 0) return Passed::kHeld;
    // Longer waits than an hour overflow some clocks.
    changed_.wait_for(lock, std::chrono::microseconds(std::min<int64_t>(left, 3'600'000'000)));
  }
  is_waiting_ = false;
  is_counted_ = is_closed_;
  return is_closed_ ? Passed::kClosed : Passed::kRun;
}

bool SafePointGate::StandsAtTarget() const {
  return target_ && (is_fresh_ || (is_waiting_ && passed_.load() >= *target_));
}

void SafePointGate::Join(const std::vector<std::optional<GateRecord>>& mates) {
  // One that is under way, if there is any: a rank that was started again must not miss it.
  uint64_t latest = record_.round;
  uint64_t open = 0;
  for (const auto& mate : mates) {
    if (!mate) continue;
    latest = std::max(latest, mate->round);
    if (mate->round > record_.round && mate->done < mate->round) open = std::max(open, mate->round);
  }
  is_in_round_ = true;
  target_.reset();
  record_.round = open > 0 ? open : latest + 1;
  attention_.store(true, std::memory_order_seq_cst);
  record_.next = is_fresh_ ? 0 : passed_.load(std::memory_order_seq_cst) + 1;
}

void SafePointGate::Turn(bool wants_stop, bool is_writing,
                         const std::vector<std::optional<GateRecord>>& mates) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_closed_) return;
  const auto all = [&](const auto& is_so) {
    return std::all_of(mates.begin(), mates.end(),
                       [&](const auto& mate) { return mate && is_so(*mate); });
  };
  if (!is_in_round_) {
    const bool is_called = std::any_of(mates.begin(), mates.end(), [&](const auto& mate) {
      return mate && mate->round > record_.round && mate->done < mate->round;
    });
    if (!wants_stop && !is_called) return;
    Join(mates);
  }
  const uint64_t round = record_.round;
  if (!target_ && all([&](const GateRecord& mate) { return mate.round >= round; })) {
    uint64_t target = record_.next;
    for (const auto& mate : mates) {
      if (mate->round == round) target = std::max(target, mate->next);
    }
    target_ = target;
    record_.next = target;  // whoever joins late sees where the others stand
  }
  const bool one_has_gone = std::any_of(mates.begin(), mates.end(), [&](const auto& mate) {
    return mate && (mate->done >= round || mate->round > round);
  });
  const bool may_go = !wants_stop || (one_has_gone && !is_writing);
  record_.released = StandsAtTarget() && may_go ? round : record_.done;
  const bool all_go = record_.released == round && all([&](const GateRecord& mate) {
                        return mate.released >= round || mate.done >= round || mate.round > round;
                      });
  if (all_go) {
    if (is_fresh_) passed_.store(*target_);
    is_fresh_ = false;
    is_in_round_ = false;
    target_.reset();
    record_.done = round;
    attention_.store(false, std::memory_order_seq_cst);
  }
  changed_.notify_all();
}

GateRecord SafePointGate::record() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return record_;
}

bool SafePointGate::stands_still() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_fresh_) return true;
  return is_in_round_ && StandsAtTarget();
}

bool SafePointGate::is_in_round() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return is_in_round_;
}

bool SafePointGate::is_awaited() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return is_in_round_ && !is_waiting_ && !is_fresh_;
}

void SafePointGate::Close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_closed_ = true;
  attention_.store(true, std::memory_order_seq_cst);
  changed_.notify_all();
}

}  // namespace wstore::client
