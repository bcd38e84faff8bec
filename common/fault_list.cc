#include "common/fault_list.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/strings.h"

namespace wstore {

void FaultList::Add(std::string fault) {
  if (shown_.size() < kMostShown) shown_.push_back(std::move(fault));
  ++count_;
}

std::string FaultList::Text(std::string_view separator) const {
  std::string text = absl::StrJoin(shown_, ToAbsl(separator));
  if (count_ > shown_.size()) {
    absl::StrAppend(&text, ToAbsl(separator), "and ", count_ - shown_.size(), " more");
  }
  return text;
}

absl::Status FaultList::ToStatus() const {
  return empty() ? absl::OkStatus() : absl::InvalidArgumentError(Text());
}

std::string Shown(std::string_view name) {
  constexpr size_t kMaxShown = 200;
  std::string_view shown = name.substr(0, kMaxShown);
  const bool is_cut = shown.size() < name.size();
  // A character of several bytes is kept whole.
  while (is_cut && !shown.empty() && (name[shown.size()] & 0xC0) == 0x80) shown.remove_suffix(1);
  return absl::StrCat(absl::Utf8SafeCHexEscape(ToAbsl(shown)), is_cut ? "..." : "");
}

std::string Quoted(std::string_view name) { return absl::StrCat("'", Shown(name), "'"); }

std::string Bytes(uint64_t count) { return absl::StrCat(count, count == 1 ? " byte" : " bytes"); }

}  // namespace wstore
