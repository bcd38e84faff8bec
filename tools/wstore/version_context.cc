#include "tools/wstore/version_context.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace wstore::cli {

VersionContext::VersionContext(const Store& store)
    : head(store.head().version), elements(store.manifest().elements()) {
  for (const TagInfo& tag : store.tags()) tags[tag.version].push_back(tag.name);
}

std::string VersionContext::Names(VersionId version) const {
  std::vector<std::string> names = TagsOf(version);
  if (version == head) names.insert(names.begin(), "head");
  return names.empty() ? "" : absl::StrCat("(", absl::StrJoin(names, ", "), ")");
}

std::vector<std::string> VersionContext::TagsOf(VersionId version) const {
  const auto found = tags.find(version);
  return found == tags.end() ? std::vector<std::string>() : found->second;
}

}  // namespace wstore::cli
