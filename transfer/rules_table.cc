#include "transfer/rules_table.h"

namespace wstore {
namespace {

// --- Rules for buffers that hold one tensor of the same name. ---

constexpr BufferRule Vector(std::string_view name, Scope scope, Size size,
                            When when = When::kAlways, Split split = Split::kWhole) {
  return {name, scope, {{{name, size, Size::kNone, split}}}, when};
}

constexpr BufferRule Matrix(std::string_view name, Scope scope, Size rows, Size columns,
                            Split split = Split::kWhole, When when = When::kAlways,
                            Group group = Group::kTensorParallel) {
  return {name, scope, {{{name, rows, columns, split}}}, when, group};
}

// --- Pieces that decoders share. ---

constexpr BufferRule kDecoderEnds[] = {
    Matrix("{prefix}embed_tokens.weight", Scope::kInput, Size::kVocab, Size::kHidden,
           Split::kVocab),
    Vector("{prefix}norm.weight", Scope::kOutput, Size::kHidden),
    Matrix("lm_head.weight", Scope::kOutput, Size::kVocab, Size::kHidden, Split::kVocab,
           When::kUntied),
};

constexpr BufferRule kAttention[] = {
    Vector("{layer}.input_layernorm.weight", Scope::kLayer, Size::kHidden),
    Vector("{layer}.post_attention_layernorm.weight", Scope::kLayer, Size::kHidden),
    {"{layer}.self_attn.qkv_proj.weight",
     Scope::kLayer,
     {{{"{layer}.self_attn.q_proj.weight", Size::kQueries, Size::kHidden, Split::kHeads},
       {"{layer}.self_attn.k_proj.weight", Size::kKeys, Size::kHidden, Split::kKvHeads},
       {"{layer}.self_attn.v_proj.weight", Size::kKeys, Size::kHidden, Split::kKvHeads}}}},
    Matrix("{layer}.self_attn.o_proj.weight", Scope::kLayer, Size::kHidden, Size::kQueries,
           Split::kColumns),
};

constexpr BufferRule QkvBias(When when) {
  return {"{layer}.self_attn.qkv_proj.bias",
          Scope::kLayer,
          {{{"{layer}.self_attn.q_proj.bias", Size::kQueries, Size::kNone, Split::kHeads},
            {"{layer}.self_attn.k_proj.bias", Size::kKeys, Size::kNone, Split::kKvHeads},
            {"{layer}.self_attn.v_proj.bias", Size::kKeys, Size::kNone, Split::kKvHeads}}},
          when};
}

constexpr BufferRule kQkNorm[] = {
    Vector("{layer}.self_attn.q_norm.weight", Scope::kLayer, Size::kHeadDim),
    Vector("{layer}.self_attn.k_norm.weight", Scope::kLayer, Size::kHeadDim),
    QkvBias(When::kQkvBias),
};

constexpr BufferRule kMlp[] = {
    {"{layer}.mlp.gate_up_proj.weight",
     Scope::kDenseLayer,
     {{{"{layer}.mlp.gate_proj.weight", Size::kIntermediate, Size::kHidden, Split::kRows},
       {"{layer}.mlp.up_proj.weight", Size::kIntermediate, Size::kHidden, Split::kRows}}}},
    Matrix("{layer}.mlp.down_proj.weight", Scope::kDenseLayer, Size::kHidden, Size::kIntermediate,
           Split::kColumns),
};

constexpr std::string_view kDecoderPrefixes[] = {"model."};

constexpr IgnoreRule kRotary[] = {
    {"{layer}.self_attn.rotary_emb.inv_freq", Scope::kLayer},
};

// --- Llama (models/llama.py, models/mistral.py) ---

constexpr std::string_view kLlama[] = {"LlamaForCausalLM", "MistralForCausalLM"};

constexpr BufferRule kLlamaBiases[] = {
    QkvBias(When::kQkvBias),
    Vector("{layer}.self_attn.o_proj.bias", Scope::kLayer, Size::kHidden, When::kOutputBias),
    {"{layer}.mlp.gate_up_proj.bias",
     Scope::kLayer,
     {{{"{layer}.mlp.gate_proj.bias", Size::kIntermediate, Size::kNone, Split::kRows},
       {"{layer}.mlp.up_proj.bias", Size::kIntermediate, Size::kNone, Split::kRows}}},
     When::kMlpBias},
    Vector("{layer}.mlp.down_proj.bias", Scope::kLayer, Size::kHidden, When::kMlpBias),
};

// --- Qwen2, Qwen3 (models/qwen2.py, models/qwen3.py) ---

constexpr std::string_view kQwen2[] = {"Qwen2ForCausalLM"};
constexpr BufferRule kQwen2Biases[] = {QkvBias(When::kAlways)};

constexpr std::string_view kQwen3[] = {"Qwen3ForCausalLM"};

// --- Qwen3-MoE (models/qwen3_moe.py) ---

constexpr std::string_view kQwen3Moe[] = {"Qwen3MoeForCausalLM"};

constexpr BufferRule kMlpExperts[] = {
    Matrix("{layer}.mlp.gate.weight", Scope::kExpertLayer, Size::kExperts, Size::kHidden),
    {"{layer}.mlp.experts.routed_experts.w13_weight",
     Scope::kExpertLayer,
     {{{"{layer}.mlp.experts.{expert}.gate_proj.weight", Size::kExpertIntermediate, Size::kHidden,
        Split::kRows},
       {"{layer}.mlp.experts.{expert}.up_proj.weight", Size::kExpertIntermediate, Size::kHidden,
        Split::kRows}}},
     When::kAlways,
     Group::kExperts},
    {"{layer}.mlp.experts.routed_experts.w2_weight",
     Scope::kExpertLayer,
     {{{"{layer}.mlp.experts.{expert}.down_proj.weight", Size::kHidden, Size::kExpertIntermediate,
        Split::kColumns}}},
     When::kAlways,
     Group::kExperts},
};

constexpr BufferRule kQwenSharedExpert[] = {
    Matrix("{layer}.mlp.shared_expert_gate.weight", Scope::kExpertLayer, Size::kOne, Size::kHidden,
           Split::kWhole, When::kSharedExperts),
    {"{layer}.mlp.shared_expert.gate_up_proj.weight",
     Scope::kExpertLayer,
     {{{"{layer}.mlp.shared_expert.gate_proj.weight", Size::kSharedIntermediate, Size::kHidden,
        Split::kRows},
       {"{layer}.mlp.shared_expert.up_proj.weight", Size::kSharedIntermediate, Size::kHidden,
        Split::kRows}}},
     When::kSharedExperts},
    Matrix("{layer}.mlp.shared_expert.down_proj.weight", Scope::kExpertLayer, Size::kHidden,
           Size::kSharedIntermediate, Split::kColumns, When::kSharedExperts),
};

// --- Mixtral (models/mixtral.py) ---

constexpr std::string_view kMixtral[] = {"MixtralForCausalLM"};

constexpr BufferRule kMixtralExperts[] = {
    Matrix("{layer}.block_sparse_moe.gate.weight", Scope::kExpertLayer, Size::kExperts,
           Size::kHidden),
    {"{layer}.block_sparse_moe.experts.routed_experts.w13_weight",
     Scope::kExpertLayer,
     {{{"{layer}.block_sparse_moe.experts.{expert}.w1.weight", Size::kExpertIntermediate,
        Size::kHidden, Split::kRows},
       {"{layer}.block_sparse_moe.experts.{expert}.w3.weight", Size::kExpertIntermediate,
        Size::kHidden, Split::kRows}}},
     When::kAlways,
     Group::kExperts},
    {"{layer}.block_sparse_moe.experts.routed_experts.w2_weight",
     Scope::kExpertLayer,
     {{{"{layer}.block_sparse_moe.experts.{expert}.w2.weight", Size::kHidden,
        Size::kExpertIntermediate, Split::kColumns}}},
     When::kAlways,
     Group::kExperts},
};

// --- DeepSeek-V2 and V3 (models/deepseek_v2.py, multi-head latent attention) ---

constexpr std::string_view kDeepSeek[] = {"DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"};

constexpr BufferRule kLatentAttention[] = {
    Vector("{layer}.input_layernorm.weight", Scope::kLayer, Size::kHidden),
    Vector("{layer}.post_attention_layernorm.weight", Scope::kLayer, Size::kHidden),
    {"{layer}.self_attn.fused_qkv_a_proj.weight",
     Scope::kLayer,
     {{{"{layer}.self_attn.q_a_proj.weight", Size::kQueryLora, Size::kHidden},
       {"{layer}.self_attn.kv_a_proj_with_mqa.weight", Size::kKvLoraAndRope, Size::kHidden}}},
     When::kQueryLora},
    Vector("{layer}.self_attn.q_a_layernorm.weight", Scope::kLayer, Size::kQueryLora,
           When::kQueryLora),
    Matrix("{layer}.self_attn.q_b_proj.weight", Scope::kLayer, Size::kMlaQueries, Size::kQueryLora,
           Split::kHeads, When::kQueryLora),
    Matrix("{layer}.self_attn.q_proj.weight", Scope::kLayer, Size::kMlaQueries, Size::kHidden,
           Split::kHeads, When::kNoQueryLora),
    Matrix("{layer}.self_attn.kv_a_proj_with_mqa.weight", Scope::kLayer, Size::kKvLoraAndRope,
           Size::kHidden, Split::kWhole, When::kNoQueryLora),
    Vector("{layer}.self_attn.kv_a_layernorm.weight", Scope::kLayer, Size::kKvLora),
    Matrix("{layer}.self_attn.kv_b_proj.weight", Scope::kLayer, Size::kMlaKeys, Size::kKvLora,
           Split::kHeads),
    Matrix("{layer}.self_attn.o_proj.weight", Scope::kLayer, Size::kHidden, Size::kMlaValues,
           Split::kColumns),
};

constexpr BufferRule kDeepSeekExperts[] = {
    Vector("{layer}.mlp.gate.e_score_correction_bias", Scope::kExpertLayer, Size::kExperts,
           When::kCorrectionBias),
    {"{layer}.mlp.shared_experts.gate_up_proj.weight",
     Scope::kExpertLayer,
     {{{"{layer}.mlp.shared_experts.gate_proj.weight", Size::kSharedIntermediate, Size::kHidden,
        Split::kRows},
       {"{layer}.mlp.shared_experts.up_proj.weight", Size::kSharedIntermediate, Size::kHidden,
        Split::kRows}}},
     When::kSharedExperts,
     Group::kSharedExperts},
    Matrix("{layer}.mlp.shared_experts.down_proj.weight", Scope::kExpertLayer, Size::kHidden,
           Size::kSharedIntermediate, Split::kColumns, When::kSharedExperts, Group::kSharedExperts),
};

// The layers that predict further tokens are another model, the drafter's.
constexpr IgnoreRule kPredictionLayers[] = {
    {"{layer}.", Scope::kPredictionLayer, /*is_prefix=*/true},
};

// --- BERT and RoBERTa (models/bert.py, models/roberta.py) ---

constexpr std::string_view kBertPrefixes[] = {"bert.", "roberta.", "model.", ""};
constexpr std::string_view kBertModel[] = {"BertModel", "RobertaForMaskedLM", "RobertaModel",
                                           "XLMRobertaModel"};
constexpr std::string_view kBertMaskedLm[] = {"BertForMaskedLM"};
constexpr std::string_view kBertClassifier[] = {"BertForSequenceClassification"};

// A LayerNorm; old checkpoints say gamma and beta.
constexpr BufferRule NormWeight(std::string_view name, std::string_view old_name, Scope scope) {
  return {name, scope, {{{name, Size::kHidden, Size::kNone, Split::kWhole, old_name}}}};
}

constexpr BufferRule kBertEmbeddings[] = {
    Matrix("{prefix}embeddings.word_embeddings.weight", Scope::kInput, Size::kVocab, Size::kHidden,
           Split::kVocab),
    Matrix("{prefix}embeddings.position_embeddings.weight", Scope::kInput, Size::kPositions,
           Size::kHidden, Split::kVocab),
    Matrix("{prefix}embeddings.token_type_embeddings.weight", Scope::kInput, Size::kTokenTypes,
           Size::kHidden, Split::kVocab),
    NormWeight("{prefix}embeddings.LayerNorm.weight", "{prefix}embeddings.LayerNorm.gamma",
               Scope::kInput),
    NormWeight("{prefix}embeddings.LayerNorm.bias", "{prefix}embeddings.LayerNorm.beta",
               Scope::kInput),
};

constexpr BufferRule kBertLayers[] = {
    {"{layer}.attention.self.qkv_proj.weight",
     Scope::kLayer,
     {{{"{layer}.attention.self.query.weight", Size::kQueries, Size::kHidden, Split::kHeads},
       {"{layer}.attention.self.key.weight", Size::kQueries, Size::kHidden, Split::kHeads},
       {"{layer}.attention.self.value.weight", Size::kQueries, Size::kHidden, Split::kHeads}}}},
    {"{layer}.attention.self.qkv_proj.bias",
     Scope::kLayer,
     {{{"{layer}.attention.self.query.bias", Size::kQueries, Size::kNone, Split::kHeads},
       {"{layer}.attention.self.key.bias", Size::kQueries, Size::kNone, Split::kHeads},
       {"{layer}.attention.self.value.bias", Size::kQueries, Size::kNone, Split::kHeads}}}},
    Matrix("{layer}.attention.output.dense.weight", Scope::kLayer, Size::kHidden, Size::kQueries,
           Split::kColumns),
    Vector("{layer}.attention.output.dense.bias", Scope::kLayer, Size::kHidden),
    NormWeight("{layer}.attention.output.LayerNorm.weight",
               "{layer}.attention.output.LayerNorm.gamma", Scope::kLayer),
    NormWeight("{layer}.attention.output.LayerNorm.bias", "{layer}.attention.output.LayerNorm.beta",
               Scope::kLayer),
    Matrix("{layer}.intermediate.dense.weight", Scope::kLayer, Size::kIntermediate, Size::kHidden,
           Split::kRows),
    Vector("{layer}.intermediate.dense.bias", Scope::kLayer, Size::kIntermediate, When::kAlways,
           Split::kRows),
    Matrix("{layer}.output.dense.weight", Scope::kLayer, Size::kHidden, Size::kIntermediate,
           Split::kColumns),
    Vector("{layer}.output.dense.bias", Scope::kLayer, Size::kHidden),
    NormWeight("{layer}.output.LayerNorm.weight", "{layer}.output.LayerNorm.gamma", Scope::kLayer),
    NormWeight("{layer}.output.LayerNorm.bias", "{layer}.output.LayerNorm.beta", Scope::kLayer),
};

constexpr BufferRule kBertMaskedLmHead[] = {
    {"mlm_head.dense.weight",
     Scope::kOutput,
     {{{"cls.predictions.transform.dense.weight", Size::kHidden, Size::kHidden}}}},
    {"mlm_head.dense.bias",
     Scope::kOutput,
     {{{"cls.predictions.transform.dense.bias", Size::kHidden}}}},
    {"mlm_head.layer_norm.weight",
     Scope::kOutput,
     {{{"cls.predictions.transform.LayerNorm.weight", Size::kHidden, Size::kNone, Split::kWhole,
        "cls.predictions.transform.LayerNorm.gamma"}}}},
    {"mlm_head.layer_norm.bias",
     Scope::kOutput,
     {{{"cls.predictions.transform.LayerNorm.bias", Size::kHidden, Size::kNone, Split::kWhole,
        "cls.predictions.transform.LayerNorm.beta"}}}},
    // A whole copy of the embedding, which is itself split, where the checkpoint has no decoder.
    {"mlm_head.decoder.weight",
     Scope::kOutput,
     {{{"cls.predictions.decoder.weight", Size::kVocab, Size::kHidden, Split::kWhole,
        "{prefix}embeddings.word_embeddings.weight"}}}},
    {"mlm_head.decoder.bias", Scope::kOutput, {{{"cls.predictions.bias", Size::kVocab}}}},
};

constexpr BufferRule kBertClassifierHead[] = {
    Matrix("{prefix}pooler.dense.weight", Scope::kOutput, Size::kHidden, Size::kHidden),
    Vector("{prefix}pooler.dense.bias", Scope::kOutput, Size::kHidden),
    Matrix("classifier.weight", Scope::kOutput, Size::kLabels, Size::kHidden),
    Vector("classifier.bias", Scope::kOutput, Size::kLabels),
};

constexpr IgnoreRule kBertIgnored[] = {
    {"{prefix}embeddings.position_ids", Scope::kInput},
};
constexpr IgnoreRule kBertHeadsIgnored[] = {
    {"{prefix}pooler.", Scope::kOutput, /*is_prefix=*/true},
    {"cls.", Scope::kOutput, /*is_prefix=*/true},
    {"lm_head.", Scope::kOutput, /*is_prefix=*/true},
};
constexpr IgnoreRule kBertMaskedLmIgnored[] = {
    {"{prefix}pooler.", Scope::kOutput, /*is_prefix=*/true},
    {"cls.seq_relationship.", Scope::kOutput, /*is_prefix=*/true},
    {"cls.predictions.decoder.bias", Scope::kOutput},
};

// --- The families. ---

constexpr Family kFamilies[] = {
    {.architectures = kLlama,
     .prefixes = kDecoderPrefixes,
     .probe = "embed_tokens.weight",
     .buffer_prefix = "model.",
     .layers = "layers.",
     .buffers = {kDecoderEnds, kAttention, kMlp, kLlamaBiases},
     .ignored = {kRotary},
     .tied_input = "embed_tokens.weight"},
    {.architectures = kQwen2,
     .prefixes = kDecoderPrefixes,
     .probe = "embed_tokens.weight",
     .buffer_prefix = "model.",
     .layers = "layers.",
     .buffers = {kDecoderEnds, kAttention, kMlp, kQwen2Biases},
     .ignored = {kRotary},
     .tied_input = "embed_tokens.weight"},
    {.architectures = kQwen3,
     .prefixes = kDecoderPrefixes,
     .probe = "embed_tokens.weight",
     .buffer_prefix = "model.",
     .layers = "layers.",
     .buffers = {kDecoderEnds, kAttention, kMlp, kQkNorm},
     .ignored = {kRotary},
     .tied_input = "embed_tokens.weight"},
    {.architectures = kQwen3Moe,
     .prefixes = kDecoderPrefixes,
     .probe = "embed_tokens.weight",
     .buffer_prefix = "model.",
     .layers = "layers.",
     .buffers = {kDecoderEnds, kAttention, kQkNorm, kMlp, kMlpExperts, kQwenSharedExpert},
     .ignored = {kRotary},
     .experts_key = "num_experts",
     .expert_intermediate_key = "moe_intermediate_size",
     .shared_intermediate_key = "shared_expert_intermediate_size",
     .tied_input = "embed_tokens.weight",
     .ends_on_every_stage = true},
    {.architectures = kMixtral,
     .prefixes = kDecoderPrefixes,
     .probe = "embed_tokens.weight",
     .buffer_prefix = "model.",
     .layers = "layers.",
     .buffers = {kDecoderEnds, kAttention, kMixtralExperts},
     .ignored = {kRotary},
     .experts_key = "num_local_experts",
     .expert_intermediate_key = "intermediate_size",
     .tied_input = "embed_tokens.weight",
     .ends_on_every_stage = true},
    {.architectures = kDeepSeek,
     .prefixes = kDecoderPrefixes,
     .probe = "embed_tokens.weight",
     .buffer_prefix = "model.",
     .layers = "layers.",
     .buffers = {kDecoderEnds, kLatentAttention, kMlp, kMlpExperts, kDeepSeekExperts},
     .ignored = {kRotary, kPredictionLayers},
     .experts_key = "n_routed_experts",
     .expert_intermediate_key = "moe_intermediate_size",
     .shared_experts_key = "n_shared_experts"},
    {.architectures = kBertModel,
     .prefixes = kBertPrefixes,
     .probe = "embeddings.word_embeddings.weight",
     .buffer_prefix = "model.",
     .layers = "encoder.layer.",
     .buffers = {kBertEmbeddings, kBertLayers},
     .ignored = {kBertIgnored, kBertHeadsIgnored},
     .has_stages = false},
    {.architectures = kBertMaskedLm,
     .prefixes = kBertPrefixes,
     .probe = "embeddings.word_embeddings.weight",
     .buffer_prefix = "bert.",
     .layers = "encoder.layer.",
     .buffers = {kBertEmbeddings, kBertLayers, kBertMaskedLmHead},
     .ignored = {kBertIgnored, kBertMaskedLmIgnored},
     .has_stages = false},
    {.architectures = kBertClassifier,
     .prefixes = kBertPrefixes,
     .probe = "embeddings.word_embeddings.weight",
     .buffer_prefix = "bert.",
     .layers = "encoder.layer.",
     .buffers = {kBertEmbeddings, kBertLayers, kBertClassifierHead},
     .ignored = {kBertIgnored},
     .has_stages = false},
};

}  // namespace

std::span<const Family> Families() { return kFamilies; }

}  // namespace wstore
