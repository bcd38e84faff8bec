// Chunks that come in their form at rest, on their way into a replica.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "wstore/replica.h"

namespace wstore::client {

// Unpacks and stages chunks in threads of its own, while more are received. One thread calls it.
// Memory: twice as many packed chunks as there are threads, and one unpacked for each.
class PackedStager {
 public:
  // Chunks are given the number of `transaction`. Both references must outlive it.
  PackedStager(Replica& replica, const Manifest& manifest, TransactionNumber transaction);
  // Drops what has not begun.
  ~PackedStager();

  // Waits while there is no room. False: one was refused, and nothing more is taken.
  bool Add(std::string packed);
  // Waits until all are staged.
  //   kDataLoss: a chunk that cannot be unpacked; errors of Replica::StageChunk
  absl::Status Finish();

 private:
  void Run();

  Replica& replica_;
  const Manifest& manifest_;
  const TransactionNumber transaction_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<std::string> waiting_;
  size_t working_ = 0;
  bool is_closed_ = false;
  absl::Status refused_;

  std::vector<std::thread> threads_;  // last: they use the others
};

}  // namespace wstore::client
