// What placements and layouts mean, by plain loops: the reference that the tests compare with.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "wstore/layout.h"

namespace wstore::testing {

// (checkpoint element, local element) of all elements of a placement, in loop order.
inline std::vector<std::pair<uint64_t, uint64_t>> ElementsOf(const Placement& placement) {
  std::vector<std::pair<uint64_t, uint64_t>> elements;
  const std::function<void(size_t, uint64_t, uint64_t)> loop = [&](size_t k, uint64_t from,
                                                                   uint64_t to) {
    if (k == placement.dims.size()) {
      elements.emplace_back(from, to);
      return;
    }
    for (uint64_t i = 0; i < placement.dims[k].count; ++i) {
      loop(k + 1, from + i * placement.dims[k].checkpoint_stride,
           to + i * placement.dims[k].local_stride);
    }
  };
  loop(0, placement.checkpoint_offset, placement.local_offset);
  return elements;
}

inline uint64_t Below(std::mt19937_64& random, uint64_t limit) {
  return std::uniform_int_distribution<uint64_t>(0, limit - 1)(random);
}

// One tensor after another by name, so that indices are those of the list.
inline Manifest MakeManifest(std::vector<TensorSpec> specs) {
  return *Manifest::Create(std::move(specs));
}

}  // namespace wstore::testing
