// What is said about versions beside their own facts: which is head, and their tags.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/wstore/store_access.h"

namespace wstore::cli {

struct VersionContext {
  static absl::StatusOr<VersionContext> Load(StoreAccess& store);

  // "(head, prod)" or "(candidate, bad)", or nothing.
  std::string Names(const VersionInfo& version) const;
  // By name; empty if there are none.
  std::vector<std::string> TagsOf(VersionId version) const;

  VersionId head;
  std::map<VersionId, std::vector<std::string>> tags;
  BaseInfo base;
};

// An attempt at a move that was refused; it is recorded, but is no move.
inline bool IsRefused(const MoveInfo& move) { return move.outcome != "committed"; }

}  // namespace wstore::cli
