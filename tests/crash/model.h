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
  return {{"large", {"BF16", {1024, 600}, RandomBytes(random, 1024 * 600 * 2)}},
          {"small", {"F32", {7}, RandomBytes(random, 28)}}};
}

// Turns publish n - 1 into publish n. Every third publish is large enough to be staged in a file of
// its own.
inline void MutateCrashModel(uint64_t n, NaiveTensors* tensors) {
  std::mt19937_64 random(n);
  for (auto& [name, tensor] : *tensors) {
    std::string& bytes = tensor.bytes;
    const uint64_t stride = n % 3 == 0 ? 8 : 512;
    for (uint64_t at = random() % 8; at + 8 <= bytes.size(); at += stride) {
      const uint64_t value = random();
      bytes.replace(at, 8, reinterpret_cast<const char*>(&value), 8);
    }
  }
}

}  // namespace wstore::testing
