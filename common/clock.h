// Time, injectable so that tests and simulations decide what it is.
#pragma once

#include <cstdint>
#include <string>

namespace wstore {

class Clock {
 public:
  virtual ~Clock() = default;
  // Microseconds since the Unix epoch. May jump; for display only.
  virtual int64_t NowUnixMicros() = 0;
  // Microseconds of a clock that never goes back and counts time suspended. For durations and
  // leases.
  virtual int64_t NowMonotonicMicros() = 0;
};

// The machine's clocks. Never destroyed.
Clock& SystemClock();

// "2026-11-29T14:28:22.123456Z".
std::string FormatRfc3339(int64_t unix_micros);

}  // namespace wstore
