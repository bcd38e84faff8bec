// Work on all cores, with bounded memory and a deterministic order where one is wanted.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"

namespace wstore {

// The number of threads to use: the processors that this process may run on.
int DefaultParallelism();

// Calls `work(i)` for every i in [0, count) from `threads` threads (1: in the caller's), or from as
// many as the system gives. The first error stops the rest and is returned (the one of the lowest i
// that failed). Blocks until all threads have ended. `work` must be safe to call from several
// threads, and must not throw.
absl::Status ParallelFor(uint64_t count, int threads,
                         const std::function<absl::Status(uint64_t)>& work);

// As ParallelFor, and calls `deliver(i)` in the order of i, one at a time, after work(i). At most
// `window` items are worked on or waiting for delivery at any time, which bounds what they hold.
// Deliver runs in whichever thread comes by; an error of either stops everything.
absl::Status ParallelOrdered(uint64_t count, int threads, uint64_t window,
                             const std::function<absl::Status(uint64_t)>& work,
                             const std::function<absl::Status(uint64_t)>& deliver);

}  // namespace wstore
