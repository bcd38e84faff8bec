#include "tools/wstore/version_context.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"

namespace wstore::cli {

absl::StatusOr<VersionContext> VersionContext::Load(StoreAccess& store) {
  VersionContext context;
  ASSIGN_OR_RETURN(AccessStatus status, store.Status());
  context.head = status.store.head.version;
  context.base = std::move(status.store.base);
  ASSIGN_OR_RETURN(const std::vector<TagInfo> tags, store.Tags());
  for (const TagInfo& tag : tags) context.tags[tag.version].push_back(tag.name);
  return context;
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
