#include "store/service/differences.h"

#include "common/status_macros.h"
#include "wstore/patch_digest.h"

namespace wstore::service {

absl::StatusOr<std::shared_ptr<const DifferenceInfo>> Differences::Get(VersionId from,
                                                                       VersionId to) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Way way{from, to};
  for (const auto& [known, info] : kept_) {
    if (known == way) return info;
  }
  const std::shared_ptr<Store> store = live_.store();
  if (store == nullptr) {
    return absl::UnavailableError("the journal is being reopened; try again");
  }
  DifferenceInfo info;
  if (from == to) {
    info.patch_digest = PatchDigester(live_.manifest()).Finish();
  } else {
    ASSIGN_OR_RETURN(info, store->DescribeDifference(from, to));
  }
  kept_.emplace_back(way, std::make_shared<const DifferenceInfo>(std::move(info)));
  if (kept_.size() > keep_) kept_.pop_front();
  return kept_.back().second;
}

}  // namespace wstore::service
