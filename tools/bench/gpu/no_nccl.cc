// The benchmark of whole updates where there is CUDA, but no NCCL to build it with.
#include "tools/bench/bench.h"

namespace wstore::bench {

absl::StatusOr<std::vector<Measurement>> RunGpuUpdate(const Options&) {
  return absl::UnavailableError("this wstore was built without NCCL's header, nccl.h");
}

}  // namespace wstore::bench
