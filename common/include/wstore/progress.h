// How long work tells how far it is.
#pragma once

#include <cstdint>
#include <functional>

namespace wstore {

// Called with the bytes done so far and in all, from any of the working threads, one at a time,
// with `done` never going back. Must return quickly. May be empty: no reports.
using ProgressFn = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

}  // namespace wstore
