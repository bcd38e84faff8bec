#include "common/parallel.h"

#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "common/check.h"

namespace wstore {
namespace {

// The shared state of one ParallelOrdered call.
class OrderedRun {
 public:
  OrderedRun(uint64_t count, uint64_t window, const std::function<absl::Status(uint64_t)>& work,
             const std::function<absl::Status(uint64_t)>& deliver)
      : count_(count), window_(window), work_(work), deliver_(deliver), done_(window, false) {}

  void RunThread() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      turn_.wait(lock,
                 [this] { return failed_ || next_ >= count_ || next_ < delivered_ + window_; });
      if (failed_ || next_ >= count_) return;
      const uint64_t item = next_++;
      lock.unlock();
      const absl::Status status = work_(item);
      lock.lock();
      if (!status.ok()) {
        Fail(item, status);
        return;
      }
      done_[item % window_] = true;
      DeliverReady(lock);
    }
  }

  absl::Status status() const { return status_; }

 private:
  void Fail(uint64_t item, const absl::Status& status) {
    if (!failed_ || item < failed_item_) {
      status_ = status;
      failed_item_ = item;
    }
    failed_ = true;
    turn_.notify_all();
  }

  // Delivers what is ready and in turn. Only one thread delivers at a time; another that comes by
  // leaves its item to it.
  void DeliverReady(std::unique_lock<std::mutex>& lock) {
    if (delivering_) return;
    delivering_ = true;
    while (!failed_ && delivered_ < count_ && done_[delivered_ % window_]) {
      const uint64_t item = delivered_;
      lock.unlock();
      const absl::Status status = deliver_(item);
      lock.lock();
      if (!status.ok()) {
        Fail(item, status);
        break;
      }
      done_[item % window_] = false;
      ++delivered_;
      turn_.notify_all();
    }
    delivering_ = false;
  }

  const uint64_t count_;
  const uint64_t window_;
  const std::function<absl::Status(uint64_t)>& work_;
  const std::function<absl::Status(uint64_t)>& deliver_;

  std::mutex mutex_;
  std::condition_variable turn_;
  std::vector<bool> done_;  // by item modulo window_
  uint64_t next_ = 0;
  uint64_t delivered_ = 0;
  bool delivering_ = false;
  bool failed_ = false;
  uint64_t failed_item_ = 0;
  absl::Status status_;
};

}  // namespace

int DefaultParallelism() {
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0) return 1;
  return std::max(1, CPU_COUNT(&cpus));
}

absl::Status ParallelOrdered(uint64_t count, int threads, uint64_t window,
                             const std::function<absl::Status(uint64_t)>& work,
                             const std::function<absl::Status(uint64_t)>& deliver) {
  WSTORE_CHECK(threads >= 1 && window >= 1);
  OrderedRun run(count, window, work, deliver);
  const uint64_t useful = std::min<uint64_t>({static_cast<uint64_t>(threads), count, window});
  std::vector<std::thread> others;
  others.reserve(useful);
  try {
    for (uint64_t i = 1; i < useful; ++i) others.emplace_back([&run] { run.RunThread(); });
  } catch (const std::system_error&) {
    // Fewer threads are only slower.
  } catch (const std::bad_alloc&) {
  }
  run.RunThread();
  for (std::thread& thread : others) thread.join();
  return run.status();
}

absl::Status ParallelFor(uint64_t count, int threads,
                         const std::function<absl::Status(uint64_t)>& work) {
  const auto nothing = [](uint64_t) { return absl::OkStatus(); };
  return ParallelOrdered(count, threads, 4 * static_cast<uint64_t>(threads), work, nothing);
}

}  // namespace wstore
