// A gRPC stream that does nothing else: what a server's streams are measured against.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace wstore::bench {

// Seconds that `bytes` take through a unix socket in `directory`, in messages of 2 MiB, from a
// server in this process.
absl::StatusOr<double> TimeBareStream(const std::string& directory, uint64_t bytes);

}  // namespace wstore::bench
