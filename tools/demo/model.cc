#include "tools/demo/model.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/split_mix.h"
#include "common/status_macros.h"
#include "store/checkpoint/writer.h"

namespace wstore::demo {
namespace {

constexpr uint64_t kLayers = 4;
constexpr uint64_t kHidden = 256;
constexpr uint64_t kHeads = 4;
constexpr uint64_t kKvHeads = 2;
constexpr uint64_t kHeadDim = 64;
constexpr uint64_t kExperts = 8;
constexpr uint64_t kExpertIntermediate = 96;
constexpr uint64_t kVocabulary = 2048;

Manifest MakeManifest() {
  std::vector<TensorSpec> tensors;
  const auto add = [&tensors](const std::string& name, Shape shape) {
    tensors.push_back({name, Dtype::kBF16, std::move(shape)});
  };
  add("model.embed_tokens.weight", {kVocabulary, kHidden});
  add("model.norm.weight", {kHidden});
  add("lm_head.weight", {kVocabulary, kHidden});
  for (uint64_t i = 0; i < kLayers; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i);
    add(layer + ".input_layernorm.weight", {kHidden});
    add(layer + ".post_attention_layernorm.weight", {kHidden});
    add(layer + ".self_attn.q_proj.weight", {kHeads * kHeadDim, kHidden});
    add(layer + ".self_attn.k_proj.weight", {kKvHeads * kHeadDim, kHidden});
    add(layer + ".self_attn.v_proj.weight", {kKvHeads * kHeadDim, kHidden});
    add(layer + ".self_attn.o_proj.weight", {kHidden, kHeads * kHeadDim});
    add(layer + ".self_attn.q_norm.weight", {kHeadDim});
    add(layer + ".self_attn.k_norm.weight", {kHeadDim});
    add(layer + ".mlp.gate.weight", {kExperts, kHidden});
    for (uint64_t e = 0; e < kExperts; ++e) {
      const std::string expert = absl::StrCat(layer, ".mlp.experts.", e);
      add(expert + ".gate_proj.weight", {kExpertIntermediate, kHidden});
      add(expert + ".up_proj.weight", {kExpertIntermediate, kHidden});
      add(expert + ".down_proj.weight", {kHidden, kExpertIntermediate});
    }
  }
  absl::StatusOr<Manifest> manifest = Manifest::Create(std::move(tensors));
  WSTORE_CHECK(manifest.ok());
  return *std::move(manifest);
}

std::string Config() {
  const nlohmann::json config = {{"architectures", {"Qwen3MoeForCausalLM"}},
                                 {"num_hidden_layers", kLayers},
                                 {"hidden_size", kHidden},
                                 {"num_attention_heads", kHeads},
                                 {"num_key_value_heads", kKvHeads},
                                 {"head_dim", kHeadDim},
                                 {"intermediate_size", kExpertIntermediate},
                                 {"num_experts", kExperts},
                                 {"moe_intermediate_size", kExpertIntermediate},
                                 {"decoder_sparse_step", 1},
                                 {"mlp_only_layers", nlohmann::json::array()},
                                 {"vocab_size", kVocabulary},
                                 {"tie_word_embeddings", false}};
  return config.dump(2) + "\n";
}

}  // namespace

Model::Model() : manifest_(MakeManifest()) {
  SplitMix random(1);
  for (TensorIndex tensor = 0; tensor < manifest_.size(); ++tensor) {
    std::string& bytes = bytes_.emplace_back(manifest_.tensor(tensor).size_bytes(), '\0');
    for (size_t i = 0; i < bytes.size(); i += 2) {
      // Sign, an exponent that makes a number between 2^-9 and 2^-5, and a mantissa.
      const uint64_t draw = random.Next();
      const auto bits = static_cast<uint16_t>((draw & 0x807f) | ((118 + (draw >> 32) % 4) << 7));
      bytes[i] = static_cast<char>(bits & 0xff);
      bytes[i + 1] = static_cast<char>(bits >> 8);
    }
  }
}

void Model::TrainStep() {
  ++steps_;
  SplitMix random(1000 + steps_);
  for (std::string& bytes : bytes_) {
    for (size_t i = random.Next() % 200; i < bytes.size() / 2; i += 1 + random.Next() % 199) {
      const auto low = static_cast<uint8_t>(bytes[2 * i]);
      const auto high = static_cast<uint8_t>(bytes[2 * i + 1]);
      const bool up = random.Next() % 2 == 0;
      const auto bits = static_cast<uint16_t>((high << 8 | low) + (up ? 1 : -1));
      bytes[2 * i] = static_cast<char>(bits & 0xff);
      bytes[2 * i + 1] = static_cast<char>(bits >> 8);
    }
  }
}

absl::Status Model::Write(const std::string& directory) const {
  ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointWriter> writer,
                   CheckpointWriter::Create(directory, manifest_, {}));
  for (TensorIndex tensor = 0; tensor < manifest_.size(); ++tensor) {
    const std::string& bytes = bytes_[tensor];
    RETURN_IF_ERROR(writer->Write(
        tensor, 0, absl::MakeSpan(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size())));
  }
  RETURN_IF_ERROR(writer->Finish());
  const std::string path = directory + "/config.json";
  std::ofstream config(path, std::ios::binary);
  config << Config();
  config.close();
  if (!config) return absl::ResourceExhaustedError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

}  // namespace wstore::demo
