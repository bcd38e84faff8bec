// The demonstration's trainer, a process of its own.
#pragma once

#include <iosfwd>
#include <string>

#include "absl/status/status.h"

namespace wstore::demo {

// Trains the model and publishes it: a step for each line "step" of `in`, until that ends. Says
// what came of each in one JSON line.
//   kInvalidArgument: another line
absl::Status RunTrainer(const std::string& address, std::istream& in, std::ostream& out);

}  // namespace wstore::demo
