// What one rank has of layers, experts and dimensions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "transfer/grouped_faults.h"
#include "transfer/model_config.h"
#include "wstore/placement_rules.h"

namespace wstore {

// What a rank has of a dimension: `count` elements of the checkpoint from `begin`, kept in `local`
// elements of memory, which may be more.
struct Share {
  uint64_t begin = 0;
  uint64_t count = 0;
  uint64_t local = 0;
};

class RankShares {
 public:
  // Keeps pointers to both.
  RankShares(const ModelConfig& config, const RankSpec& rank);

  // kInvalidArgument: ranks outside their sizes; stages that the architecture or its layers do not
  // have.
  static absl::Status Check(const ModelConfig& config, const RankSpec& rank);

  // Whether buffers of this scope are on this rank; `layer` is looked at for scopes of layers.
  bool Has(Scope scope, uint64_t layer) const;

  // Where this rank keeps an expert, if it does, and how many it has.
  std::optional<uint64_t> ExpertSlot(uint64_t expert) const;
  uint64_t LocalExperts() const;

  // Its share of the rows and columns of a tensor. Where these cannot be divided, that is noted.
  Share Rows(const PartRule& part, Group group, uint64_t rows, GroupedFaults& faults) const;
  Share Columns(const PartRule& part, Group group, uint64_t columns, GroupedFaults& faults) const;

 private:
  // Where a rank stands among those that share something.
  struct Place {
    uint64_t rank = 0;
    uint64_t size = 1;
  };

  static Share Divide(uint64_t size, const Place& place, std::string_view what,
                      GroupedFaults& faults);
  Share Heads(const PartRule& part, const Place& place, uint64_t rows, GroupedFaults& faults) const;
  const Place& PlaceIn(Group group) const;

  const ModelConfig* config_;
  const RankSpec* rank_;
  Place tensor_parallel_;
  Place experts_;         // among whom experts are spread
  Place in_expert_;       // among whom each expert is split
  Place shared_experts_;  // among whom shared experts are split
  uint64_t first_layer_ = 0;
  uint64_t end_layer_ = 0;
};

}  // namespace wstore
