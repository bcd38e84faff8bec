// Weights that are a function of the version number, so that two processes agree on them.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "tests/support/naive_safetensors.h"

namespace wstore::testing {

// v0.
inline NaiveTensors CrashModelBase() {
  std::mt19937_64 random(42);
  return {{"large", {"BF16", {1024, 1500}, RandomBytes(random, 1024 * 1500 * 2)}},
          {"small", {"F32", {7}, RandomBytes(random, 28)}}};
}

// Turns publish n - 1 into publish n. Every third publish is large enough to be staged in a file of
// its own.
inline void MutateCrashModel(uint64_t n, NaiveTensors* tensors) {
  std::mt19937_64 random(n);
  const double density = n % 3 == 0 ? 0.6 : 0.001;
  for (auto& [name, tensor] : *tensors) {
    tensor.bytes[0] = static_cast<char>(n);
    const auto changes = static_cast<uint64_t>(density * static_cast<double>(tensor.bytes.size()));
    for (uint64_t i = 0; i < changes; ++i) {
      tensor.bytes[random() % tensor.bytes.size()] = static_cast<char>(random());
    }
  }
}

}  // namespace wstore::testing
