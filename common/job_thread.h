// A named thread that runs jobs one after another.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace wstore {

class JobThread {
 public:
  // `name`: at most 15 characters, as the system shows it. `begin` is called first in the thread.
  JobThread(const std::string& name, std::function<void()> begin);
  ~JobThread() { Stop(); }

  // Whoever posts keeps count: a worker has at most a few jobs at a time. After Stop: nothing.
  void Post(std::function<void()> job);
  // Waits for the job that runs; forgets the others.
  void Stop();

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::thread thread_;
};

// Names the calling thread.
void NameThread(const std::string& name);

}  // namespace wstore
