// How much two versions differ, tensor by tensor.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "tools/wstore/store_access.h"

namespace wstore::cli {

struct DifferenceCount {
  std::map<TensorIndex, uint64_t> by_tensor;  // changed elements; only tensors with at least one
  uint64_t changed = 0;                       // in all
};

// Reads the patches between the versions, on all cores; decodes none.
//   kNotFound: no such version
//   kDataLoss: a patch is damaged
absl::StatusOr<DifferenceCount> CountDifference(StoreAccess& store, VersionId from, VersionId to);

// "24,797 of 422,912 elements (5.86%) in 10 of 13 tensors".
std::string Summary(uint64_t changed, uint64_t tensors, const BaseInfo& base);

// A table of the tensors that differ, and a line with the total.
std::string RenderDifference(const DifferenceCount& difference, const Manifest& manifest);

}  // namespace wstore::cli
