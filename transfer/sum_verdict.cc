#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "wstore/regions.h"

namespace wstore {
namespace {

constexpr size_t kListedFaults = 16;

// The cells of one region, grouped by what they add up to.
struct Value {
  Fingerprint sum;
  std::vector<uint32_t> ranks;  // one entry per cell
};

class Judge {
 public:
  Judge(const RegionMap& map, absl::Span<const std::vector<Fingerprint>> cell_sums,
        absl::Span<const Fingerprint> tensor_sums)
      : map_(map), cell_sums_(cell_sums), tensor_sums_(tensor_sums) {}

  // Appends the faults of a tensor.
  void JudgeTensor(TensorIndex tensor, std::vector<SumFault>& faults) const {
    const auto regions = map_.regions(tensor);
    if (regions.empty()) return;
    Fingerprint agreed;  // the sum of the regions whose cells agree
    std::vector<std::vector<Value>> disputes;
    for (const Region& region : regions) {
      if (const Fingerprint* const sum = SumOfAll(region); sum != nullptr) {
        agreed += *sum;
      } else {
        disputes.push_back(Values(region));
      }
    }
    if (disputes.empty()) {
      if (agreed == tensor_sums_[tensor]) return;
      SumFault fault{SumFault::Kind::kTensorWrong, tensor, {}};
      for (const Region& region : regions) {
        for (const RegionHolder& holder : map_.holders(region)) fault.ranks.push_back(holder.rank);
      }
      Append(std::move(fault), faults);
      return;
    }
    SumFault differ{SumFault::Kind::kReplicasDiffer, tensor, {}};
    SumFault unsure{SumFault::Kind::kReplicasUnsure, tensor, {}};
    for (const std::vector<Value>& values : disputes) {
      const Value* right = nullptr;
      if (disputes.size() == 1) right = BySum(values, tensor_sums_[tensor] - agreed);
      if (right == nullptr) right = ByMajority(values);
      SumFault& fault = right == nullptr ? unsure : differ;
      for (const Value& value : values) {
        if (&value == right) continue;
        fault.ranks.insert(fault.ranks.end(), value.ranks.begin(), value.ranks.end());
      }
    }
    Append(std::move(differ), faults);
    Append(std::move(unsure), faults);
  }

 private:
  // What all holders have; null: they differ.
  const Fingerprint* SumOfAll(const Region& region) const {
    const Fingerprint* first = nullptr;
    for (const RegionHolder& holder : map_.holders(region)) {
      const Fingerprint& sum = cell_sums_[holder.rank][holder.cell];
      if (first == nullptr) first = &sum;
      if (sum != *first) return nullptr;
    }
    return first;
  }

  std::vector<Value> Values(const Region& region) const {
    std::vector<Value> values;
    for (const RegionHolder& holder : map_.holders(region)) {
      const Fingerprint& sum = cell_sums_[holder.rank][holder.cell];
      auto it = std::find_if(values.begin(), values.end(),
                             [&sum](const Value& value) { return value.sum == sum; });
      if (it == values.end()) it = values.insert(values.end(), {sum, {}});
      it->ranks.push_back(holder.rank);
    }
    return values;
  }

  static const Value* BySum(const std::vector<Value>& values, const Fingerprint& wanted) {
    // No two values are equal.
    for (const Value& value : values) {
      if (value.sum == wanted) return &value;
    }
    return nullptr;
  }

  static const Value* ByMajority(const std::vector<Value>& values) {
    size_t cells = 0;
    for (const Value& value : values) cells += value.ranks.size();
    for (const Value& value : values) {
      if (value.ranks.size() * 2 > cells) return &value;
    }
    return nullptr;
  }

  static void Append(SumFault fault, std::vector<SumFault>& faults) {
    if (fault.ranks.empty()) return;
    std::sort(fault.ranks.begin(), fault.ranks.end());
    fault.ranks.erase(std::unique(fault.ranks.begin(), fault.ranks.end()), fault.ranks.end());
    faults.push_back(std::move(fault));
  }

  const RegionMap& map_;
  const absl::Span<const std::vector<Fingerprint>> cell_sums_;
  const absl::Span<const Fingerprint> tensor_sums_;
};

void CheckShape(const RegionMap& map, absl::Span<const std::vector<Fingerprint>> cell_sums) {
  WSTORE_CHECK(cell_sums.size() == map.ranks());
  for (uint32_t rank = 0; rank < map.ranks(); ++rank) {
    WSTORE_CHECK(cell_sums[rank].size() == map.cells(rank).size());
  }
}

}  // namespace

std::string ToString(const SumFault& fault, const Manifest& manifest) {
  const std::string ranks =
      absl::StrCat(fault.ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(fault.ranks, ", "));
  const std::string& name = manifest.tensor(fault.tensor).spec.name;
  switch (fault.kind) {
    case SumFault::Kind::kReplicasDiffer:
      return absl::StrCat("tensor '", name, "': ", ranks,
                          fault.ranks.size() == 1 ? " differs" : " differ",
                          " from the right copies");
    case SumFault::Kind::kReplicasUnsure:
      return absl::StrCat("tensor '", name, "': the copies on ", ranks,
                          " differ, and which is right cannot be told");
    case SumFault::Kind::kTensorWrong:
      return absl::StrCat("tensor '", name, "': the parts on ", ranks,
                          " do not add up to its fingerprint");
  }
  return "";
}

std::string ToString(absl::Span<const SumFault> faults, const Manifest& manifest) {
  std::vector<std::string> texts;
  for (const SumFault& fault : faults.first(std::min(faults.size(), kListedFaults))) {
    texts.push_back(ToString(fault, manifest));
  }
  if (faults.size() > kListedFaults) {
    texts.push_back(absl::StrCat("and ", faults.size() - kListedFaults, " more"));
  }
  return absl::StrJoin(texts, ", ");
}

std::vector<SumFault> JudgeSums(const RegionMap& map,
                                absl::Span<const std::vector<Fingerprint>> cell_sums,
                                absl::Span<const Fingerprint> tensor_sums) {
  CheckShape(map, cell_sums);
  WSTORE_CHECK(tensor_sums.size() == map.tensors());
  std::vector<SumFault> faults;
  const Judge judge(map, cell_sums, tensor_sums);
  for (TensorIndex tensor = 0; tensor < map.tensors(); ++tensor) {
    judge.JudgeTensor(tensor, faults);
  }
  return faults;
}

absl::Status JudgeTouched(const RegionMap& map, const Manifest& manifest,
                          absl::Span<const absl::Span<const CellSums>> cells,
                          absl::Span<const TensorSums> declared) {
  WSTORE_CHECK(cells.size() == map.ranks());
  for (const bool after : {false, true}) {
    const auto side = [after](const TouchedSums& sums) { return after ? sums.after : sums.before; };
    std::vector<std::vector<Fingerprint>> found(map.ranks());
    for (uint32_t rank = 0; rank < map.ranks(); ++rank) {
      found[rank].resize(map.cells(rank).size());
      for (const CellSums& cell : cells[rank]) {
        if (cell.cell >= found[rank].size()) {
          return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " reports sums of cell ",
                                                         cell.cell, " of ", found[rank].size()));
        }
        found[rank][cell.cell] = side(cell.sums);
      }
    }
    std::vector<Fingerprint> expected(map.tensors());
    for (const TensorSums& tensor : declared) {
      if (tensor.tensor >= map.tensors()) {
        return absl::InvalidArgumentError(
            absl::StrCat("sums are declared of tensor ", tensor.tensor, " of ", map.tensors()));
      }
      expected[tensor.tensor] = side(tensor.sums);
    }
    const std::vector<SumFault> faults = JudgeSums(map, found, expected);
    if (faults.empty()) continue;
    return absl::DataLossError(
        absl::StrCat(after ? "the update does not lead to the declared weights: "
                           : "the weights here are not those that the update was made for: ",
                     ToString(faults, manifest)));
  }
  return absl::OkStatus();
}

std::vector<Fingerprint> RegionSums(const RegionMap& map,
                                    absl::Span<const std::vector<Fingerprint>> cell_sums) {
  CheckShape(map, cell_sums);
  std::vector<Fingerprint> sums;
  sums.reserve(map.regions().size());
  for (const Region& region : map.regions()) {
    const RegionHolder& first = map.holders(region)[0];
    sums.push_back(cell_sums[first.rank][first.cell]);
  }
  return sums;
}

std::vector<Fingerprint> RankTotals(const RegionMap& map,
                                    absl::Span<const Fingerprint> region_sums) {
  WSTORE_CHECK(region_sums.size() == map.regions().size());
  std::vector<Fingerprint> totals(map.ranks());
  for (uint32_t rank = 0; rank < map.ranks(); ++rank) {
    for (const Cell& cell : map.cells(rank)) totals[rank] += region_sums[cell.region];
  }
  return totals;
}

}  // namespace wstore
