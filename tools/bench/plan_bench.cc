// The plan of wstore bench apply: where each element of a large model is on a rank.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tools/bench/harness.h"
#include "tools/bench/plan_bench.h"
#include "wstore/placement_rules.h"
#include "wstore/regions.h"
#include "wstore/replica.h"

namespace wstore::bench {
namespace {

constexpr int kRepetitions = 5;
constexpr uint32_t kRanks = 4;

constexpr char kConfig[] = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
  "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
  "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
  "intermediate_size": 6144, "decoder_sparse_step": 1, "mlp_only_layers": [],
  "norm_topk_prob": true, "vocab_size": 151936, "tie_word_embeddings": false,
  "attention_bias": false, "torch_dtype": "bfloat16"})";

// The tensors of Qwen3-30B-A3B.
std::vector<TensorSpec> Tensors() {
  std::vector<TensorSpec> specs;
  const auto add = [&specs](std::string name, Shape shape) {
    specs.push_back({std::move(name), Dtype::kBF16, std::move(shape)});
  };
  add("model.embed_tokens.weight", {151936, 2048});
  add("model.norm.weight", {2048});
  add("lm_head.weight", {151936, 2048});
  for (int i = 0; i < 48; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    const std::string attention = layer + "self_attn.";
    add(attention + "q_proj.weight", {4096, 2048});
    add(attention + "k_proj.weight", {512, 2048});
    add(attention + "v_proj.weight", {512, 2048});
    add(attention + "o_proj.weight", {2048, 4096});
    add(attention + "q_norm.weight", {128});
    add(attention + "k_norm.weight", {128});
    add(layer + "input_layernorm.weight", {2048});
    add(layer + "post_attention_layernorm.weight", {2048});
    add(layer + "mlp.gate.weight", {128, 2048});
    for (int expert = 0; expert < 128; ++expert) {
      const std::string name = absl::StrCat(layer, "mlp.experts.", expert, ".");
      add(name + "gate_proj.weight", {768, 2048});
      add(name + "up_proj.weight", {768, 2048});
      add(name + "down_proj.weight", {2048, 768});
    }
  }
  return specs;
}

absl::StatusOr<std::shared_ptr<const Layout>> LayoutOf(const Manifest& manifest, uint32_t rank) {
  RankSpec spec;
  spec.tp_rank = rank;
  spec.tp_size = kRanks;
  ASSIGN_OR_RETURN(Layout layout, MakeLayout(kConfig, manifest, spec, 1));
  return std::make_shared<const Layout>(std::move(layout));
}

// The votes of all ranks on an update that changes every tensor.
absl::StatusOr<double> MeasureJudging(const Manifest& manifest, const RegionMap& map) {
  std::vector<TensorSums> declared(manifest.size());
  for (TensorIndex i = 0; i < manifest.size(); ++i) declared[i].tensor = i;
  std::vector<std::vector<CellSums>> votes(map.ranks());
  uint64_t next = 1;
  for (const Region& region : map.regions()) {
    Fingerprint sum;
    sum.lanes = {next++, next++};
    declared[region.tensor].sums.after += sum;
    for (const RegionHolder& holder : map.holders(region)) {
      votes[holder.rank].push_back({holder.cell, {{}, sum}});
    }
  }
  const std::vector<absl::Span<const CellSums>> spans(votes.begin(), votes.end());
  return Median(kRepetitions, [&] {
    return Seconds([&] { return JudgeTouched(map, manifest, spans, declared); });
  });
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> MeasurePlan() {
  const std::vector<TensorSpec> specs = Tensors();
  ASSIGN_OR_RETURN(const double listed, Median(kRepetitions, [&] {
                     return Seconds([&] { return Manifest::Create(specs).status(); });
                   }));
  ASSIGN_OR_RETURN(const Manifest manifest, Manifest::Create(specs));
  const FingerprintKey key(Sha256().Update("base").Finish());
  ASSIGN_OR_RETURN(const double placed, Median(kRepetitions, [&] {
                     return Seconds([&] { return LayoutOf(manifest, 1).status(); });
                   }));
  std::vector<std::shared_ptr<const Layout>> layouts;
  std::vector<const Layout*> pointers;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    ASSIGN_OR_RETURN(layouts.emplace_back(), LayoutOf(manifest, rank));
    pointers.push_back(layouts.back().get());
  }
  ASSIGN_OR_RETURN(const double mapped, Median(kRepetitions, [&] {
                     return Seconds([&] { return RegionMap::Create(manifest, pointers).status(); });
                   }));
  ASSIGN_OR_RETURN(RegionMap map, RegionMap::Create(manifest, pointers));
  ASSIGN_OR_RETURN(const double judged, MeasureJudging(manifest, map));
  ReplicaPlacement placement;
  placement.layout = layouts[1];
  placement.regions = std::make_shared<const RegionMap>(std::move(map));
  placement.rank = 1;
  // Nothing is read when a replica is attached: addresses are all that it takes.
  std::vector<LocalBuffer> buffers;
  uintptr_t address = 1 << 20;
  for (uint32_t i = 0; i < layouts[1]->buffers().size(); ++i) {
    const uint64_t size_bytes = layouts[1]->buffer_bytes(i);
    buffers.push_back({reinterpret_cast<void*>(address), size_bytes});
    address += (size_bytes + 255) / 256 * 256;
  }
  ASSIGN_OR_RETURN(const double attached, Median(kRepetitions, [&] {
                     return Seconds([&] {
                       return Replica::Attach(manifest, key, placement, buffers, {}).status();
                     });
                   }));
  const std::string model = absl::StrCat("Qwen3-30B-A3B, ", specs.size(), " tensors, TP4");
  const std::string rival = "a manifest of the same tensors";
  return std::vector<Measurement>{
      {"apply", absl::StrCat("plan, ", model), attached, "s", rival, listed, 0},
      {"apply", absl::StrCat("layout by rules, ", model), placed, "s", rival, listed, 0},
      {"apply", absl::StrCat("region map of 4 ranks, ", model), mapped, "s", rival, listed, 0},
      {"apply", absl::StrCat("judging 4 votes, ", model), judged, "s", rival, listed, 0},
  };
}

}  // namespace wstore::bench
