// What a running server can be measured by.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/service/fleet_types.h"

namespace wstore::service {

// How many transactions ended in which way, and how long they took. Threads: any.
class TransactionFigures {
 public:
  // Upper bounds of the counted durations; longer ones are counted in the last place.
  static constexpr std::array<int64_t, 12> kBoundsMicros = {
      1'000,   2'500,     5'000,     10'000,    25'000,     50'000,
      100'000, 1'000'000, 2'500'000, 5'000'000, 10'000'000, 60'000'000};

  struct Row {
    uint64_t count = 0;
    int64_t sum_micros = 0;
    std::array<uint64_t, kBoundsMicros.size() + 1> by_duration = {};
  };
  using Key = std::pair<std::string, std::string>;  // "publish"..., "committed"...

  void Add(std::string_view why, std::string_view outcome, int64_t duration_micros);
  std::map<Key, Row> rows() const;

 private:
  mutable std::mutex mutex_;
  std::map<Key, Row> rows_;
};

struct ServerFigures {
  HeadState head;
  std::string state;  // as in Status
  uint64_t versions = 0;
  uint64_t journal_bytes = 0;
  uint32_t content_streams = 0;
  uint32_t watches = 0;
  uint32_t puts = 0;
  uint32_t ranks = 0;  // connections
  int64_t uptime_micros = 0;
  std::vector<WorkerRow> workers;
  std::map<TransactionFigures::Key, TransactionFigures::Row> transactions;
};

}  // namespace wstore::service
