#include "tests/unit/transfer/reference_engine.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace wstore::testing {
namespace {

// Elements by their ids.
struct Matrix {
  uint64_t rows = 0;
  uint64_t columns = 0;
  std::vector<int64_t> at;
};

Matrix Rows(const Matrix& m, uint64_t begin, uint64_t end) {
  return {
      end - begin, m.columns, {m.at.begin() + begin * m.columns, m.at.begin() + end * m.columns}};
}

Matrix Columns(const Matrix& m, uint64_t begin, uint64_t end) {
  Matrix out{m.rows, end - begin, {}};
  for (uint64_t row = 0; row < m.rows; ++row) {
    for (uint64_t column = begin; column < end; ++column) {
      out.at.push_back(m.at[row * m.columns + column]);
    }
  }
  return out;
}

Matrix Stack(const std::vector<Matrix>& parts) {
  Matrix out;
  for (const Matrix& part : parts) {
    out.rows += part.rows;
    out.columns = part.columns;
    out.at.insert(out.at.end(), part.at.begin(), part.at.end());
  }
  return out;
}

// One engine rank's parameters, put together by hand.
class Engine {
 public:
  Engine(const TestModel& model, const Manifest& manifest, const RankSpec& rank)
      : config_(model.config), manifest_(manifest), rank_(rank) {
    const std::string architecture = config_["architectures"][0];
    if (architecture.starts_with("Bert") || architecture.starts_with("XLM")) {
      LoadBert(architecture);
    } else {
      LoadDecoder(architecture);
    }
  }

  std::map<std::string, std::vector<int64_t>> Parameters() const {
    std::map<std::string, std::vector<int64_t>> contents;
    for (const auto& [name, matrix] : parameters_) contents[name] = matrix.at;
    return contents;
  }

 private:
  uint64_t Number(const char* key) const { return config_[key].get<uint64_t>(); }

  Matrix Load(const std::string& name) const {
    const auto tensor = manifest_.Find(name);
    WSTORE_CHECK(tensor.has_value());
    const Shape& shape = manifest_.tensor(*tensor).spec.shape;
    Matrix m{shape[0], shape.size() > 1 ? shape[1] : 1, {}};
    for (uint64_t e = 0; e < m.rows * m.columns; ++e) {
      m.at.push_back(ElementId(*tensor, e));
    }
    return m;
  }
  bool Exists(const std::string& name) const { return manifest_.Find(name).has_value(); }

  Matrix Column(const std::string& name, uint64_t rank, uint64_t size) const {
    const Matrix m = Load(name);
    return Rows(m, m.rows / size * rank, m.rows / size * (rank + 1));
  }
  Matrix Column(const std::string& name) const {
    return Column(name, rank_.tp_rank, rank_.tp_size);
  }
  Matrix Row(const std::string& name, uint64_t rank, uint64_t size) const {
    const Matrix m = Load(name);
    return Columns(m, m.columns / size * rank, m.columns / size * (rank + 1));
  }
  Matrix Row(const std::string& name) const { return Row(name, rank_.tp_rank, rank_.tp_size); }

  Matrix Vocab(const std::string& name) const {
    Matrix m = Load(name);
    while (m.rows % 64 != 0) {
      ++m.rows;
      m.at.insert(m.at.end(), m.columns, kPadding);
    }
    return Rows(m, m.rows / rank_.tp_size * rank_.tp_rank,
                m.rows / rank_.tp_size * (rank_.tp_rank + 1));
  }

  // Whole heads; where there are fewer KV heads than ranks, neighbouring ranks have the same one.
  Matrix Qkv(const std::string& q, const std::string& k, const std::string& v,
             uint64_t kv_heads) const {
    const uint64_t tp = rank_.tp_size;
    const uint64_t replicas = tp >= kv_heads ? tp / kv_heads : 1;
    const uint64_t kv_parts = std::min(tp, kv_heads);
    return Stack({Column(q), Column(k, rank_.tp_rank / replicas, kv_parts),
                  Column(v, rank_.tp_rank / replicas, kv_parts)});
  }

  void LoadExperts(const std::string& buffer, const std::string& tensors, const char* gate,
                   const char* up, const char* down, uint64_t experts) {
    const uint64_t all = uint64_t{rank_.tp_size} * rank_.dp_size;
    const uint64_t index = uint64_t{rank_.dp_rank} * rank_.tp_size + rank_.tp_rank;
    std::vector<uint64_t> mine;
    if (!rank_.expert_parallel) {
      for (uint64_t e = 0; e < experts; ++e) mine.push_back(e);
    } else if (rank_.expert_order == ExpertOrder::kRoundRobin) {
      for (uint64_t e = index; e < experts; e += all) mine.push_back(e);
    } else {
      // Hand out experts one rank after another, the first ranks taking one more.
      uint64_t next = 0;
      for (uint64_t r = 0; r < all; ++r) {
        for (uint64_t n = experts / all + (r < experts % all ? 1 : 0); n > 0; --n, ++next) {
          if (r == index) mine.push_back(next);
        }
      }
    }
    const uint64_t rank = rank_.expert_parallel ? 0 : index;
    const uint64_t size = rank_.expert_parallel ? 1 : all;
    std::vector<Matrix> w13;
    std::vector<Matrix> w2;
    for (const uint64_t e : mine) {
      const std::string expert = tensors + "." + std::to_string(e) + ".";
      w13.push_back(Column(expert + gate + ".weight", rank, size));
      w13.push_back(Column(expert + up + ".weight", rank, size));
      w2.push_back(Row(expert + down + ".weight", rank, size));
    }
    parameters_[buffer + ".w13_weight"] = Stack(w13);
    parameters_[buffer + ".w2_weight"] = Stack(w2);
  }

  void LoadAttention(const std::string& name) {
    const uint64_t kv_heads = Number("num_key_value_heads");
    parameters_[name + ".qkv_proj.weight"] =
        Qkv(name + ".q_proj.weight", name + ".k_proj.weight", name + ".v_proj.weight", kv_heads);
    if (Exists(name + ".q_proj.bias")) {
      parameters_[name + ".qkv_proj.bias"] =
          Qkv(name + ".q_proj.bias", name + ".k_proj.bias", name + ".v_proj.bias", kv_heads);
    }
    for (const char* norm : {".q_norm.weight", ".k_norm.weight"}) {
      if (Exists(name + norm)) parameters_[name + norm] = Load(name + norm);
    }
  }

  void LoadLatentAttention(const std::string& name) {
    if (Exists(name + ".q_a_proj.weight")) {
      parameters_[name + ".fused_qkv_a_proj.weight"] =
          Stack({Load(name + ".q_a_proj.weight"), Load(name + ".kv_a_proj_with_mqa.weight")});
      parameters_[name + ".q_a_layernorm.weight"] = Load(name + ".q_a_layernorm.weight");
      parameters_[name + ".q_b_proj.weight"] = Column(name + ".q_b_proj.weight");
    } else {
      parameters_[name + ".kv_a_proj_with_mqa.weight"] = Load(name + ".kv_a_proj_with_mqa.weight");
      parameters_[name + ".q_proj.weight"] = Column(name + ".q_proj.weight");
    }
    parameters_[name + ".kv_a_layernorm.weight"] = Load(name + ".kv_a_layernorm.weight");
    parameters_[name + ".kv_b_proj.weight"] = Column(name + ".kv_b_proj.weight");
  }

  void LoadMlp(const std::string& name, bool is_whole = false) {
    const uint64_t rank = is_whole ? 0 : rank_.tp_rank;
    const uint64_t size = is_whole ? 1 : rank_.tp_size;
    for (const char* kind : {".weight", ".bias"}) {
      if (!Exists(name + ".gate_proj" + kind)) continue;
      parameters_[name + ".gate_up_proj" + kind] =
          Stack({Column(name + ".gate_proj" + kind, rank, size),
                 Column(name + ".up_proj" + kind, rank, size)});
    }
    parameters_[name + ".down_proj.weight"] = Row(name + ".down_proj.weight", rank, size);
    if (Exists(name + ".down_proj.bias")) {
      parameters_[name + ".down_proj.bias"] = Load(name + ".down_proj.bias");
    }
  }

  void LoadDecoder(const std::string& architecture) {
    const bool is_moe =
        architecture == "Qwen3MoeForCausalLM" || architecture == "MixtralForCausalLM";
    // A head in the checkpoint is tied after loading, on a rank that has the embedding too.
    const bool is_tied = config_["tie_word_embeddings"] &&
                         (rank_.pp_size == 1 || is_moe || !Exists("lm_head.weight"));
    const bool is_first = rank_.pp_rank == 0;
    const bool is_last = rank_.pp_rank + 1 == rank_.pp_size;
    if (is_first || is_moe || (is_last && is_tied)) {
      parameters_["model.embed_tokens.weight"] = Vocab("model.embed_tokens.weight");
    }
    if (is_last || is_moe) {
      parameters_["model.norm.weight"] = Load("model.norm.weight");
      if (!is_tied) parameters_["lm_head.weight"] = Vocab("lm_head.weight");
    }
    // Of two stages, the first has one more layer if their number is odd.
    const uint64_t layers = Number("num_hidden_layers");
    const uint64_t middle = rank_.pp_size == 1 ? layers : (layers + 1) / 2;
    for (uint64_t i = is_first ? 0 : middle; i < (is_first ? middle : layers); ++i) {
      const std::string layer = "model.layers." + std::to_string(i);
      for (const char* norm : {".input_layernorm.weight", ".post_attention_layernorm.weight"}) {
        parameters_[layer + norm] = Load(layer + norm);
      }
      const std::string attention = layer + ".self_attn";
      if (Exists(attention + ".kv_b_proj.weight")) {
        LoadLatentAttention(attention);
      } else {
        LoadAttention(attention);
      }
      parameters_[attention + ".o_proj.weight"] = Row(attention + ".o_proj.weight");
      if (Exists(attention + ".o_proj.bias")) {
        parameters_[attention + ".o_proj.bias"] = Load(attention + ".o_proj.bias");
      }
      LoadFeedForward(layer);
    }
  }

  void LoadFeedForward(const std::string& layer) {
    const std::string mixtral = layer + ".block_sparse_moe";
    if (Exists(mixtral + ".gate.weight")) {
      parameters_[mixtral + ".gate.weight"] = Load(mixtral + ".gate.weight");
      LoadExperts(mixtral + ".experts.routed_experts", mixtral + ".experts", "w1", "w3", "w2",
                  Number("num_local_experts"));
      return;
    }
    const std::string mlp = layer + ".mlp";
    if (!Exists(mlp + ".gate.weight")) {
      LoadMlp(mlp);
      return;
    }
    for (const char* gate : {".gate.weight", ".gate.e_score_correction_bias"}) {
      if (Exists(mlp + gate)) parameters_[mlp + gate] = Load(mlp + gate);
    }
    const bool is_qwen = config_.contains("num_experts");
    LoadExperts(mlp + ".experts.routed_experts", mlp + ".experts", "gate_proj", "up_proj",
                "down_proj", Number(is_qwen ? "num_experts" : "n_routed_experts"));
    if (Exists(mlp + ".shared_experts.gate_proj.weight")) {
      LoadMlp(mlp + ".shared_experts",
              rank_.expert_parallel && rank_.tp_size > 1 && rank_.dp_size > 1);
    }
  }

  void LoadBert(const std::string& architecture) {
    std::string from;
    for (const char* prefix : {"bert.", "roberta."}) {
      if (Exists(absl::StrCat(prefix, "embeddings.word_embeddings.weight"))) from = prefix;
    }
    const std::string to = architecture.starts_with("BertFor") ? "bert." : "model.";
    const auto whole = [&](const std::string& name) { parameters_[to + name] = Load(from + name); };
    const auto norm = [&](const std::string& name) {
      const bool is_old = Exists(from + name + ".gamma");
      parameters_[to + name + ".weight"] = Load(from + name + (is_old ? ".gamma" : ".weight"));
      parameters_[to + name + ".bias"] = Load(from + name + (is_old ? ".beta" : ".bias"));
    };
    for (const char* table : {"word", "position", "token_type"}) {
      const std::string name = absl::StrCat("embeddings.", table, "_embeddings.weight");
      parameters_[to + name] = Vocab(from + name);
    }
    norm("embeddings.LayerNorm");
    for (uint64_t i = 0; i < Number("num_hidden_layers"); ++i) {
      const std::string layer = "encoder.layer." + std::to_string(i);
      const std::string self = layer + ".attention.self.";
      for (const char* kind : {"weight", "bias"}) {
        parameters_[to + self + "qkv_proj." + kind] =
            Qkv(from + self + "query." + kind, from + self + "key." + kind,
                from + self + "value." + kind, Number("num_attention_heads"));
        parameters_[to + layer + ".intermediate.dense." + kind] =
            Column(from + layer + ".intermediate.dense." + kind);
      }
      for (const char* out : {".attention.output", ".output"}) {
        parameters_[to + layer + out + ".dense.weight"] = Row(from + layer + out + ".dense.weight");
        whole(layer + out + ".dense.bias");
        norm(layer + out + ".LayerNorm");
      }
    }
    if (architecture == "BertForMaskedLM") {
      const std::string head = "cls.predictions.transform.";
      parameters_["mlm_head.dense.weight"] = Load(head + "dense.weight");
      parameters_["mlm_head.dense.bias"] = Load(head + "dense.bias");
      parameters_["mlm_head.layer_norm.weight"] = Load(head + "LayerNorm.gamma");
      parameters_["mlm_head.layer_norm.bias"] = Load(head + "LayerNorm.beta");
      parameters_["mlm_head.decoder.weight"] = Load(from + "embeddings.word_embeddings.weight");
      parameters_["mlm_head.decoder.bias"] = Load("cls.predictions.bias");
    }
    if (architecture == "BertForSequenceClassification") {
      whole("pooler.dense.weight");
      whole("pooler.dense.bias");
      parameters_["classifier.weight"] = Load("classifier.weight");
      parameters_["classifier.bias"] = Load("classifier.bias");
    }
  }

  const nlohmann::json& config_;
  const Manifest& manifest_;
  const RankSpec& rank_;
  std::map<std::string, Matrix> parameters_;
};

}  // namespace

std::map<std::string, std::vector<int64_t>> LoadParameters(const TestModel& model,
                                                           const Manifest& manifest,
                                                           const RankSpec& rank) {
  return Engine(model, manifest, rank).Parameters();
}

}  // namespace wstore::testing
