#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "tools/bench/bench.h"

namespace wstore::bench {

// What it takes to know where the elements of Qwen3-30B-A3B are on a rank of TP4.
absl::StatusOr<std::vector<Measurement>> MeasurePlan();

}  // namespace wstore::bench
