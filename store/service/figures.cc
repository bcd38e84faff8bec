#include "store/service/figures.h"

#include <algorithm>

namespace wstore::service {

void TransactionFigures::Add(std::string_view why, std::string_view outcome,
                             int64_t duration_micros) {
  const auto* const place =
      std::lower_bound(kBoundsMicros.begin(), kBoundsMicros.end(), duration_micros);
  const std::lock_guard<std::mutex> lock(mutex_);
  Row& row = rows_[{std::string(why), std::string(outcome)}];
  ++row.count;
  row.sum_micros += duration_micros;
  ++row.by_duration[static_cast<size_t>(place - kBoundsMicros.begin())];
}

std::map<TransactionFigures::Key, TransactionFigures::Row> TransactionFigures::rows() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return rows_;
}

}  // namespace wstore::service
