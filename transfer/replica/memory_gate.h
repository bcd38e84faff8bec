// Keeps long readers of weights out of the way of a write.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace wstore {

// Closed while memory is written, moved or away. Close and Open by one thread at a time.
class MemoryGate {
 public:
  // Blocks until nobody is inside. Closing a closed gate does nothing.
  void Close() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++closings_;
    is_open_ = false;
    left_.wait(lock, [this] { return inside_ == 0; });
  }
  void Open() {
    std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = true;
  }

 private:
  friend class MemoryPass;

  std::mutex mutex_;
  std::condition_variable left_;
  uint64_t inside_ = 0;
  bool is_open_ = true;
  std::atomic<uint64_t> closings_{0};
};

// Admits a reader to the memory as it was when the pass was made: not after the gate has closed
// since. To be made where the gate cannot close.
class MemoryPass {
 public:
  explicit MemoryPass(MemoryGate* gate)
      : gate_(gate), closings_(gate->closings_.load(std::memory_order_relaxed)) {}

  // False: it has, or it is closed; the reader is not inside. From then on the gate waits for
  // Leave.
  bool Enter() const {
    std::lock_guard<std::mutex> lock(gate_->mutex_);
    if (!gate_->is_open_ || is_over()) return false;
    ++gate_->inside_;
    return true;
  }
  void Leave() const {
    std::lock_guard<std::mutex> lock(gate_->mutex_);
    if (--gate_->inside_ == 0) gate_->left_.notify_all();
  }
  // Whether a reader inside should leave soon.
  bool is_over() const { return gate_->closings_.load(std::memory_order_relaxed) != closings_; }

 private:
  MemoryGate* const gate_;
  const uint64_t closings_;
};

}  // namespace wstore
