// One thread that does one thing after the other, and wakes at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "common/clock.h"

namespace wstore::service {

// Threads: any. Tasks run in the order in which they were given, in the executor's thread.
class SerialExecutor {
 public:
  // At most `max_waiting` tasks of callers wait. `clock` must outlive the executor.
  SerialExecutor(Clock& clock, size_t max_waiting);
  // Stops.
  ~SerialExecutor();

  // For what comes from outside. False: too much is waiting, or it has stopped; nothing is done.
  [[nodiscard]] bool TryPost(std::function<void()> task);
  // For what was asked for: always taken, unless it has stopped (false).
  bool Post(std::function<void()> task);
  // Replaces the task to be done at `at` on the clock's monotonic time, and the time.
  void WakeAt(int64_t at_micros, std::function<void()> task);

  // Does what is waiting, then ends the thread. Nothing is taken any more.
  void Stop();

 private:
  void Run();

  Clock& clock_;
  const size_t max_waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  int64_t wake_at_micros_ = INT64_MAX;
  std::function<void()> wake_task_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace wstore::service
