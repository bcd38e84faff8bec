#include "transfer/replica/reaper.h"

#include <new>
#include <system_error>
#include <utility>

namespace wstore {

Reaper::Reaper() {
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {
  }
}

Reaper::~Reaper() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  taken_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Reaper::Take(std::shared_ptr<const void> garbage) {
  if (garbage == nullptr || !thread_.joinable()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (count_ == waiting_.size()) return;
  waiting_[count_++] = std::move(garbage);
  taken_.notify_one();
}

void Reaper::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    taken_.wait(lock, [this] { return stopping_ || count_ > 0; });
    if (count_ == 0) return;
    std::shared_ptr<const void> garbage = std::move(waiting_[--count_]);
    lock.unlock();
    garbage.reset();
    lock.lock();
  }
}

}  // namespace wstore
