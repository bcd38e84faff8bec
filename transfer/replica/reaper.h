// Frees what is large where nobody waits for it: an engine stands still while an update is
// committed or taken back.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>

namespace wstore {

// Thread-safe.
class Reaper {
 public:
  // Without a thread, where the system gives none, it frees at once.
  Reaper();
  // Frees all that it has.
  ~Reaper();
  Reaper(const Reaper&) = delete;
  Reaper& operator=(const Reaper&) = delete;

  // Drops a reference, soon and elsewhere; at once if too many wait. Allocates nothing.
  void Take(std::shared_ptr<const void> garbage);

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable taken_;
  std::array<std::shared_ptr<const void>, 64> waiting_;
  size_t count_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace wstore
