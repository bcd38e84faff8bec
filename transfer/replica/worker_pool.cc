#include "transfer/replica/worker_pool.h"

#include <new>
#include <system_error>

namespace wstore {

WorkerPool::WorkerPool(int threads) {
  try {
    for (int worker = 1; worker < threads; ++worker) {
      threads_.emplace_back([this, worker] { RunThread(worker); });
    }
  } catch (const std::system_error&) {
    // Fewer threads are only slower.
  } catch (const std::bad_alloc&) {
  }
}

WorkerPool::~WorkerPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  started_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::Work(Job* job, int worker) {
  try {
    while (!job->failed.load(std::memory_order_relaxed)) {
      const uint64_t i = job->next.fetch_add(1, std::memory_order_relaxed);
      if (i >= job->count) return;
      job->work(worker, i);
    }
  } catch (...) {
    job->failed.store(true, std::memory_order_relaxed);
  }
}

void WorkerPool::RunThread(int worker) {
  uint64_t seen = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    started_.wait(lock, [&] { return stopping_ || job_number_ != seen; });
    if (stopping_) return;
    seen = job_number_;
    Job* const job = job_;
    lock.unlock();
    Work(job, worker);
    lock.lock();
    if (--busy_ == 0) finished_.notify_one();
  }
}

void WorkerPool::TakeTurn() {
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t mine = next_turn_++;
  turned_.wait(lock, [&] { return turn_ == mine; });
}

void WorkerPool::EndTurn() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++turn_;
  turned_.notify_all();
}

void WorkerPool::Run(uint64_t count, absl::FunctionRef<void(int, uint64_t)> work) {
  TakeTurn();
  Job job{count, work};
  // One item is done sooner than a thread wakes up.
  if (count > 1 && !threads_.empty()) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      ++job_number_;
      busy_ = threads_.size();
    }
    started_.notify_all();
    Work(&job, 0);
    std::unique_lock<std::mutex> lock(mutex_);
    finished_.wait(lock, [this] { return busy_ == 0; });
  } else {
    Work(&job, 0);
  }
  EndTurn();
  if (job.failed.load(std::memory_order_relaxed)) throw std::bad_alloc();
}

}  // namespace wstore
