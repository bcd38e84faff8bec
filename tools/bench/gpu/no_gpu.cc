// The benchmarks of GPUs where there is no CUDA to build them with.
#include "tools/bench/bench.h"

namespace wstore::bench {
namespace {

absl::Status WithoutCuda() {
  return absl::UnavailableError(
      "this wstore was built without CUDA; build it where the CUDA toolkit is found, with the "
      "CMake "
      "option WSTORE_WITH_CUDA=ON");
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> RunGpuApply(const Options&) { return WithoutCuda(); }
absl::StatusOr<std::vector<Measurement>> RunGpuAudit(const Options&) { return WithoutCuda(); }
absl::StatusOr<std::vector<Measurement>> RunGpuDiff(const Options&) { return WithoutCuda(); }
absl::StatusOr<std::vector<Measurement>> RunGpuUpdate(const Options&) { return WithoutCuda(); }

}  // namespace wstore::bench
