#include "transfer/model_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/strings.h"
#include "transfer/grouped_faults.h"
#include "wstore/placement_rules.h"

namespace wstore {
namespace {

using Json = nlohmann::json;

// Products of two such numbers fit in 64 bits.
constexpr uint64_t kMaxNumber = uint64_t{1} << 31;

absl::StatusOr<std::string> FindArchitecture(const Json& json) {
  const auto it = json.find("architectures");
  if (it == json.end() || !it->is_array() || it->empty() || !it->front().is_string()) {
    return absl::InvalidArgumentError(
        "config.json has no 'architectures', a list of names such as \"LlamaForCausalLM\"");
  }
  return it->front().get<std::string>();
}

const Family* FindFamily(std::string_view architecture) {
  for (const Family& family : Families()) {
    for (const std::string_view name : family.architectures) {
      if (name == architecture) return &family;
    }
  }
  return nullptr;
}

absl::Status RefuseQuantised(const Json& json) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    const auto it = json.find(key);
    if (it == json.end() || it->is_null()) continue;
    std::string method = "unknown";
    for (const char* name : {"quant_method", "quant_algo"}) {
      if (it->is_object() && it->contains(name) && it->at(name).is_string()) {
        method = it->at(name).get<std::string>();
        break;
      }
    }
    return absl::InvalidArgumentError(
        absl::StrCat("the checkpoint is quantised (config.json has '", key, "', method '", method,
                     "'): engines repack, rescale or requantise such weights when they load them, "
                     "so their memory is "
                     "no plain copy of the checkpoint; use the checkpoint in the dtype that it is "
                     "served in, or write "
                     "a layout for the tensors that are plain copies (docs/formats/layout.md)"));
  }
  return absl::OkStatus();
}

}  // namespace

// Reads entries of an object; what is absent or null takes a default, what is of the wrong kind is
// noted.
class ModelConfig::Reader {
 public:
  explicit Reader(const Json& json) : json_(json) {}

  uint64_t Number(std::string_view key, uint64_t otherwise = 0) {
    const Json* value = Find(key);
    if (value == nullptr) return otherwise;
    if (value->is_number_unsigned() && value->get<uint64_t>() <= kMaxNumber) {
      return value->get<uint64_t>();
    }
    Wrong(key, "a whole number up to 2^31", *value);
    return otherwise;
  }

  bool Flag(std::string_view key, bool otherwise = false) {
    const Json* value = Find(key);
    if (value == nullptr) return otherwise;
    if (value->is_boolean()) return value->get<bool>();
    Wrong(key, "true or false", *value);
    return otherwise;
  }

  std::string Text(std::string_view key) {
    const Json* value = Find(key);
    if (value == nullptr) return "";
    if (value->is_string()) return value->get<std::string>();
    Wrong(key, "a string", *value);
    return "";
  }

  std::vector<uint64_t> Numbers(std::string_view key) {
    const Json* value = Find(key);
    std::vector<uint64_t> numbers;
    if (value == nullptr) return numbers;
    const auto is_number = [](const Json& item) { return item.is_number_unsigned(); };
    if (!value->is_array() || !std::all_of(value->begin(), value->end(), is_number)) {
      Wrong(key, "a list of whole numbers", *value);
      return numbers;
    }
    for (const Json& item : *value) numbers.push_back(item.get<uint64_t>());
    return numbers;
  }

  const Json* Find(std::string_view key) {
    if (key.empty()) return nullptr;
    const auto it = json_.find(std::string(key));
    return it == json_.end() || it->is_null() ? nullptr : &*it;
  }

  absl::Status ToStatus() const { return faults_.ToStatus(); }

 private:
  void Wrong(std::string_view key, std::string_view wanted, const Json& value) {
    const std::string seen =
        value.is_structured() || value.is_string() ? value.type_name() : value.dump();
    faults_.Add("config.json",
                absl::StrCat("'", ToAbsl(key), "' is ", seen, ", not ", ToAbsl(wanted)));
  }

  const Json& json_;
  GroupedFaults faults_;
};

absl::StatusOr<ModelConfig> ModelConfig::Parse(std::string_view text) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("config.json is not a JSON object");
  ModelConfig config;
  ASSIGN_OR_RETURN(config.architecture_, FindArchitecture(json));
  config.family_ = FindFamily(config.architecture_);
  if (config.family_ == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no placement rules for architecture '", config.architecture_, "'; there are rules for ",
        absl::StrJoin(ArchitecturesWithRules(), ", "),
        "; for others write a layout: a file (docs/formats/layout.md), or with LayoutBuilder"));
  }
  RETURN_IF_ERROR(RefuseQuantised(json));

  Reader reader(json);
  config.ReadSizes(reader);
  config.ReadExperts(reader);
  config.ReadLatentAttention(reader);
  config.ReadFlags(reader);
  RETURN_IF_ERROR(reader.ToStatus());
  return config;
}

void ModelConfig::ReadSizes(Reader& reader) {
  layers_ = reader.Number("num_hidden_layers");
  heads_ = reader.Number("num_attention_heads");
  kv_heads_ = reader.Number("num_key_value_heads", heads_);
  const uint64_t hidden = reader.Number("hidden_size");
  const uint64_t head_dim = reader.Number("head_dim", heads_ == 0 ? 0 : hidden / heads_);
  Set(Size::kOne, 1);
  Set(Size::kHidden, hidden);
  Set(Size::kHeadDim, head_dim);
  Set(Size::kQueries, heads_ * head_dim);
  Set(Size::kKeys, kv_heads_ * head_dim);
  Set(Size::kIntermediate, reader.Number("intermediate_size"));
  Set(Size::kVocab, reader.Number("vocab_size"));
  Set(Size::kPositions, reader.Number("max_position_embeddings"));
  Set(Size::kTokenTypes, reader.Number("type_vocab_size"));
  // Transformers writes the number of labels as the size of a table, and nothing at all for two.
  const Json* labels = reader.Find("id2label");
  Set(Size::kLabels, reader.Number("num_labels", labels != nullptr ? labels->size() : 2));
}

void ModelConfig::ReadExperts(Reader& reader) {
  Set(Size::kExperts, reader.Number(family_->experts_key));
  const uint64_t expert_size = reader.Number(family_->expert_intermediate_key);
  Set(Size::kExpertIntermediate, expert_size);
  Set(Size::kSharedIntermediate, family_->shared_experts_key.empty()
                                     ? reader.Number(family_->shared_intermediate_key)
                                     : expert_size * reader.Number(family_->shared_experts_key));
  dense_layers_ = reader.Numbers("mlp_only_layers");
  std::sort(dense_layers_.begin(), dense_layers_.end());
  first_expert_layer_ = reader.Number("first_k_dense_replace");
  // Of Qwen: layers count from 1. Of DeepSeek: from 0.
  if (reader.Find("decoder_sparse_step") != nullptr) {
    expert_layer_step_ = reader.Number("decoder_sparse_step");
    expert_layer_shift_ = 1;
  } else {
    expert_layer_step_ = reader.Number("moe_layer_freq", 1);
  }
  expert_layer_step_ = std::max<uint64_t>(expert_layer_step_, 1);
  prediction_layers_ = reader.Number("num_nextn_predict_layers");
}

void ModelConfig::ReadLatentAttention(Reader& reader) {
  const uint64_t nope = reader.Number("qk_nope_head_dim");
  const uint64_t rope = reader.Number("qk_rope_head_dim");
  const uint64_t value = reader.Number("v_head_dim");
  const uint64_t kv_lora = reader.Number("kv_lora_rank");
  Set(Size::kQueryLora, reader.Number("q_lora_rank"));
  Set(Size::kKvLora, kv_lora);
  Set(Size::kKvLoraAndRope, kv_lora + rope);
  Set(Size::kMlaQueries, heads_ * (nope + rope));
  Set(Size::kMlaKeys, heads_ * (nope + value));
  Set(Size::kMlaValues, heads_ * value);
}

void ModelConfig::ReadFlags(Reader& reader) {
  has_output_bias_ = reader.Flag("attention_bias") || reader.Flag("bias");
  has_qkv_bias_ = reader.Flag("qkv_bias", has_output_bias_);
  has_mlp_bias_ = reader.Flag("mlp_bias");
  has_correction_bias_ = reader.Text("topk_method") == "noaux_tc";
  is_tied_ = !family_->tied_input.empty() && reader.Flag("tie_word_embeddings");
}

bool ModelConfig::is_expert_layer(uint64_t layer) const {
  return size(Size::kExperts) > 0 && layer >= first_expert_layer_ &&
         (layer + expert_layer_shift_) % expert_layer_step_ == 0 &&
         !std::binary_search(dense_layers_.begin(), dense_layers_.end(), layer);
}

bool ModelConfig::Holds(When when) const {
  switch (when) {
    case When::kAlways:
      return true;
    case When::kQkvBias:
      return has_qkv_bias_;
    case When::kOutputBias:
      return has_output_bias_;
    case When::kMlpBias:
      return has_mlp_bias_;
    case When::kQueryLora:
      return size(Size::kQueryLora) > 0;
    case When::kNoQueryLora:
      return size(Size::kQueryLora) == 0;
    case When::kSharedExperts:
      return size(Size::kSharedIntermediate) > 0;
    case When::kCorrectionBias:
      return has_correction_bias_;
    case When::kUntied:
      return !is_tied_;
  }
  return false;
}

std::string SizeName(Size size, const Family& family) {
  const auto entry = [](std::string_view key) { return absl::StrCat("'", ToAbsl(key), "'"); };
  switch (size) {
    case Size::kHidden:
      return entry("hidden_size");
    case Size::kQueries:
    case Size::kHeadDim:
      return "'num_attention_heads' or 'head_dim'";
    case Size::kKeys:
      return "'num_key_value_heads' or 'head_dim'";
    case Size::kIntermediate:
      return entry("intermediate_size");
    case Size::kVocab:
      return entry("vocab_size");
    case Size::kExperts:
      return entry(family.experts_key);
    case Size::kExpertIntermediate:
      return entry(family.expert_intermediate_key);
    case Size::kSharedIntermediate:
      return entry(family.shared_experts_key.empty() ? family.shared_intermediate_key
                                                     : family.shared_experts_key);
    case Size::kQueryLora:
      return entry("q_lora_rank");
    case Size::kKvLora:
    case Size::kKvLoraAndRope:
      return entry("kv_lora_rank");
    case Size::kMlaQueries:
    case Size::kMlaKeys:
    case Size::kMlaValues:
      return "'qk_nope_head_dim', 'qk_rope_head_dim' or 'v_head_dim'";
    case Size::kPositions:
      return entry("max_position_embeddings");
    case Size::kTokenTypes:
      return entry("type_vocab_size");
    case Size::kLabels:
      return "'num_labels' or 'id2label'";
    case Size::kNone:
    case Size::kOne:
    case Size::kCount:
      break;
  }
  return "";
}

std::vector<std::string> ArchitecturesWithRules() {
  std::vector<std::string> names;
  for (const Family& family : Families()) {
    names.insert(names.end(), family.architectures.begin(), family.architectures.end());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace wstore
