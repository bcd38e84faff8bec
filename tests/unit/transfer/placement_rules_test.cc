#include "wstore/placement_rules.h"

#include <algorithm>
#include <ctime>
#include <iostream>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "tests/unit/transfer/placement_reference.h"
#include "tests/unit/transfer/reference_engine.h"
#include "tests/unit/transfer/test_models.h"
#include "wstore/regions.h"

namespace wstore {
namespace {

using testing::Below;
using testing::DecoderSizes;
using testing::ElementId;
using testing::ElementsOf;
using testing::kPadding;
using testing::kTensorStep;
using testing::LoadParameters;
using testing::MakeBert;
using testing::MakeDecoder;
using testing::MakeDeepSeek;
using testing::MakeManifest;
using testing::TestModel;
using testing::TestSeed;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// The buffers of a layout, filled by plain loops.
std::map<std::string, std::vector<int64_t>> Fill(const Layout& layout) {
  std::vector<std::vector<int64_t>> buffers;
  for (uint32_t b = 0; b < layout.buffers().size(); ++b) {
    buffers.emplace_back(layout.buffer_bytes(b) / StorageElementBytes(layout.buffers()[b].dtype),
                         kPadding);
  }
  for (const Placement& placement : layout.placements()) {
    for (const auto& [from, to] : ElementsOf(placement)) {
      int64_t& at = buffers[placement.buffer][to];
      if (at != kPadding) FAIL("two elements at one place");
      at = ElementId(placement.tensor, from);
    }
  }
  std::map<std::string, std::vector<int64_t>> named;
  for (size_t b = 0; b < buffers.size(); ++b) named[layout.buffers()[b].name] = buffers[b];
  return named;
}

std::vector<RankSpec> AllRanks(const RankSpec& sizes) {
  std::vector<RankSpec> ranks;
  for (uint32_t dp = 0; dp < sizes.dp_size; ++dp) {
    for (uint32_t pp = 0; pp < sizes.pp_size; ++pp) {
      for (uint32_t tp = 0; tp < sizes.tp_size; ++tp) {
        RankSpec rank = sizes;
        rank.tp_rank = tp;
        rank.pp_rank = pp;
        rank.dp_rank = dp;
        ranks.push_back(rank);
      }
    }
  }
  return ranks;
}

std::vector<const Layout*> Pointers(const std::vector<Layout>& layouts) {
  std::vector<const Layout*> pointers;
  for (const Layout& layout : layouts) pointers.push_back(&layout);
  return pointers;
}

// Every rank has what the reference says, and together they have the checkpoint.
std::vector<Layout> RequirePlacedLikeEngine(const TestModel& model, const Manifest& manifest,
                                            const RankSpec& sizes) {
  std::vector<Layout> layouts;
  std::vector<bool> is_held(manifest.elements());
  std::vector<uint64_t> first_element;
  uint64_t elements = 0;
  for (const Manifest::Tensor& tensor : manifest.tensors()) {
    first_element.push_back(elements);
    elements += tensor.elements;
  }
  for (const RankSpec& rank : AllRanks(sizes)) {
    auto layout = MakeLayout(model.config.dump(), manifest, rank, 1);
    REQUIRE_OK(layout);
    const auto parameters = LoadParameters(model, manifest, rank);
    const auto buffers = Fill(*layout);
    REQUIRE(buffers.size() == parameters.size());
    for (const auto& [name, content] : buffers) {
      INFO("rank tp " << rank.tp_rank << " pp " << rank.pp_rank << " dp " << rank.dp_rank << ": "
                      << name);
      const auto parameter = parameters.find(name);
      REQUIRE(parameter != parameters.end());
      REQUIRE(content == parameter->second);
      for (const int64_t at : content) {
        if (at != kPadding) is_held[first_element[at / kTensorStep] + at % kTensorStep] = true;
      }
    }
    layouts.push_back(*std::move(layout));
  }
  for (TensorIndex t = 0; t < manifest.size(); ++t) {
    const auto& ignored = layouts[0].ignored();
    if (std::find(ignored.begin(), ignored.end(), t) != ignored.end()) continue;
    if (layouts[0].CanonicalTensor(t) != t) continue;
    INFO(manifest.tensor(t).spec.name);
    const auto begin = is_held.begin() + first_element[t];
    REQUIRE(std::count(begin, begin + manifest.tensor(t).elements, true) ==
            static_cast<int64_t>(manifest.tensor(t).elements));
  }
  REQUIRE_OK(CheckCoverage(manifest, Pointers(layouts)));
  return layouts;
}

TestModel RandomModel(std::mt19937_64& random, const std::string& architecture,
                      const RankSpec& sizes) {
  const uint64_t tp = sizes.tp_size;
  const uint64_t all = tp * sizes.dp_size;
  DecoderSizes d;
  d.layers = 1 + Below(random, 3);
  d.hidden = 1 + Below(random, 8);
  d.heads = tp * (1 + Below(random, 2));
  do {
    d.kv_heads = 1 + Below(random, d.heads);
  } while (d.heads % d.kv_heads != 0 || (tp % d.kv_heads != 0 && d.kv_heads % tp != 0));
  d.head_dim = 1 + Below(random, 3);
  d.intermediate = tp * (1 + Below(random, 4));
  do {
    d.vocab = 1 + Below(random, 200);
  } while ((d.vocab + 63) / 64 * 64 % tp != 0);
  d.is_tied = Below(random, 2) == 0;
  d.experts = 1 + Below(random, 9);
  d.expert_intermediate = all * (1 + Below(random, 2));
  if (architecture == "DeepseekV3ForCausalLM") {
    d.is_tied = false;
    return MakeDeepSeek(d, Below(random, 2) == 0, Below(random, 3), Below(random, d.layers + 1));
  }
  if (architecture.starts_with("Bert")) {
    return MakeBert(architecture, d, architecture == "BertModel" ? "" : "bert.");
  }
  if (architecture.starts_with("XLM")) return MakeBert(architecture, d, "roberta.");
  TestModel model = MakeDecoder(architecture, d, Below(random, 2) == 0);
  // Ties are often saved nevertheless.
  if (d.is_tied && Below(random, 2) == 0) model.Add("lm_head.weight", {d.vocab, d.hidden});
  return model;
}

TEST_CASE("rules: every rank of every family is placed as by slicing and stacking") {
  std::mt19937_64 random(TestSeed("placement rules"));
  uint32_t turn = 0;  // so that every family meets every way to share a model
  for (const std::string architecture :
       {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
        "MixtralForCausalLM", "DeepseekV3ForCausalLM", "BertModel", "BertForMaskedLM",
        "BertForSequenceClassification", "XLMRobertaModel"}) {
    for (const uint32_t tp : {1, 2, 3, 4, 8}) {
      for (int round = 0; round < 3; ++round, ++turn) {
        RankSpec sizes;
        sizes.tp_size = tp;
        sizes.dp_size = 1 + turn % 2;
        const bool is_bert = architecture.find("ForCausalLM") == std::string::npos;
        // Its table of token types, padded to 64 rows, has no thirds.
        if (is_bert && tp == 3) continue;
        sizes.pp_size = is_bert ? 1 : 1 + turn / 2 % 2;
        sizes.expert_parallel = turn / 4 % 2 == 0;
        if (Below(random, 4) == 0) sizes.expert_order = ExpertOrder::kRoundRobin;
        const TestModel model = RandomModel(random, architecture, sizes);
        INFO(architecture << " tp " << tp << " dp " << sizes.dp_size << " pp " << sizes.pp_size
                          << " ep " << sizes.expert_parallel << " " << model.config.dump());
        const Manifest manifest = MakeManifest(model.tensors);
        const auto layouts = RequirePlacedLikeEngine(model, manifest, sizes);
        const auto map = RegionMap::Create(manifest, Pointers(layouts));
        REQUIRE_OK(map);
        // Only BERT's masked-LM head keeps a tensor both whole and in parts.
        if (architecture != "BertForMaskedLM") {
          for (uint32_t rank = 0; rank < layouts.size(); ++rank) {
            REQUIRE(map->cells(rank).size() == layouts[rank].placements().size());
          }
        }
      }
    }
  }
}

// --- The cases that people met, and refusals. ---

DecoderSizes SmallSizes() {
  DecoderSizes sizes;
  sizes.heads = 8;
  sizes.kv_heads = 2;
  sizes.head_dim = 2;
  sizes.hidden = 3;
  return sizes;
}

std::vector<Layout> LayoutsOf(const TestModel& model, const Manifest& manifest,
                              const RankSpec& sizes) {
  std::vector<Layout> layouts;
  for (const RankSpec& rank : AllRanks(sizes)) {
    auto layout = MakeLayout(model.config.dump(), manifest, rank, 1);
    REQUIRE_OK(layout);
    layouts.push_back(*std::move(layout));
  }
  return layouts;
}

using Places = std::vector<std::pair<uint32_t, uint64_t>>;

// Ranks that hold an element, and where.
Places PlacesOf(const std::vector<Layout>& layouts, TensorIndex tensor, uint64_t element) {
  Places places;
  for (uint32_t rank = 0; rank < layouts.size(); ++rank) {
    for (const Placement& placement : layouts[rank].placements(tensor)) {
      SegmentCursor cursor(placement);
      if (!cursor.Seek(element) || cursor.segment().begin > element) continue;
      const Segment& segment = cursor.segment();
      places.emplace_back(rank,
                          segment.local_begin + (element - segment.begin) * segment.local_stride);
    }
  }
  return places;
}

TEST_CASE("A12 rules: 2 KV heads over 8 and over 4 ranks, fused with q") {
  const TestModel model = MakeDecoder("Qwen2ForCausalLM", SmallSizes());
  const Manifest manifest = MakeManifest(model.tensors);
  const TensorIndex k = *manifest.Find("model.layers.0.self_attn.k_proj.weight");
  const TensorIndex v = *manifest.Find("model.layers.0.self_attn.v_proj.weight");
  const TensorIndex bias = *manifest.Find("model.layers.0.self_attn.v_proj.bias");
  // Row 2 is the first of head 1. Hidden size 3, head size 2.
  constexpr uint64_t kElement = 2 * 3 + 1;
  RankSpec sizes;
  sizes.tp_size = 8;
  auto layouts = LayoutsOf(model, manifest, sizes);
  // One q head, one k head, one v head: rows 0-1, 2-3, 4-5. Ranks 4 to 7 have head 1.
  REQUIRE(PlacesOf(layouts, k, kElement) == Places{{4, 7}, {5, 7}, {6, 7}, {7, 7}});
  REQUIRE(PlacesOf(layouts, v, kElement) == Places{{4, 13}, {5, 13}, {6, 13}, {7, 13}});
  REQUIRE(PlacesOf(layouts, bias, 1) == Places{{0, 5}, {1, 5}, {2, 5}, {3, 5}});
  auto map = RegionMap::Create(manifest, Pointers(layouts));
  REQUIRE_OK(map);
  REQUIRE(map->regions(k).size() == 2);
  REQUIRE(map->holders(map->regions(k)[1]).size() == 4);

  sizes.tp_size = 4;
  layouts = LayoutsOf(model, manifest, sizes);
  // Two q heads, one k head, one v head.
  REQUIRE(PlacesOf(layouts, k, kElement) == Places{{2, 13}, {3, 13}});
  REQUIRE(PlacesOf(layouts, v, kElement) == Places{{2, 19}, {3, 19}});

  sizes.tp_size = 2;
  layouts = LayoutsOf(model, manifest, sizes);
  REQUIRE(PlacesOf(layouts, k, kElement) == Places{{1, 25}});
}

TEST_CASE("A11 rules: of 8 experts over 4 ranks the last is on rank 3 alone, the first on rank 0") {
  DecoderSizes sizes = SmallSizes();
  sizes.experts = 8;  // of 8 x 3 elements
  const TestModel model = MakeDecoder("Qwen3MoeForCausalLM", sizes);
  const Manifest manifest = MakeManifest(model.tensors);
  for (const uint32_t dp : {1, 2, 4}) {
    RankSpec ranks;
    ranks.tp_size = 4 / dp;
    ranks.dp_size = dp;
    ranks.expert_parallel = true;
    const auto layouts = LayoutsOf(model, manifest, ranks);
    for (uint32_t expert = 0; expert < 8; ++expert) {
      // Gate above up, and down apart; the second of two experts lies behind the first.
      const std::map<std::string, uint64_t> offsets = {{"gate_proj", expert % 2 * 48},
                                                       {"up_proj", expert % 2 * 48 + 24},
                                                       {"down_proj", expert % 2 * 24}};
      for (const auto& [name, offset] : offsets) {
        const TensorIndex tensor = *manifest.Find(
            absl::StrCat("model.layers.1.mlp.experts.", expert, ".", name, ".weight"));
        REQUIRE(PlacesOf(layouts, tensor, 5) == Places{{expert / 2, offset + 5}});
        for (uint32_t rank = 0; rank < 4; ++rank) {
          REQUIRE(layouts[rank].placements(tensor).empty() == (rank != expert / 2));
        }
      }
    }
  }
}

TEST_CASE("rules: a vocabulary that padding leaves a rank without") {
  DecoderSizes sizes = SmallSizes();
  sizes.vocab = 65;  // padded to 128: 16 rows on each of 8 ranks
  const TestModel model = MakeDecoder("LlamaForCausalLM", sizes);
  const Manifest manifest = MakeManifest(model.tensors);
  RankSpec ranks;
  ranks.tp_size = 8;
  const auto layouts = LayoutsOf(model, manifest, ranks);
  const TensorIndex embedding = *manifest.Find("model.embed_tokens.weight");
  REQUIRE(layouts[4].placements(embedding).size() == 1);
  REQUIRE(layouts[4].placements(embedding)[0].elements() == 3);
  REQUIRE(layouts[5].placements(embedding).empty());
  REQUIRE_OK(CheckCoverage(manifest, Pointers(layouts)));
}

TEST_CASE("rules: tied embeddings") {
  DecoderSizes sizes = SmallSizes();
  sizes.is_tied = true;
  TestModel model = MakeDecoder("LlamaForCausalLM", sizes);
  RankSpec ranks;
  ranks.pp_size = 2;
  // Without a head of its own, the last stage keeps the embedding too.
  for (const Layout& layout : LayoutsOf(model, MakeManifest(model.tensors), ranks)) {
    REQUIRE(layout.buffers()[0].name == "model.embed_tokens.weight");
    REQUIRE(layout.aliases().empty());
  }

  model.Add("lm_head.weight", {sizes.vocab, sizes.hidden});  // ties are often saved nevertheless
  const Manifest manifest = MakeManifest(model.tensors);
  const TensorIndex embedding = *manifest.Find("model.embed_tokens.weight");
  const TensorIndex head = *manifest.Find("lm_head.weight");
  const auto require = [&](bool is_tied, std::vector<size_t> embeddings,
                           std::vector<size_t> heads) {
    const auto layouts = LayoutsOf(model, manifest, ranks);
    for (size_t rank = 0; rank < layouts.size(); ++rank) {
      REQUIRE(layouts[rank].CanonicalTensor(head) == (is_tied ? embedding : head));
      REQUIRE(layouts[rank].placements(embedding).size() == embeddings[rank]);
      REQUIRE(layouts[rank].placements(head).size() == heads[rank]);
    }
    REQUIRE_OK(CheckCoverage(manifest, Pointers(layouts)));
  };
  require(false, {1, 0}, {0, 1});  // no rank could tie them
  ranks.tie_word_embeddings = true;
  require(true, {1, 1}, {0, 0});
  ranks.pp_size = 1;
  require(true, {1}, {0});
  ranks.tie_word_embeddings = std::nullopt;
  require(true, {1}, {0});
  ranks.tie_word_embeddings = false;
  require(false, {1}, {1});

  const TestModel deepseek = MakeDeepSeek(SmallSizes(), true, 1, 1);
  ranks.tie_word_embeddings = true;
  REQUIRE_ERROR(MakeLayout(deepseek.config.dump(), MakeManifest(deepseek.tensors), ranks, 1),
                kInvalid, "'DeepseekV3ForCausalLM' has no tied embeddings");
}

TEST_CASE("rules: layers of pipeline stages") {
  const auto stages = [](uint64_t layers, uint32_t pp, std::vector<uint32_t> pp_layers = {}) {
    DecoderSizes sizes = SmallSizes();
    sizes.layers = layers;
    const TestModel model = MakeDecoder("LlamaForCausalLM", sizes);
    const Manifest manifest = MakeManifest(model.tensors);
    RankSpec ranks;
    ranks.pp_size = pp;
    ranks.pp_layers = std::move(pp_layers);
    std::vector<size_t> counts;
    for (const Layout& layout : LayoutsOf(model, manifest, ranks)) {
      size_t count = 0;
      for (const LayoutBuffer& buffer : layout.buffers()) {
        count += buffer.name.ends_with(".mlp.down_proj.weight");
      }
      counts.push_back(count);
    }
    return counts;
  };
  using Counts = std::vector<size_t>;
  REQUIRE(stages(8, 4) == Counts{2, 2, 2, 2});
  REQUIRE(stages(9, 4) == Counts{2, 2, 3, 2});
  REQUIRE(stages(10, 4) == Counts{2, 3, 3, 2});
  REQUIRE(stages(11, 4) == Counts{3, 3, 3, 2});
  REQUIRE(stages(2, 4) == Counts{0, 1, 1, 0});
  REQUIRE(stages(7, 3, {1, 5, 1}) == Counts{1, 5, 1});
}

void RequireRefused(const TestModel& model, const RankSpec& rank, const std::string& text) {
  REQUIRE_ERROR(MakeLayout(model.config.dump(), MakeManifest(model.tensors), rank, 1), kInvalid,
                text);
}

TEST_CASE("rules: an architecture without rules is refused by name, with the way out") {
  TestModel model = MakeDecoder("LlamaForCausalLM", SmallSizes());
  model.config["architectures"] = {"FancyForCausalLM"};
  RequireRefused(model, {}, "no placement rules for architecture 'FancyForCausalLM'");
  RequireRefused(model, {}, "LlamaForCausalLM, MistralForCausalLM");
  RequireRefused(model, {}, "write a layout: a file (docs/formats/layout.md)");
  model.config.erase("architectures");
  RequireRefused(model, {}, "no 'architectures'");
  REQUIRE_ERROR(MakeLayout("{", MakeManifest(model.tensors), {}, 1), kInvalid, "not a JSON object");
  REQUIRE(ArchitecturesWithRules().size() == 14);
}

TEST_CASE("rules: quantised checkpoints are refused with the reason") {
  TestModel model = MakeDecoder("LlamaForCausalLM", SmallSizes());
  model.config["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}};
  RequireRefused(model, {}, "'quantization_config', method 'gptq'");
  RequireRefused(model, {}, "no plain copy");
  model.config["quantization_config"] = nullptr;
  REQUIRE_OK(MakeLayout(model.config.dump(), MakeManifest(model.tensors), {}, 1));
  // Named by their tensors, whatever config.json says.
  model.Add("model.layers.0.mlp.down_proj.weight_scale_inv", {1, 1}, Dtype::kF32);
  model.Add("model.layers.0.mlp.up_proj.qweight", {1, 1}, Dtype::kI32);
  RequireRefused(model, {},
                 "it has: 'model.layers.0.mlp.down_proj.weight_scale_inv', "
                 "'model.layers.0.mlp.up_proj.qweight'");
}

TEST_CASE("rules: what cannot be divided is refused, all of it") {
  DecoderSizes sizes = SmallSizes();
  sizes.intermediate = 25;
  const TestModel model = MakeDecoder("LlamaForCausalLM", sizes);
  RankSpec rank;
  rank.tp_size = 3;
  RequireRefused(model, rank, "'num_attention_heads' 8 among 3 ranks");
  RequireRefused(model, rank, "'num_key_value_heads' 2 among 3 ranks");
  RequireRefused(model, rank, "'intermediate_size' 25 among 3 ranks");
  RequireRefused(model, rank, "'vocab_size', padded to 128 among 3 ranks");
  const TestModel moe = MakeDecoder("MixtralForCausalLM", SmallSizes());
  rank = {};
  rank.dp_size = 3;  // experts of 8 rows over three data parallel ranks
  RequireRefused(moe, rank, "'intermediate_size' 8 among 3 ranks");
  rank.expert_parallel = true;
  REQUIRE_OK(MakeLayout(moe.config.dump(), MakeManifest(moe.tensors), rank, 1));
}

TEST_CASE("rules: ranks outside their sizes are refused") {
  const TestModel model = MakeDecoder("LlamaForCausalLM", SmallSizes());
  RankSpec rank;
  rank.tp_rank = 2;
  rank.tp_size = 2;
  rank.dp_size = 0;
  rank.pp_size = 1 << 20;
  RequireRefused(model, rank, "tp_rank 2 with tp_size 2");
  RequireRefused(model, rank, "dp_rank 0 with dp_size 0");
  RequireRefused(model, rank, "pp_rank 0 with pp_size 1048576");
  rank = {};
  rank.pp_size = 2;
  rank.pp_layers = {1, 2};
  RequireRefused(model, rank, "2 stages of 3 layers together; the model has 2 layers");
  rank.pp_layers.clear();
  const TestModel bert = MakeBert("BertModel", SmallSizes(), "");
  RequireRefused(bert, rank, "architecture 'BertModel' has no pipeline stages");
  rank = {};
  rank.tp_size = 3;
  RequireRefused(bert, rank, "'type_vocab_size', padded to 64 among 3 ranks");
}

TEST_CASE("rules: tensors that lack, that are unlike, or that no rule places") {
  const TestModel good = MakeDecoder("LlamaForCausalLM", SmallSizes());
  const auto find = [](TestModel& model, const std::string& name) {
    return std::find_if(model.tensors.begin(), model.tensors.end(),
                        [&name](const TensorSpec& spec) { return spec.name == name; });
  };
  TestModel model = good;
  model.tensors.erase(find(model, "model.layers.1.mlp.up_proj.weight"));
  model.tensors.erase(find(model, "model.norm.weight"));
  RequireRefused(model, {},
                 "placing 'LlamaForCausalLM': tensors that the checkpoint lacks: "
                 "'model.norm.weight', 'model.layers.1.mlp.up_proj.weight'");
  model = good;
  find(model, "model.layers.1.mlp.up_proj.weight")->shape = {24, 4};
  RequireRefused(model, {},
                 "another shape than config.json says: 'model.layers.1.mlp.up_proj.weight' "
                 "[24, 4], not [24, 3]");
  model = good;
  find(model, "model.layers.0.self_attn.k_proj.weight")->dtype = Dtype::kF32;
  RequireRefused(model, {},
                 "of unlike dtypes: 'model.layers.0.self_attn.k_proj.weight' F32, not BF16");
  model = good;
  model.Add("model.layers.0.self_attn.extra", {2});
  model.Add("model.layers.2.input_layernorm.weight", {3});
  RequireRefused(model, {},
                 "'model.layers.0.self_attn.extra', "
                 "'model.layers.2.input_layernorm.weight'");
  RequireRefused(model, {}, "tensors that no rule places");
  model = good;
  model.Add("model.layers.0.self_attn.rotary_emb.inv_freq", {2}, Dtype::kF32);
  const Manifest manifest = MakeManifest(model.tensors);
  const auto layout = MakeLayout(model.config.dump(), manifest, {}, 1);
  REQUIRE_OK(layout);
  REQUIRE(layout->ignored().size() == 1);
  model = good;
  for (TensorSpec& spec : model.tensors) spec.name = "module." + spec.name;
  RequireRefused(model, {}, "no tensor 'model.embed_tokens.weight'");
}

TEST_CASE("rules: config.json is not trusted") {
  const TestModel good = MakeDecoder("Qwen3MoeForCausalLM", SmallSizes());
  const auto refuse = [&good](const char* key, const nlohmann::json& value,
                              const std::string& text) {
    TestModel model = good;
    model.config[key] = value;
    RequireRefused(model, {}, text);
  };
  refuse("hidden_size", "wide", "'hidden_size' is string, not a whole number up to 2^31");
  refuse("hidden_size", -1, "'hidden_size' is -1, not a whole number");
  refuse("hidden_size", 2.5, "'hidden_size' is 2.5, not a whole number");
  refuse("hidden_size", uint64_t{1} << 40, "not a whole number up to 2^31");
  refuse("hidden_size", nullptr, "config.json lacks: 'hidden_size'");
  refuse("num_attention_heads", 0, "config.json lacks: 'num_attention_heads' or 'head_dim'");
  refuse("tie_word_embeddings", 1, "'tie_word_embeddings' is 1, not true or false");
  refuse("mlp_only_layers", {0, "one"}, "'mlp_only_layers' is array, not a list of whole numbers");
  refuse("num_hidden_layers", 0, "'num_hidden_layers' is 0");
  refuse("num_hidden_layers", 1u << 31, "for a checkpoint of");
  refuse("num_experts", 1u << 31,
         "tensors that the checkpoint lacks: "
         "'model.layers.0.mlp.experts.4.gate_proj.weight'");
  refuse("moe_intermediate_size", 1u << 31, "another shape than config.json says");
}

TestModel Qwen3Moe30B() {
  DecoderSizes sizes;
  sizes.layers = 48;
  sizes.hidden = 2048;
  sizes.heads = 32;
  sizes.kv_heads = 4;
  sizes.head_dim = 128;
  sizes.intermediate = 6144;
  sizes.vocab = 151936;
  sizes.experts = 128;
  sizes.expert_intermediate = 768;
  return MakeDecoder("Qwen3MoeForCausalLM", sizes);
}

TEST_CASE("rules: the layouts of Qwen3-30B-A3B over four ranks, and their cost") {
  const TestModel model = Qwen3Moe30B();
  const std::string config = model.config.dump();
  const Manifest manifest = MakeManifest(model.tensors);
  REQUIRE(manifest.size() == 18867);
  RankSpec rank;
  rank.tp_size = 4;
  // Time of the processor, as other programs may run beside this one.
  const auto elapsed_ms = [](std::clock_t since) {
    return 1000.0 * static_cast<double>(std::clock() - since) / CLOCKS_PER_SEC;
  };
  std::vector<Layout> layouts;
  for (rank.tp_rank = 0; rank.tp_rank < 4; ++rank.tp_rank) {
    const std::clock_t begin = std::clock();
    auto layout = MakeLayout(config, manifest, rank, 1);
    std::cout << "Qwen3-30B-A3B, rank " << rank.tp_rank << " of 4: layout in " << elapsed_ms(begin)
              << " ms\n";
    REQUIRE_OK(layout);
    REQUIRE(layout->placements().size() == 18867);
    layouts.push_back(*std::move(layout));
  }
  std::clock_t begin = std::clock();
  REQUIRE_OK(CheckCoverage(manifest, Pointers(layouts)));
  std::cout << "coverage of four ranks in " << elapsed_ms(begin) << " ms\n";
  begin = std::clock();
  const auto map = RegionMap::Create(manifest, Pointers(layouts));
  std::cout << "regions of four ranks in " << elapsed_ms(begin) << " ms\n";
  REQUIRE_OK(map);
  // Norms, routers and their like are whole on all ranks; the rest is in four parts.
  REQUIRE(map->regions().size() == 18867 * 4 - 3 * (48 * 5 + 1));
}

}  // namespace
}  // namespace wstore
