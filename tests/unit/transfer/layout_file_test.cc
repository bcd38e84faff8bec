#include "wstore/layout_file.h"

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "tests/unit/transfer/placement_reference.h"
#include "tests/unit/transfer/test_models.h"
#include "wstore/layout_builder.h"
#include "wstore/placement_rules.h"

namespace wstore {
namespace {

using testing::Below;
using testing::MakeManifest;
using testing::TestSeed;
using Json = nlohmann::json;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Manifest ExampleManifest() {
  return MakeManifest({{"head", Dtype::kBF16, {4, 6}},
                       {"k", Dtype::kBF16, {4, 6}},
                       {"norm", Dtype::kF32, {6}},
                       {"q", Dtype::kBF16, {4, 6}},
                       {"table", Dtype::kF32, {8}}});
}

// The first indented block of docs/formats/layout.md, the example.
std::string ExampleText() {
  std::ifstream file(WSTORE_TEST_DATA_DIR "/../../docs/formats/layout.md");
  std::string text;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("    ")) {
      text += line.substr(4) + "\n";
    } else if (!text.empty()) {
      break;
    }
  }
  return text;
}

TEST_CASE("layout file: the documented example is read, and written again as it is") {
  const Manifest manifest = ExampleManifest();
  const auto layout = ReadLayout(ExampleText(), manifest, 7);
  REQUIRE_OK(layout);
  REQUIRE(WriteLayout(manifest, *layout) == ExampleText());
  REQUIRE(layout->generation() == 7);
  REQUIRE(layout->placements(*manifest.Find("k")).size() == 2);
  const Placement transposed{*manifest.Find("k"), 0, 0, 0, {{4, 6, 1}, {6, 1, 4}}};
  REQUIRE(layout->placements(*manifest.Find("k"))[0] == transposed);
  const Placement q{*manifest.Find("q"), 12, 2, 0, {{12, 1, 1}}};
  REQUIRE(layout->placements(*manifest.Find("q"))[0] == q);
  REQUIRE(layout->CanonicalTensor(*manifest.Find("head")) == *manifest.Find("q"));
  REQUIRE(layout->ignored() == std::vector<TensorIndex>{*manifest.Find("table")});
}

TEST_CASE("layout file: its digest is that of the document") {
  // One buffer "b" F32 [2], and tensor "t" whole in it.
  const Manifest manifest = MakeManifest({{"t", Dtype::kF32, {2}}});
  LayoutBuilder builder(manifest);
  builder.Place(builder.Tensor("t"), builder.Buffer({"b", Dtype::kF32, {2}}));
  Sha256 hash;
  hash.UpdateU64(15).Update("wstore layout 1");
  hash.UpdateU64(1).UpdateU64(1).Update("b").UpdateU64(16).UpdateU64(1).UpdateU64(2);
  hash.UpdateU64(1).UpdateU64(1).Update("t").UpdateU64(0).UpdateU64(0).UpdateU64(0).UpdateU64(1);
  hash.UpdateU64(2).UpdateU64(1).UpdateU64(1).UpdateU64(0).UpdateU64(0);
  REQUIRE(builder.Build(1)->digest() == hash.Finish());
}

void RequireRoundTrip(const Manifest& manifest, const Layout& layout) {
  const std::string text = WriteLayout(manifest, layout);
  const auto again = ReadLayout(text, manifest, 1);
  INFO(text);
  REQUIRE_OK(again);
  REQUIRE(again->digest() == layout.digest());
  REQUIRE(again->placements() == layout.placements());
  REQUIRE(again->buffers() == layout.buffers());
  REQUIRE(again->aliases() == layout.aliases());
  REQUIRE(again->ignored() == layout.ignored());
  REQUIRE(WriteLayout(manifest, *again) == text);
}

TEST_CASE("layout file: layouts of all kinds survive writing and reading") {
  std::mt19937_64 random(TestSeed("layout file"));
  size_t loops = 0;
  size_t slices = 0;
  size_t strides = 0;
  for (int round = 0; round < 400; ++round) {
    Shape shape;
    for (uint64_t i = Below(random, 4); i > 0; --i) shape.push_back(2 * (1 + Below(random, 4)));
    const Manifest manifest = MakeManifest({{"t \"\\\n\u00e9", Dtype::kBF16, shape}});
    LayoutBuilder builder(manifest);
    for (int i = 0; i < 3; ++i) {
      // A part of the tensor, in a buffer of the part's shape or of any other, with padding.
      StridedView part = builder.Tensor(TensorIndex{0});
      if (part.dims() > 0 && Below(random, 2) == 0) {
        const size_t dim = Below(random, part.dims());
        part = part.Split(dim, part.count(dim) / 2);
      }
      Shape padded;
      std::vector<size_t> order;
      for (size_t dim = 0; dim < part.dims(); ++dim) {
        if (Below(random, 2) == 0) {
          const uint64_t begin = Below(random, part.count(dim));
          const uint64_t end = begin + 1 + Below(random, part.count(dim) - begin);
          part = part.Slice(dim, begin, end, 1 + Below(random, 2));
        }
        padded.push_back(part.count(dim) + Below(random, 2));
        order.push_back(dim);
      }
      StridedView buffer = builder.Buffer({std::string(1, 'a' + i), Dtype::kBF16, padded});
      for (size_t dim = 0; dim < part.dims(); ++dim) {
        buffer = buffer.Slice(dim, padded[dim] - part.count(dim), padded[dim]);
      }
      if (Below(random, 4) == 0) {
        // Back to front, if that has the same shape.
        std::reverse(order.begin(), order.end());
        bool is_symmetric = true;
        for (size_t dim = 0; dim < part.dims(); ++dim) {
          is_symmetric = is_symmetric && part.count(dim) == part.count(order[dim]);
        }
        if (is_symmetric) buffer = buffer.Permute(order);
      }
      builder.Place(part, buffer);
    }
    const auto layout = builder.Build(1);
    REQUIRE_OK(layout);
    RequireRoundTrip(manifest, *layout);
    const std::string text = WriteLayout(manifest, *layout);
    loops += text.find("\"loops\"") != std::string::npos;
    slices += text.find("\"slice\"") != std::string::npos;
    strides += text.find("\"strides\"") != std::string::npos;
  }
  REQUIRE(loops > 0);
  REQUIRE(slices > 100);
  REQUIRE(strides > 10);
}

TEST_CASE("layout file: blocks of a dimension are loops") {
  const Manifest manifest = MakeManifest({{"t", Dtype::kBF16, {4, 8}}});
  LayoutBuilder builder(manifest);
  builder.Place(builder.Tensor("t").Split(1, 4),
                builder.Buffer({"b", Dtype::kBF16, {2, 4, 4}}).Permute({1, 0, 2}));
  const auto layout = builder.Build(1);
  REQUIRE_OK(layout);
  REQUIRE_THAT(WriteLayout(manifest, *layout),
               Catch::Matchers::Contains(R"({"tensor": "t", "buffer": "b", "from": 0, "to": 0, )"
                                         R"("loops": [[4, 8, 4], [2, 4, 16], [4, 1, 1]]})"));
  RequireRoundTrip(manifest, *layout);
}

TEST_CASE("layout file: damaged text is refused or is another layout") {
  std::mt19937_64 random(TestSeed("damaged layout file"));
  const Manifest manifest = ExampleManifest();
  const std::string good = ExampleText();
  size_t refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string text = good;
    for (uint64_t i = 1 + Below(random, 3); i > 0; --i) {
      const size_t at = Below(random, text.size());
      switch (Below(random, 4)) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text[at] = static_cast<char>('0' + Below(random, 10));
          break;
        case 2:
          text.erase(at, 1 + Below(random, 20));
          break;
        default:
          text.insert(at, text.substr(Below(random, text.size()), Below(random, 20)));
      }
      if (text.empty()) text = " ";
    }
    const auto layout = ReadLayout(text, manifest, 1);
    if (!layout.ok()) {
      REQUIRE(layout.status().code() == kInvalid);
      ++refused;
    } else {
      RequireRoundTrip(manifest, *layout);
    }
  }
  REQUIRE(refused > 1000);
}

TEST_CASE("layout file: that of a fused model reads like slices") {
  testing::DecoderSizes sizes;
  sizes.is_tied = true;
  testing::TestModel model = MakeDecoder("Qwen3MoeForCausalLM", sizes);
  model.Add("lm_head.weight", {sizes.vocab, sizes.hidden});
  const Manifest manifest = MakeManifest(model.tensors);
  RankSpec rank;
  rank.tp_rank = 1;
  rank.tp_size = 2;
  const auto layout = MakeLayout(model.config.dump(), manifest, rank, 1);
  REQUIRE_OK(layout);
  RequireRoundTrip(manifest, *layout);
  const std::string text = WriteLayout(manifest, *layout);
  const auto require_line = [&text](const std::string& layer, const std::string& tensor,
                                    const std::string& box, const std::string& buffer,
                                    const std::string& slice) {
    const std::string line = R"({"tensor": ")" + layer + tensor + R"(", "box": )" + box +
                             R"(, "buffer": ")" + layer + buffer + R"(", "slice": )" + slice + "}";
    REQUIRE_THAT(text, Catch::Matchers::Contains(line));
  };
  require_line("model.layers.0.self_attn.", "k_proj.weight", "[[4, 8], [0, 16]]", "qkv_proj.weight",
               "[[8, 12], [0, 16]]");
  require_line("model.layers.1.mlp.experts.", "3.up_proj.weight", "[[4, 8], [0, 16]]",
               "routed_experts.w13_weight", "[[3, 4], [4, 8], [0, 16]]");
  require_line("model.layers.1.mlp.experts.", "3.down_proj.weight", "[[0, 16], [4, 8]]",
               "routed_experts.w2_weight", "[[3, 4], [0, 16], [0, 4]]");
  for (const char* line : {R"(["model.embed_tokens.weight", "lm_head.weight"])",
                           R"({"name": "model.layers.0.self_attn.qkv_proj.weight", "dtype": )"
                           R"("BF16", "shape": [16, 16]})"}) {
    REQUIRE_THAT(text, Catch::Matchers::Contains(line));
  }
}

TEST_CASE("layout file: what is not one is refused") {
  const Manifest manifest = ExampleManifest();
  const auto refuse = [&](const std::function<void(Json&)>& change, const std::string& text) {
    Json json = Json::parse(ExampleText());
    change(json);
    REQUIRE_ERROR(ReadLayout(json.dump(), manifest, 1), kInvalid, text);
  };
  REQUIRE_ERROR(ReadLayout("", manifest, 1), kInvalid, "not JSON");
  REQUIRE_ERROR(ReadLayout(ExampleText().substr(0, 500), manifest, 1), kInvalid, "not JSON");
  REQUIRE_ERROR(ReadLayout("[]", manifest, 1), kInvalid, "not a JSON object");
  REQUIRE_ERROR(ReadLayout(std::string(100000, '['), manifest, 1), kInvalid, "not JSON");
  std::string twice = ExampleText();
  twice.insert(twice.rfind('}'), ", \"ignored\": [], \"buffers\": []");
  REQUIRE_ERROR(ReadLayout(twice, manifest, 1), kInvalid,
                "keys that an object has twice: 'ignored', 'buffers'");
  refuse([](Json& json) { json["format"] = "other"; }, "\"format\" is not");
  refuse([](Json& json) { json["version"] = 2; }, "\"version\" is not 1");
  refuse([](Json& json) { json["alias"] = Json::array(); }, "the file has an unknown key 'alias'");
  refuse([](Json& json) { json.erase("placements"); }, "has no list 'placements'");
  refuse([](Json& json) { json["buffers"] = 3; }, "has no list 'buffers'");
  refuse([](Json& json) { json["buffers"][0] = 3; }, "buffers[0] is not an object");
  refuse([](Json& json) { json["buffers"][0]["dtype"] = "BF17"; }, "unknown dtype 'BF17'");
  refuse(
      [](Json& json) {
        json["buffers"][0]["shape"] = {4, -1};
      },
      "buffers[0] has no list of whole numbers 'shape'");
  refuse([](Json& json) { json["buffers"][0]["shape"] = {4, 1.5}; }, "whole numbers 'shape'");
  refuse(
      [](Json& json) {
        json["buffers"][0]["shape"] = {uint64_t{1} << 40, uint64_t{1} << 40};
      },
      "does not fit in 2^60 bytes");
  refuse([](Json& json) { json["placements"][1]["slize"] = 1; },
         "placements[1] has an unknown key 'slize'");
  refuse([](Json& json) { json["placements"][1]["offset"] = 1; }, "an unknown key 'offset'");
  refuse([](Json& json) { json["placements"][1].erase("box"); },
         "placements[1] has no 'box', a list of lists of 2 or 3 whole numbers");
  refuse(
      [](Json& json) {
        json["placements"][1]["box"] = {{0, 4}};
      },
      "placements[1] has a 'box' of 1 dimensions, not 2");
  refuse([](Json& json) { json["placements"][1]["slice"][0] = {0}; }, "has no 'slice'");
  refuse(
      [](Json& json) {
        json["placements"][1]["slice"][0] = {4, 9};
      },
      "slice [4, 9) by 1 of dimension 0 of a view of shape [4, 6]");
  refuse([](Json& json) { json["placements"][1]["box"][1] = {3, ~uint64_t{0}}; }, "slice [3, ");
  refuse([](Json& json) { json["placements"][1]["box"][1] = {0, 6, 0}; }, "by 0 of dimension 1");
  refuse(
      [](Json& json) {
        json["placements"][1]["box"][1] = {0, 5};
      },
      "view of shape [2, 5] of tensor 'k' placed at a view of shape [2, 6] of buffer 'qk'");
  refuse([](Json& json) { json["placements"][0]["strides"] = {1}; }, "1 strides");
  refuse(
      [](Json& json) {
        json["placements"][0]["strides"] = {1, ~uint64_t{0}};
      },
      "out of the buffer's range: 'k' in 'k_transposed'");
  refuse([](Json& json) { json["placements"][0]["offset"] = 1; }, "out of the buffer's range");
  refuse(
      [](Json& json) {
        json["aliases"] = Json::array({Json::array({"q", 1})});
      },
      "aliases[0] is not a list of names of tensors");
  refuse([](Json& json) { json["ignored"] = {1}; }, "ignored[0] is not the name of a tensor");
  const Json loops = {{"tensor", "q"}, {"buffer", "qk"}, {"from", 0}, {"to", 0}};
  refuse(
      [&](Json& json) {
        json["placements"][3] = loops;
        json["placements"][3]["loops"] = {{2, 3}};
      },
      "placements[3] has no 'loops', a list of lists of 3 whole numbers");
  refuse(
      [&](Json& json) {
        json["placements"][3] = loops;
        json["placements"][3]["loops"] = {{~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}}};
      },
      "out of the tensor's range");
}

TEST_CASE("layout file: unknown tensors and buffers are listed, with near names") {
  const Manifest manifest = MakeManifest(
      {{"model.norm.weight", Dtype::kF32, {6}}, {"model.embed.weight", Dtype::kF32, {6}}});
  const std::string text = R"({"format": "wstore layout", "version": 1,
    "buffers": [{"name": "b", "dtype": "F32", "shape": [6]}],
    "placements": [
      {"tensor": "norm.weight", "box": [[0, 6]], "buffer": "b", "slice": [[0, 6]]},
      {"tensor": "model.embed.weight ", "box": [[0, 6]], "buffer": "b", "offset": 0, "strides": [1]}
    ],
    "ignored": ["nothing like it"]})";
  REQUIRE_ERROR(ReadLayout(text, manifest, 1), kInvalid,
                "tensors that the checkpoint does not have: 'model.embed.weight ' (near: "
                "'model.embed.weight'), 'norm.weight' (near: 'model.norm.weight'), "
                "'nothing like it'");
  std::string other = text;
  other.replace(other.find("\"buffer\": \"b\""), 13, "\"buffer\": \"c\"");
  REQUIRE_ERROR(ReadLayout(other, manifest, 1), kInvalid, "unknown buffers: 'c'");
}

}  // namespace
}  // namespace wstore
