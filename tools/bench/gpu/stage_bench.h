// Staging of chunks that lie in device memory, as part of the benchmark of applying.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "tools/bench/bench.h"
#include "tools/bench/gpu/gpu.h"

namespace wstore::bench {

absl::StatusOr<std::vector<Measurement>> MeasureStaging(const Gpu& gpu);

}  // namespace wstore::bench
