#include "common/clock.h"

#include <time.h>

#include "absl/strings/str_format.h"

namespace wstore {
namespace {

constexpr int64_t kMicrosPerSecond = 1000000;

int64_t Read(clockid_t id) {
  timespec now{};
  clock_gettime(id, &now);
  return now.tv_sec * kMicrosPerSecond + now.tv_nsec / 1000;
}

class RealClock final : public Clock {
 public:
  int64_t NowUnixMicros() override { return Read(CLOCK_REALTIME); }
  int64_t NowMonotonicMicros() override { return Read(CLOCK_BOOTTIME); }
};

}  // namespace

Clock& SystemClock() {
  static RealClock* const clock = new RealClock;
  return *clock;
}

std::string FormatRfc3339(int64_t unix_micros) {
  int64_t micros = unix_micros % kMicrosPerSecond;
  if (micros < 0) micros += kMicrosPerSecond;
  const time_t seconds = (unix_micros - micros) / kMicrosPerSecond;
  tm utc{};
  gmtime_r(&seconds, &utc);
  return absl::StrFormat("%04d-%02d-%02dT%02d:%02d:%02d.%06dZ", utc.tm_year + 1900, utc.tm_mon + 1,
                         utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, micros);
}

}  // namespace wstore
