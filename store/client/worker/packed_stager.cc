#include "store/client/worker/packed_stager.h"

#include <algorithm>
#include <utility>

#include "common/job_thread.h"
#include "common/parallel.h"
#include "common/status_macros.h"
#include "wstore/chunk.h"
#include "wstore/chunk_header.h"

namespace wstore::client {
namespace {

constexpr int kMostThreads = 4;

absl::Status Stage(Replica& replica, const Manifest& manifest, TransactionNumber transaction,
                   const std::string& packed) {
  ASSIGN_OR_RETURN(std::string chunk, UnpackChunk(packed, manifest));
  ReplaceHeader(transaction, 0, &chunk);
  return replica.StageChunk(chunk);
}

}  // namespace

PackedStager::PackedStager(Replica& replica, const Manifest& manifest,
                           TransactionNumber transaction)
    : replica_(replica), manifest_(manifest), transaction_(transaction) {}

PackedStager::~PackedStager() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closed_ = true;
    waiting_.clear();
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

bool PackedStager::Add(std::string packed) {
  // Most ways come as one or the other: threads are for those that need them.
  while (threads_.size() < static_cast<size_t>(std::min(DefaultParallelism(), kMostThreads))) {
    threads_.emplace_back([this] { Run(); });
  }
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return waiting_.size() < 2 * threads_.size() || !refused_.ok(); });
  if (!refused_.ok()) return false;
  waiting_.push_back(std::move(packed));
  changed_.notify_all();
  return true;
}

absl::Status PackedStager::Finish() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return (waiting_.empty() || !refused_.ok()) && working_ == 0; });
  return refused_;
}

void PackedStager::Run() {
  NameThread("ws-unpack");
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return is_closed_ || (!waiting_.empty() && refused_.ok()); });
    if (is_closed_) return;
    const std::string packed = std::move(waiting_.front());
    waiting_.pop_front();
    ++working_;
    lock.unlock();
    const absl::Status status = Stage(replica_, manifest_, transaction_, packed);
    lock.lock();
    --working_;
    if (refused_.ok()) refused_ = status;
    changed_.notify_all();
  }
}

}  // namespace wstore::client
