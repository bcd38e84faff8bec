// Faults of one kind, collected so that a message tells all of them and not only the first.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace wstore {

class FaultList {
 public:
  // So many are shown; the rest is counted, so that neither memory nor a message grows with the
  // input.
  static constexpr size_t kMostShown = 100;

  void Add(std::string fault);
  bool empty() const { return count_ == 0; }
  uint64_t size() const { return count_; }

  // "first; second; and 3 more".
  std::string Text(std::string_view separator = "; ") const;

  // OK if empty, else kInvalidArgument with Text().
  absl::Status ToStatus() const;

 private:
  std::vector<std::string> shown_;
  uint64_t count_ = 0;
};

// A name from a file as a message shows it: control characters escaped, cut where it is long.
std::string Shown(std::string_view name);
// The same in quotes.
std::string Quoted(std::string_view name);

// "1 byte", "8 bytes".
std::string Bytes(uint64_t count);

}  // namespace wstore
