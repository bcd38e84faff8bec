// What is said about versions beside their own facts: which is head, and their tags.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "wstore/store.h"

namespace wstore::cli {

struct VersionContext {
  explicit VersionContext(const Store& store);

  // "(head, prod)", or nothing.
  std::string Names(VersionId version) const;
  // By name; empty if there are none.
  std::vector<std::string> TagsOf(VersionId version) const;

  VersionId head;
  std::map<VersionId, std::vector<std::string>> tags;
  uint64_t elements = 0;  // of the model
};

}  // namespace wstore::cli
