#include "common/parallel.h"

#include <atomic>
#include <vector>

#include "tests/support/catch.h"

namespace wstore {
namespace {

TEST_CASE("ParallelFor visits every item once") {
  for (const int threads : {1, 2, 7}) {
    for (const uint64_t count : {0, 1, 2, 1000}) {
      std::vector<std::atomic<int>> seen(count);
      REQUIRE_OK(ParallelFor(count, threads, [&](uint64_t i) {
        ++seen[i];
        return absl::OkStatus();
      }));
      for (const auto& times : seen) REQUIRE(times == 1);
    }
  }
}

TEST_CASE("ParallelOrdered delivers in order and holds no more than its window") {
  constexpr uint64_t kCount = 500;
  constexpr uint64_t kWindow = 3;
  std::vector<uint64_t> delivered;
  std::atomic<uint64_t> started = 0;
  std::atomic<uint64_t> ended = 0;
  std::atomic<uint64_t> most = 0;
  REQUIRE_OK(ParallelOrdered(
      kCount, 4, kWindow,
      [&](uint64_t) {
        const uint64_t held = ++started - ended;
        uint64_t seen = most;
        while (held > seen && !most.compare_exchange_weak(seen, held)) {
        }
        return absl::OkStatus();
      },
      [&](uint64_t i) {
        delivered.push_back(i);
        ++ended;
        return absl::OkStatus();
      }));
  REQUIRE(delivered.size() == kCount);
  for (uint64_t i = 0; i < kCount; ++i) REQUIRE(delivered[i] == i);
  REQUIRE(most <= kWindow);
}

TEST_CASE("an error of work or delivery ends a parallel run and is returned") {
  const auto ok = [](uint64_t) { return absl::OkStatus(); };
  const auto fail_at_7 = [](uint64_t i) {
    return i == 7 ? absl::DataLossError("seven") : absl::OkStatus();
  };
  REQUIRE_ERROR(ParallelOrdered(100, 3, 5, fail_at_7, ok), absl::StatusCode::kDataLoss, "seven");
  REQUIRE_ERROR(ParallelOrdered(100, 3, 5, ok, fail_at_7), absl::StatusCode::kDataLoss, "seven");
  REQUIRE_ERROR(ParallelFor(8, 1, fail_at_7), absl::StatusCode::kDataLoss, "seven");
}

}  // namespace
}  // namespace wstore
