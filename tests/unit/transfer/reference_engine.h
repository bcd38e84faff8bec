// What an engine keeps, put together by slicing and stacking matrices of element indices: the
// reference that placement rules are compared with. It knows the engine, and nothing of layouts.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/unit/transfer/test_models.h"
#include "wstore/manifest.h"
#include "wstore/placement_rules.h"

namespace wstore::testing {

// An element of a tensor, or padding.
inline constexpr int64_t kPadding = -1;
inline constexpr int64_t kTensorStep = int64_t{1} << 32;
inline int64_t ElementId(TensorIndex tensor, uint64_t element) {
  return tensor * kTensorStep + static_cast<int64_t>(element);
}

// The parameters of one rank by name, row-major.
std::map<std::string, std::vector<int64_t>> LoadParameters(const TestModel& model,
                                                           const Manifest& manifest,
                                                           const RankSpec& rank);

}  // namespace wstore::testing
