// What is known of the ways between versions: costly to compute, asked for by every rank of a fleet
// at once.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/statusor.h"
#include "store/live.h"
#include "wstore/store.h"

namespace wstore::service {

// Threads: any. Whoever asks for what is being computed waits for it.
class Differences {
 public:
  // `live` must outlive it. Keeps the `keep` latest.
  Differences(LiveStore& live, size_t keep) : live_(live), keep_(keep) {}

  // Blocks. A way from a version to itself has no changes.
  //   errors as for Store::DescribeDifference; kUnavailable: the journal is being reopened
  absl::StatusOr<std::shared_ptr<const DifferenceInfo>> Get(VersionId from, VersionId to);

 private:
  using Way = std::pair<VersionId, VersionId>;

  LiveStore& live_;
  const size_t keep_;
  std::mutex mutex_;  // held while one is computed: all would ask for the same
  std::deque<std::pair<Way, std::shared_ptr<const DifferenceInfo>>> kept_;
};

}  // namespace wstore::service
