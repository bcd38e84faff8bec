#include "store/service/serial_executor.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace wstore::service {
namespace {

// How long it sleeps at most before it looks at the clock again: that one counts time suspended,
// a condition variable does not.
constexpr int64_t kMaxSleepMicros = 100'000;

}  // namespace

SerialExecutor::SerialExecutor(Clock& clock, size_t max_waiting)
    : clock_(clock), max_waiting_(max_waiting), thread_([this] { Run(); }) {}

SerialExecutor::~SerialExecutor() { Stop(); }

bool SerialExecutor::TryPost(std::function<void()> task) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_ || tasks_.size() >= max_waiting_) return false;
  tasks_.push_back(std::move(task));
  changed_.notify_one();
  return true;
}

bool SerialExecutor::Post(std::function<void()> task) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_) return false;
  tasks_.push_back(std::move(task));
  changed_.notify_one();
  return true;
}

void SerialExecutor::WakeAt(int64_t at_micros, std::function<void()> task) {
  const std::lock_guard<std::mutex> lock(mutex_);
  wake_at_micros_ = at_micros;
  wake_task_ = std::move(task);
  changed_.notify_one();
}

void SerialExecutor::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void SerialExecutor::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    std::function<void()> task;
    if (clock_.NowMonotonicMicros() >= wake_at_micros_) {
      task = std::exchange(wake_task_, nullptr);
      wake_at_micros_ = INT64_MAX;
    } else if (!tasks_.empty()) {
      task = std::move(tasks_.front());
      tasks_.pop_front();
    } else if (stopping_) {
      return;
    } else if (wake_at_micros_ == INT64_MAX) {
      changed_.wait(lock);
      continue;
    } else {
      const int64_t sleep_micros =
          std::min(wake_at_micros_ - clock_.NowMonotonicMicros(), kMaxSleepMicros);
      changed_.wait_for(lock, std::chrono::microseconds(std::max<int64_t>(sleep_micros, 1)));
      continue;
    }
    lock.unlock();
    if (task) task();
    task = nullptr;  // what it holds goes outside the lock
    lock.lock();
  }
}

}  // namespace wstore::service
