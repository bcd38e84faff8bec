// Layouts from a model's config.json and a rank's place: how vLLM places the weights of the
// architectures that it has rules for here. docs/design/placement.md says what the rules are and
// where in vLLM each comes from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "wstore/layout.h"

namespace wstore {

// Which experts a rank has under expert parallelism. Where their number cannot be divided, the
// first ranks have one more.
enum class ExpertOrder {
  kLinear,  // neighbours: 0 to 3 on the first rank of four with 16 experts
  // 0, 4, 8, 12 on the first rank. vLLM 0.33 falls back to kLinear, whatever it was asked for, with
  // models whose experts have no groups (all but DeepSeek), with load balancing, and with all2all
  // backends other than DeepEP low latency and NIXL.
  kRoundRobin,
};

// The place of one rank in its engine. Ranks count from 0.
struct RankSpec {
  uint32_t tp_rank = 0;  // tensor parallelism
  uint32_t tp_size = 1;
  uint32_t pp_rank = 0;  // pipeline parallelism
  uint32_t pp_size = 1;
  uint32_t dp_rank = 0;  // data parallelism
  uint32_t dp_size = 1;
  // Experts are spread over all tp_size x dp_size ranks, whole. If not, each expert is split over
  // these.
  bool expert_parallel = false;
  ExpertOrder expert_order = ExpertOrder::kLinear;

  // Layers of each pipeline stage, as in VLLM_PP_LAYER_PARTITION. Empty: as even as can be.
  std::vector<uint32_t> pp_layers;
  // Whether lm_head shares the memory of the input embedding. None: as vLLM 0.33 does if the
  // checkpoint's lm_head, where it has one, equals the embedding: if config.json says so, but not
  // if there is an lm_head and pipeline stages keep the two apart. Say false if they are unequal.
  std::optional<bool> tie_word_embeddings;
  // Whether the shared experts of DeepSeek are whole on every rank (sequence parallelism). None:
  // with expert parallelism over tp_size > 1 and dp_size > 1, as vLLM does with most all2all
  // backends.
  std::optional<bool> sequence_parallel_moe;
};

// The layout of a rank. `config_json`: the text of the checkpoint's config.json. Buffers have the
// names, shapes and padding of vLLM's parameters, in the dtype of the checkpoint.
//   kInvalidArgument, with everything of one kind listed:
//     - no rules for the architecture, which is named, as are those that have rules
//     - a quantised checkpoint: weights that are packed with scales, or requantised on loading
//     - config.json is not JSON, or lacks a size that a rule needs
//     - ranks outside their sizes; numbers of heads, dimensions or a padded vocabulary that
//       cannot be divided among them
//     - tensors that the rules need and the checkpoint lacks; that have another shape than
//       config.json says; that are fused but of unlike dtypes; that no rule places
absl::StatusOr<Layout> MakeLayout(std::string_view config_json, const Manifest& manifest,
                                  const RankSpec& rank, uint64_t generation);

// The architectures that have rules, as config.json names them, in alphabetical order.
std::vector<std::string> ArchitecturesWithRules();

}  // namespace wstore
