// Pages of long lists, without copying the lists.
#include <algorithm>
#include <iterator>

#include "store/live.h"

namespace wstore {
namespace {

// The places `begin` to before `end`, counted from the last of the first `all` in `list`.
template <typename List, typename Visit>
void VisitLatest(const List& list, size_t all, size_t begin, size_t end, const Visit& visit) {
  const size_t newer = list.size() - std::min(all, list.size());
  begin += newer;
  end = std::min(end + newer, list.size());
  if (begin >= end) return;
  auto it = std::next(list.rbegin(), static_cast<ptrdiff_t>(begin));
  for (size_t i = begin; i < end; ++i, ++it) visit(*it);
}

}  // namespace

size_t LiveStore::CountVersions() const {
  const absl::StatusOr<std::shared_ptr<StoreImpl>> store = OpenedStore();
  if (!store.ok()) return 0;
  const std::lock_guard<std::mutex> lock((*store)->mutex_);
  return (*store)->state_.versions().size();
}

size_t LiveStore::CountMoves() const {
  const absl::StatusOr<std::shared_ptr<StoreImpl>> store = OpenedStore();
  if (!store.ok()) return 0;
  const std::lock_guard<std::mutex> lock((*store)->mutex_);
  return (*store)->state_.moves().size();
}

std::vector<VersionInfo> LiveStore::LatestVersions(size_t all, size_t begin, size_t end) const {
  std::vector<VersionInfo> versions;
  const absl::StatusOr<std::shared_ptr<StoreImpl>> store = OpenedStore();
  if (!store.ok()) return versions;
  const std::lock_guard<std::mutex> lock((*store)->mutex_);
  VisitLatest((*store)->state_.versions(), all, begin, end,
              [&](const auto& entry) { versions.push_back(entry.second.info); });
  return versions;
}

std::vector<MoveInfo> LiveStore::LatestMoves(size_t all, size_t begin, size_t end) const {
  std::vector<MoveInfo> moves;
  const absl::StatusOr<std::shared_ptr<StoreImpl>> store = OpenedStore();
  if (!store.ok()) return moves;
  const std::lock_guard<std::mutex> lock((*store)->mutex_);
  VisitLatest((*store)->state_.moves(), all, begin, end,
              [&](const MoveInfo& move) { moves.push_back(move); });
  return moves;
}

}  // namespace wstore
