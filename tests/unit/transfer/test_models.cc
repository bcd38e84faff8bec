#include "tests/unit/transfer/test_models.h"

namespace wstore::testing {
namespace {

void AddGatedMlp(TestModel& model, const std::string& name, uint64_t intermediate,
                 uint64_t hidden) {
  model.Add(name + ".gate_proj.weight", {intermediate, hidden});
  model.Add(name + ".up_proj.weight", {intermediate, hidden});
  model.Add(name + ".down_proj.weight", {hidden, intermediate});
}

void AddEnds(TestModel& model, const DecoderSizes& sizes) {
  model.Add("model.embed_tokens.weight", {sizes.vocab, sizes.hidden});
  model.Add("model.norm.weight", {sizes.hidden});
  if (!sizes.is_tied) model.Add("lm_head.weight", {sizes.vocab, sizes.hidden});
  model.config["num_hidden_layers"] = sizes.layers;
  model.config["hidden_size"] = sizes.hidden;
  model.config["num_attention_heads"] = sizes.heads;
  model.config["intermediate_size"] = sizes.intermediate;
  model.config["vocab_size"] = sizes.vocab;
  model.config["tie_word_embeddings"] = sizes.is_tied;
}

}  // namespace

TestModel MakeDecoder(const std::string& architecture, const DecoderSizes& sizes, bool has_biases) {
  TestModel model;
  AddEnds(model, sizes);
  model.config["architectures"] = {architecture};
  model.config["num_key_value_heads"] = sizes.kv_heads;
  model.config["head_dim"] = sizes.head_dim;
  const bool is_llama = architecture == "LlamaForCausalLM";
  const bool is_qwen3_moe = architecture == "Qwen3MoeForCausalLM";
  const bool is_mixtral = architecture == "MixtralForCausalLM";
  const bool has_qk_norm = is_qwen3_moe || architecture == "Qwen3ForCausalLM";
  const bool has_qkv_bias =
      architecture == "Qwen2ForCausalLM" || (has_biases && (is_llama || has_qk_norm));
  const bool has_other_biases = has_biases && is_llama;
  if (has_biases && !is_mixtral) model.config["attention_bias"] = true;
  if (has_other_biases) model.config["mlp_bias"] = true;
  if (is_qwen3_moe) {
    model.config["num_experts"] = sizes.experts;
    model.config["moe_intermediate_size"] = sizes.expert_intermediate;
    model.config["decoder_sparse_step"] = 1;
    model.config["mlp_only_layers"] = nlohmann::json::array();
  }
  if (is_mixtral) {
    model.config["num_local_experts"] = sizes.experts;
    model.config["intermediate_size"] = sizes.expert_intermediate;
  }
  const uint64_t q = sizes.heads * sizes.head_dim;
  const uint64_t kv = sizes.kv_heads * sizes.head_dim;
  for (uint64_t i = 0; i < sizes.layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i);
    model.Add(layer + ".input_layernorm.weight", {sizes.hidden});
    model.Add(layer + ".post_attention_layernorm.weight", {sizes.hidden});
    const std::string attention = layer + ".self_attn";
    model.Add(attention + ".q_proj.weight", {q, sizes.hidden});
    model.Add(attention + ".k_proj.weight", {kv, sizes.hidden});
    model.Add(attention + ".v_proj.weight", {kv, sizes.hidden});
    model.Add(attention + ".o_proj.weight", {sizes.hidden, q});
    if (has_qkv_bias) {
      model.Add(attention + ".q_proj.bias", {q});
      model.Add(attention + ".k_proj.bias", {kv});
      model.Add(attention + ".v_proj.bias", {kv});
    }
    if (has_qk_norm) {
      model.Add(attention + ".q_norm.weight", {sizes.head_dim});
      model.Add(attention + ".k_norm.weight", {sizes.head_dim});
    }
    if (has_other_biases) {
      model.Add(attention + ".o_proj.bias", {sizes.hidden});
      model.Add(layer + ".mlp.gate_proj.bias", {sizes.intermediate});
      model.Add(layer + ".mlp.up_proj.bias", {sizes.intermediate});
      model.Add(layer + ".mlp.down_proj.bias", {sizes.hidden});
    }
    if (is_qwen3_moe) {
      model.Add(layer + ".mlp.gate.weight", {sizes.experts, sizes.hidden});
      for (uint64_t e = 0; e < sizes.experts; ++e) {
        AddGatedMlp(model, layer + ".mlp.experts." + std::to_string(e), sizes.expert_intermediate,
                    sizes.hidden);
      }
    } else if (is_mixtral) {
      const std::string moe = layer + ".block_sparse_moe";
      model.Add(moe + ".gate.weight", {sizes.experts, sizes.hidden});
      for (uint64_t e = 0; e < sizes.experts; ++e) {
        const std::string expert = moe + ".experts." + std::to_string(e);
        model.Add(expert + ".w1.weight", {sizes.expert_intermediate, sizes.hidden});
        model.Add(expert + ".w2.weight", {sizes.hidden, sizes.expert_intermediate});
        model.Add(expert + ".w3.weight", {sizes.expert_intermediate, sizes.hidden});
      }
    } else {
      AddGatedMlp(model, layer + ".mlp", sizes.intermediate, sizes.hidden);
    }
  }
  return model;
}

TestModel MakeDeepSeek(const DecoderSizes& sizes, bool has_query_lora, uint64_t shared_experts,
                       uint64_t first_dense) {
  constexpr uint64_t kQueryLora = 6;
  constexpr uint64_t kKvLora = 5;
  constexpr uint64_t kNope = 4;
  constexpr uint64_t kRope = 2;
  constexpr uint64_t kValue = 3;
  TestModel model;
  AddEnds(model, sizes);
  model.config.update({{"architectures", {"DeepseekV3ForCausalLM"}},
                       {"num_key_value_heads", sizes.heads},
                       {"kv_lora_rank", kKvLora},
                       {"qk_nope_head_dim", kNope},
                       {"qk_rope_head_dim", kRope},
                       {"v_head_dim", kValue},
                       {"n_routed_experts", sizes.experts},
                       {"n_shared_experts", shared_experts},
                       {"moe_intermediate_size", sizes.expert_intermediate},
                       {"first_k_dense_replace", first_dense},
                       {"moe_layer_freq", 1},
                       {"topk_method", "noaux_tc"},
                       {"num_nextn_predict_layers", 1}});
  model.config["q_lora_rank"] = nullptr;
  if (has_query_lora) model.config["q_lora_rank"] = kQueryLora;
  for (uint64_t i = 0; i < sizes.layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i);
    const std::string attention = layer + ".self_attn";
    model.Add(layer + ".input_layernorm.weight", {sizes.hidden});
    model.Add(layer + ".post_attention_layernorm.weight", {sizes.hidden});
    if (has_query_lora) {
      model.Add(attention + ".q_a_proj.weight", {kQueryLora, sizes.hidden});
      model.Add(attention + ".q_a_layernorm.weight", {kQueryLora});
      model.Add(attention + ".q_b_proj.weight", {sizes.heads * (kNope + kRope), kQueryLora});
    } else {
      model.Add(attention + ".q_proj.weight", {sizes.heads * (kNope + kRope), sizes.hidden});
    }
    model.Add(attention + ".kv_a_proj_with_mqa.weight", {kKvLora + kRope, sizes.hidden});
    model.Add(attention + ".kv_a_layernorm.weight", {kKvLora});
    model.Add(attention + ".kv_b_proj.weight", {sizes.heads * (kNope + kValue), kKvLora});
    model.Add(attention + ".o_proj.weight", {sizes.hidden, sizes.heads * kValue});
    if (i < first_dense) {
      AddGatedMlp(model, layer + ".mlp", sizes.intermediate, sizes.hidden);
      continue;
    }
    model.Add(layer + ".mlp.gate.weight", {sizes.experts, sizes.hidden});
    model.Add(layer + ".mlp.gate.e_score_correction_bias", {sizes.experts}, Dtype::kF32);
    for (uint64_t e = 0; e < sizes.experts; ++e) {
      AddGatedMlp(model, layer + ".mlp.experts." + std::to_string(e), sizes.expert_intermediate,
                  sizes.hidden);
    }
    if (shared_experts > 0) {
      AddGatedMlp(model, layer + ".mlp.shared_experts", sizes.expert_intermediate * shared_experts,
                  sizes.hidden);
    }
  }
  // The layer that predicts the token after the next.
  const std::string prediction = "model.layers." + std::to_string(sizes.layers);
  model.Add(prediction + ".eh_proj.weight", {sizes.hidden, 2 * sizes.hidden});
  model.Add(prediction + ".embed_tokens.weight", {sizes.vocab, sizes.hidden});
  return model;
}

TestModel MakeBert(const std::string& architecture, const DecoderSizes& sizes,
                   const std::string& prefix) {
  constexpr uint64_t kPositions = 70;
  constexpr uint64_t kTypes = 2;
  const uint64_t h = sizes.heads * sizes.head_dim;
  TestModel model;
  model.config = {{"architectures", {architecture}},
                  {"num_hidden_layers", sizes.layers},
                  {"hidden_size", h},
                  {"num_attention_heads", sizes.heads},
                  {"intermediate_size", sizes.intermediate},
                  {"vocab_size", sizes.vocab},
                  {"max_position_embeddings", kPositions},
                  {"type_vocab_size", kTypes},
                  {"tie_word_embeddings", true}};
  const auto add_linear = [&model](const std::string& name, uint64_t out, uint64_t in) {
    model.Add(name + ".weight", {out, in}, Dtype::kF32);
    model.Add(name + ".bias", {out}, Dtype::kF32);
  };
  // Old checkpoints of BERT have other names for the parts of a LayerNorm.
  const bool is_old = architecture == "BertForMaskedLM";
  const auto add_norm = [&](const std::string& name) {
    model.Add(name + (is_old ? ".gamma" : ".weight"), {h}, Dtype::kF32);
    model.Add(name + (is_old ? ".beta" : ".bias"), {h}, Dtype::kF32);
  };
  model.Add(prefix + "embeddings.word_embeddings.weight", {sizes.vocab, h}, Dtype::kF32);
  model.Add(prefix + "embeddings.position_embeddings.weight", {kPositions, h}, Dtype::kF32);
  model.Add(prefix + "embeddings.token_type_embeddings.weight", {kTypes, h}, Dtype::kF32);
  model.Add(prefix + "embeddings.position_ids", {1, kPositions}, Dtype::kI64);
  add_norm(prefix + "embeddings.LayerNorm");
  for (uint64_t i = 0; i < sizes.layers; ++i) {
    const std::string layer = prefix + "encoder.layer." + std::to_string(i);
    for (const char* part : {"query", "key", "value"}) {
      add_linear(layer + ".attention.self." + part, h, h);
    }
    add_linear(layer + ".attention.output.dense", h, h);
    add_norm(layer + ".attention.output.LayerNorm");
    add_linear(layer + ".intermediate.dense", sizes.intermediate, h);
    add_linear(layer + ".output.dense", h, sizes.intermediate);
    add_norm(layer + ".output.LayerNorm");
  }
  add_linear(prefix + "pooler.dense", h, h);
  if (architecture == "BertForMaskedLM") {
    add_linear("cls.predictions.transform.dense", h, h);
    add_norm("cls.predictions.transform.LayerNorm");
    model.Add("cls.predictions.bias", {sizes.vocab}, Dtype::kF32);
    add_linear("cls.seq_relationship", 2, h);
  }
  if (architecture == "BertForSequenceClassification") {
    model.config["id2label"] = {{"0", "a"}, {"1", "b"}, {"2", "c"}};
    add_linear("classifier", 3, h);
  }
  return model;
}

}  // namespace wstore::testing
