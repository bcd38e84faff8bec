// Checkpoints of the model families that have placement rules: config.json and tensors.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "wstore/tensor.h"

namespace wstore::testing {

struct TestModel {
  nlohmann::json config;
  std::vector<TensorSpec> tensors;

  void Add(const std::string& name, Shape shape, Dtype dtype = Dtype::kBF16) {
    tensors.push_back({name, dtype, std::move(shape)});
  }
};

// Sizes of a decoder. Those of experts are for the MoE families.
struct DecoderSizes {
  uint64_t layers = 2;
  uint64_t hidden = 16;
  uint64_t heads = 4;
  uint64_t kv_heads = 2;
  uint64_t head_dim = 4;
  uint64_t intermediate = 24;
  uint64_t vocab = 100;
  bool is_tied = false;
  uint64_t experts = 4;
  uint64_t expert_intermediate = 8;
};

// "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM" or
// "MixtralForCausalLM". `has_biases`: those that config.json can turn on.
TestModel MakeDecoder(const std::string& architecture, const DecoderSizes& sizes,
                      bool has_biases = false);

// DeepSeek-V3. Sizes of latent attention are fixed and small; of kv_heads and head_dim nothing is
// used. `shared_experts`: how many. `first_dense`: layers without experts.
TestModel MakeDeepSeek(const DecoderSizes& sizes, bool has_query_lora, uint64_t shared_experts,
                       uint64_t first_dense);

// "BertModel", "BertForMaskedLM", "BertForSequenceClassification" or "XLMRobertaModel".
TestModel MakeBert(const std::string& architecture, const DecoderSizes& sizes,
                   const std::string& prefix);

}  // namespace wstore::testing
