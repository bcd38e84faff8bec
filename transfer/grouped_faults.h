// Collects what is wrong with a request, so that one message lists all faults of one kind together.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace wstore {

class GroupedFaults {
 public:
  // `kind` is a headline such as "placements out of range"; `item` names one case.
  void Add(std::string_view kind, std::string item) {
    Kind& entry = Find(kind);
    ++entry.count;
    if (entry.items.size() < kMaxListed) entry.items.push_back(std::move(item));
  }

  bool empty() const { return kinds_.empty(); }
  // kInvalidArgument with all faults, or OK.
  absl::Status ToStatus() const {
    if (empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrJoin(kinds_, "; ", [](std::string* out, const Kind& kind) {
          absl::StrAppend(out, kind.name, ": ", absl::StrJoin(kind.items, ", "));
          if (kind.count > kind.items.size()) {
            absl::StrAppend(out, ", and ", kind.count - kind.items.size(), " more");
          }
        }));
  }

 private:
  static constexpr size_t kMaxListed = 20;

  struct Kind {
    std::string name;
    std::vector<std::string> items;
    size_t count = 0;
  };

  Kind& Find(std::string_view name) {
    for (Kind& kind : kinds_) {
      if (kind.name == name) return kind;
    }
    kinds_.push_back({std::string(name), {}, 0});
    return kinds_.back();
  }

  std::vector<Kind> kinds_;
};

}  // namespace wstore
