// Numbers that look random and are the same everywhere, for models and workloads that are made.
#pragma once

#include <cstdint>

namespace wstore {

// splitmix64 (Steele, Lea and Flood 2014). No source of secrets.
class SplitMix {
 public:
  explicit SplitMix(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

}  // namespace wstore
