#include "transfer/rank_shares.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/strings.h"

namespace wstore {
namespace {

constexpr uint64_t kVocabPadding = 64;
constexpr uint32_t kMaxRanks = 1 << 16;

// First layer of each stage, and one past the last: as even as can be; the layers left over go to
// the stages before the last, from the back, since the last one has the head.
std::vector<uint64_t> StageBounds(const RankSpec& rank, uint64_t layers) {
  std::vector<uint64_t> counts(rank.pp_layers.begin(), rank.pp_layers.end());
  if (counts.empty()) {
    counts.assign(rank.pp_size, layers / rank.pp_size);
    for (uint64_t i = 0; i < layers % rank.pp_size; ++i) ++counts[rank.pp_size - 2 - i];
  }
  std::vector<uint64_t> bounds(counts.size() + 1);
  std::partial_sum(counts.begin(), counts.end(), bounds.begin() + 1);
  return bounds;
}

}  // namespace

absl::Status RankShares::Check(const ModelConfig& config, const RankSpec& rank) {
  GroupedFaults faults;
  const auto check = [&faults](const char* name, uint32_t index, uint32_t size) {
    if (size == 0 || size > kMaxRanks || index >= size) {
      faults.Add("ranks", absl::StrCat(name, "_rank ", index, " with ", name, "_size ", size,
                                       " (sizes are 1 to ", kMaxRanks, ", ranks count from 0)"));
    }
  };
  check("tp", rank.tp_rank, rank.tp_size);
  check("pp", rank.pp_rank, rank.pp_size);
  check("dp", rank.dp_rank, rank.dp_size);
  if (rank.pp_size > 1 && !config.family().has_stages) {
    faults.Add("ranks", absl::StrCat("pp_size ", rank.pp_size, ", but architecture '",
                                     config.architecture(), "' has no pipeline stages"));
  }
  if (!rank.pp_layers.empty()) {
    const uint64_t sum = std::accumulate(rank.pp_layers.begin(), rank.pp_layers.end(), uint64_t{0});
    if (rank.pp_layers.size() != rank.pp_size || sum != config.layers()) {
      faults.Add("pp_layers", absl::StrCat(rank.pp_layers.size(), " stages of ", sum,
                                           " layers together; the model has ", config.layers(),
                                           " layers, and pp_size is ", rank.pp_size));
    }
  }
  return faults.ToStatus();
}

RankShares::RankShares(const ModelConfig& config, const RankSpec& rank)
    : config_(&config), rank_(&rank) {
  tensor_parallel_ = {rank.tp_rank, rank.tp_size};
  const Place all{uint64_t{rank.dp_rank} * rank.tp_size + rank.tp_rank,
                  uint64_t{rank.tp_size} * rank.dp_size};
  experts_ = rank.expert_parallel ? all : Place{};
  in_expert_ = rank.expert_parallel ? Place{} : all;
  const bool is_sequence_parallel = rank.sequence_parallel_moe.value_or(
      rank.expert_parallel && rank.tp_size > 1 && rank.dp_size > 1);
  shared_experts_ = is_sequence_parallel ? Place{} : tensor_parallel_;
  const std::vector<uint64_t> stages = StageBounds(rank, config.layers());
  first_layer_ = stages[rank.pp_rank];
  end_layer_ = stages[rank.pp_rank + 1];
}

bool RankShares::Has(Scope scope, uint64_t layer) const {
  const bool is_last = rank_->pp_rank + 1 == rank_->pp_size;
  const bool has_all_ends = config_->family().ends_on_every_stage;
  switch (scope) {
    case Scope::kInput:
      return has_all_ends || rank_->pp_rank == 0 || (is_last && config_->is_tied());
    case Scope::kOutput:
      return has_all_ends || is_last;
    case Scope::kLayer:
    case Scope::kDenseLayer:
    case Scope::kExpertLayer:
    case Scope::kPredictionLayer:
      return layer >= first_layer_ && layer < end_layer_;
  }
  return false;
}

uint64_t RankShares::LocalExperts() const {
  // The first (experts mod ranks) ranks have one more than the others.
  const uint64_t experts = config_->size(Size::kExperts);
  return experts / experts_.size + (experts_.rank < experts % experts_.size ? 1 : 0);
}

std::optional<uint64_t> RankShares::ExpertSlot(uint64_t expert) const {
  if (rank_->expert_order == ExpertOrder::kRoundRobin) {
    if (expert % experts_.size != experts_.rank) return std::nullopt;
    return expert / experts_.size;
  }
  const uint64_t experts = config_->size(Size::kExperts);
  const uint64_t first =
      experts_.rank * (experts / experts_.size) + std::min(experts_.rank, experts % experts_.size);
  if (expert < first || expert >= first + LocalExperts()) return std::nullopt;
  return expert - first;
}

Share RankShares::Divide(uint64_t size, const Place& place, std::string_view what,
                         GroupedFaults& faults) {
  if (size % place.size != 0) {
    faults.Add("sizes that cannot be divided",
               absl::StrCat(ToAbsl(what), " ", size, " among ", place.size, " ranks"));
    return {};
  }
  const uint64_t count = size / place.size;
  return {place.rank * count, count, count};
}

Share RankShares::Heads(const PartRule& part, const Place& place, uint64_t rows,
                        GroupedFaults& faults) const {
  const bool is_kv = part.split == Split::kKvHeads;
  const uint64_t heads = is_kv ? config_->kv_heads() : config_->heads();
  if (heads == 0) return {};  // noted as missing
  Place of_heads = place;
  if (is_kv && place.size > heads && place.size % heads == 0) {
    of_heads = {place.rank / (place.size / heads), heads};  // several ranks have the same head
  }
  const Share share =
      Divide(heads, of_heads, is_kv ? "'num_key_value_heads'" : "'num_attention_heads'", faults);
  const uint64_t head_rows = rows / heads;
  return {share.begin * head_rows, share.count * head_rows, share.local * head_rows};
}

const RankShares::Place& RankShares::PlaceIn(Group group) const {
  switch (group) {
    case Group::kExperts:
      return in_expert_;
    case Group::kSharedExperts:
      return shared_experts_;
    case Group::kTensorParallel:
      break;
  }
  return tensor_parallel_;
}

Share RankShares::Rows(const PartRule& part, Group group, uint64_t rows,
                       GroupedFaults& faults) const {
  const Place& place = PlaceIn(group);
  const std::string name = SizeName(part.rows, config_->family());
  switch (part.split) {
    case Split::kWhole:
    case Split::kColumns:
      break;
    case Split::kRows:
      return Divide(rows, place, name, faults);
    case Split::kHeads:
    case Split::kKvHeads:
      return Heads(part, place, rows, faults);
    case Split::kVocab: {
      const uint64_t padded = (rows + kVocabPadding - 1) / kVocabPadding * kVocabPadding;
      Share share = Divide(padded, place, absl::StrCat(name, ", padded to"), faults);
      share.begin = std::min(share.begin, rows);
      share.count = std::min(share.count, rows - share.begin);
      return share;
    }
  }
  return {0, rows, rows};
}

Share RankShares::Columns(const PartRule& part, Group group, uint64_t columns,
                          GroupedFaults& faults) const {
  if (part.split != Split::kColumns) return {0, columns, columns};
  return Divide(columns, PlaceIn(group), SizeName(part.columns, config_->family()), faults);
}

}  // namespace wstore
