#include "wstore/deadline.h"

#include <algorithm>

#include "common/clock.h"

namespace wstore {
namespace {

constexpr int64_t kLongestMicros = int64_t{100} * 365 * 24 * 3600 * 1'000'000;

}  // namespace

Deadline Deadline::After(int64_t micros) {
  return Deadline(SystemClock().NowMonotonicMicros() +
                  std::clamp<int64_t>(micros, 0, kLongestMicros));
}

int64_t Deadline::left_micros() const {
  return std::max<int64_t>(0, at_micros_ - SystemClock().NowMonotonicMicros());
}

}  // namespace wstore
