// Between two GPUs: what frames make of NCCL's broadcast.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace wstore::bench {

// Medians, in seconds, of the slower of both sides.
struct BroadcastTimes {
  double frames = 0;  // `bytes` as frames of a transfer group, each awaited and released
  double bare = 0;    // in one ncclBroadcast
  double dense = 0;   // `dense_bytes` in one, which may be more than the devices have room for
};

// Device `root` sends, the other receives.
absl::StatusOr<BroadcastTimes> MeasureBroadcast(int root, int other, uint64_t bytes,
                                                uint64_t dense_bytes);

}  // namespace wstore::bench
