// What the simulated replicas hold, and the sums over it: a tensor of twelve words that the ranks
// of an instance share out, and one of two words of which every rank has a copy. Sums and verdicts
// are the real ones, of wstore/fingerprint.h and wstore/regions.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "wstore/regions.h"

namespace wstore::protocol::testing {

using Memory = std::vector<uint64_t>;

constexpr size_t kSharedWords = 12;
constexpr size_t kCopiedWords = 2;
constexpr size_t kVersionWords = kSharedWords + kCopiedWords;  // the shared ones first

// How an instance of some number of ranks holds a version. Its ranks hold the same number of words:
// their part of the shared ones, then the copied ones. Immutable; lives as long as the program.
class Sharding {
 public:
  // `paired`: every part is held by two ranks, where their number is even.
  static const Sharding& Of(uint32_t ranks, bool paired);

  size_t words() const { return part_words_ + kCopiedWords; }
  // Where word `word` of a rank lies in a version.
  size_t Place(uint32_t rank, size_t word) const;
  // What a rank holds of a version.
  Memory Held(uint32_t rank, const Memory& version) const;
  // Whether more than one rank holds it, so that the odd copy can be found.
  bool HasCopies(size_t word) const { return word >= part_words_ || ranks_ > parts_; }

  // The sum over those words of `memory` in [begin, end) that the step from one version to the
  // other changes.
  Fingerprint Sum(uint32_t rank, const Memory& memory, const Memory& from, const Memory& to,
                  size_t begin, size_t end) const;
  // What a rank with `memory` finds that the step does to its cells.
  std::vector<CellSums> Foretell(uint32_t rank, const Memory& memory, const Memory& from,
                                 const Memory& to) const;
  // As the service judges them. `cells`: by rank.
  absl::Status Judge(const std::vector<std::vector<CellSums>>& cells, const Memory& from,
                     const Memory& to) const;

 private:
  Sharding(uint32_t ranks, bool paired);

  uint32_t ranks_;
  uint32_t parts_;
  size_t part_words_;
  std::vector<uint32_t> shared_cell_;  // by rank
  std::vector<uint32_t> copied_cell_;
  std::vector<RegionMap> map_;  // one
};

// Whether a message says "rank 3" or "ranks 1, 3".
bool Names(const std::string& message, uint32_t rank);

}  // namespace wstore::protocol::testing
