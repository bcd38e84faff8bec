// Seeds of randomized tests: printed always, taken from WSTORE_TEST_SEED where it is set.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

namespace wstore::testing {

// A seed that differs from run to run, or WSTORE_TEST_SEED. Prints it.
inline uint64_t TestSeed(const char* what) {
  const char* const fixed = std::getenv("WSTORE_TEST_SEED");
  const uint64_t seed = fixed != nullptr ? std::stoull(fixed) : std::random_device()();
  std::cout << what << ": WSTORE_TEST_SEED=" << seed << std::endl;
  return seed;
}

}  // namespace wstore::testing
