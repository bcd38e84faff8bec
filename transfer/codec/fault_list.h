// Faults of one kind, collected for one error message of bounded length.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace wstore {

class FaultList {
 public:
  void Add(std::string fault) {
    if (faults_.size() < kMostShown) {
      faults_.push_back(std::move(fault));
    } else {
      ++others_;
    }
  }

  bool empty() const { return faults_.empty(); }
  uint64_t size() const { return faults_.size() + others_; }

  // "first; second; and 7 more".
  std::string Join(const char* separator) const {
    std::string text = absl::StrJoin(faults_, separator);
    if (others_ > 0) absl::StrAppend(&text, separator, "and ", others_, " more");
    return text;
  }

 private:
  static constexpr size_t kMostShown = 100;
  std::vector<std::string> faults_;
  uint64_t others_ = 0;
};

}  // namespace wstore
