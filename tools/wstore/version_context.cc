#include "tools/wstore/version_context.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace wstore::cli {

VersionContext::VersionContext(const Store& store)
    : head(store.head().version), elements(store.manifest().elements()) {
  for (const TagInfo& tag : store.tags()) tags[tag.version].push_back(tag.name);
}

std::string VersionContext::Names(const VersionInfo& version) const {
  std::vector<std::string> names;
  if (version.version == head) names.emplace_back("head");
  if (version.candidate) names.emplace_back("candidate");
  if (version.bad.has_value()) names.emplace_back("bad");
  for (const std::string& tag : TagsOf(version.version)) names.push_back(tag);
  return names.empty() ? "" : absl::StrCat("(", absl::StrJoin(names, ", "), ")");
}

std::vector<std::string> VersionContext::TagsOf(VersionId version) const {
  const auto found = tags.find(version);
  return found == tags.end() ? std::vector<std::string>() : found->second;
}

}  // namespace wstore::cli
