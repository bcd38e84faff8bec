// Threads that are there before they are needed: once a write has begun, nothing may fail for want
// of a thread or of memory.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace wstore {

// Thread-safe; calls of Run take turns, first come, first served.
class WorkerPool {
 public:
  // Takes `threads`, of which the caller of Run is one, or as many as the system gives.
  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Workers are numbered from 0.
  int workers() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls work(worker, i) for each i in [0, count), each worker one at a time. Allocates nothing.
  // If `work` throws, the rest is left out and std::bad_alloc is thrown.
  void Run(uint64_t count, absl::FunctionRef<void(int worker, uint64_t i)> work);

 private:
  struct Job {
    uint64_t count;
    absl::FunctionRef<void(int, uint64_t)> work;
    std::atomic<uint64_t> next{0};
    std::atomic<bool> failed{false};
  };
  static void Work(Job* job, int worker);
  void RunThread(int worker);

  void TakeTurn();
  void EndTurn();

  std::mutex mutex_;
  uint64_t next_turn_ = 0;
  uint64_t turn_ = 0;  // whose Run it is
  std::condition_variable turned_;
  std::condition_variable started_;
  std::condition_variable finished_;
  Job* job_ = nullptr;
  uint64_t job_number_ = 0;
  size_t busy_ = 0;  // threads that have not yet finished the job
  bool stopping_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace wstore
