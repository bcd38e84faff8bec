// A small generator that gives the same numbers everywhere, so that a seed is a scenario.
#pragma once

#include <cstdint>

namespace wstore::protocol::testing {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}

  uint64_t Next() {  // SplitMix64
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // In [low, high].
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Next() % static_cast<uint64_t>(high - low + 1));
  }
  bool OneIn(uint64_t n) { return Next() % n == 0; }
  bool Percent(uint64_t percent) { return Next() % 100 < percent; }

 private:
  uint64_t state_;
};

}  // namespace wstore::protocol::testing
