// Checkpoints that look like trained weights, made quickly.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace wstore::bench {

struct Workload {
  uint64_t elements = 0;
  // Tensors of this many elements; the last takes the rest.
  uint64_t tensor_elements = 0;
  double density = 0;  // share of elements that the changed checkpoint changes, by one unit
  uint64_t seed = 1;

  uint64_t tensors() const { return (elements + tensor_elements - 1) / tensor_elements; }
};

// Writes two safetensors files of bf16: normal weights with sigma 0.02, and the same with the
// elements of `density` one unit in the last place up or down. Either path may be empty: not
// written.
absl::Status WriteCheckpoints(const Workload& workload, const std::string& base_path,
                              const std::string& changed_path);

// "0.02%", "1%", "40%".
std::string DensityName(double density);

}  // namespace wstore::bench
