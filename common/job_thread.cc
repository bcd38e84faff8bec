#include "common/job_thread.h"

#include <pthread.h>

#include <utility>

namespace wstore {

void NameThread(const std::string& name) { pthread_setname_np(pthread_self(), name.c_str()); }

JobThread::JobThread(const std::string& name, std::function<void()> begin)
    : thread_([this, name, begin = std::move(begin)] {
        NameThread(name);
        if (begin) begin();
        Run();
      }) {}

void JobThread::Post(std::function<void()> job) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_) return;
  jobs_.push_back(std::move(job));
  changed_.notify_one();
}

void JobThread::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    jobs_.clear();
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void JobThread::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;  // what it holds may take its time to go
    lock.lock();
  }
}

}  // namespace wstore
