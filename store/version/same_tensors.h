// Whether two checkpoints have the same tensors, and in which they differ.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "wstore/manifest.h"

namespace wstore {

// Explains how the tensors of a checkpoint differ from the base's: OK if they do not.
//   kInvalidArgument: lists missing and added tensors and those of another dtype or shape
absl::Status CheckSameTensors(const Manifest& base, const Manifest& other);

// "'a', 'b' and 3 more", for messages.
std::string Listed(const std::vector<std::string>& items);

}  // namespace wstore
