// Replicas placed as an engine places its weights, compared with the engine itself.
#include <cstring>
#include <set>

#include "tests/conformance/replica/story.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "tests/unit/transfer/reference_engine.h"
#include "wstore/placement_rules.h"

namespace wstore::testing {
namespace {

// The ranks of an engine, what their parameters are made of, and their layouts.
struct Engine {
  Engine(const TestModel& model, const Manifest& manifest, const RankSpec& sizes) {
    for (uint32_t i = 0; i < sizes.dp_size * sizes.pp_size * sizes.tp_size; ++i) {
      RankSpec rank = sizes;
      rank.tp_rank = i % sizes.tp_size;
      rank.pp_rank = i / sizes.tp_size % sizes.pp_size;
      rank.dp_rank = i / sizes.tp_size / sizes.pp_size;
      absl::StatusOr<Layout> layout = MakeLayout(model.config.dump(), manifest, rank, 1);
      REQUIRE_OK(layout);
      const auto named = LoadParameters(model, manifest, rank);
      parameters.emplace_back();
      for (const LayoutBuffer& buffer : layout->buffers()) {
        parameters.back().push_back(named.at(buffer.name));
      }
      layouts.push_back(*std::move(layout));
    }
  }

  // Calls visit(id, bytes of the element) for all elements of a rank's memory but padding.
  template <typename Visit>
  void ForElements(Instance& instance, uint32_t rank, Visit&& visit) const {
    for (uint32_t buffer = 0; buffer < parameters[rank].size(); ++buffer) {
      const std::vector<int64_t>& ids = parameters[rank][buffer];
      const std::vector<uint8_t> bytes = instance.ReadBuffer(rank, buffer);
      const size_t width = ids.empty() ? 1 : bytes.size() / ids.size();
      if (bytes.size() != ids.size() * width) FAIL("a buffer of another size");
      for (size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] != kPadding) visit(ids[i], absl::MakeConstSpan(&bytes[i * width], width));
      }
    }
  }

  std::vector<std::vector<std::vector<int64_t>>> parameters;  // by rank, buffer and place
  std::vector<Layout> layouts;
};

bool IsAt(const Model& model, int64_t id, absl::Span<const uint8_t> bytes) {
  const std::vector<uint8_t>& tensor = model[id / kTensorStep];
  return std::memcmp(&tensor[id % kTensorStep * bytes.size()], bytes.data(), bytes.size()) == 0;
}

// Every element that any rank has is that of the model, and every element of every tensor that the
// engine keeps is with some rank.
void RequireGathered(const Engine& engine, Instance& instance, const Manifest& manifest,
                     const std::vector<TensorIndex>& kept, const Model& model) {
  std::vector<uint64_t> found(manifest.size());
  std::set<int64_t> ids;
  for (uint32_t rank = 0; rank < instance.ranks(); ++rank) {
    uint64_t wrong = 0;
    engine.ForElements(instance, rank, [&](int64_t id, absl::Span<const uint8_t> bytes) {
      if (!IsAt(model, id, bytes)) ++wrong;
      if (ids.insert(id).second) ++found[id / kTensorStep];
    });
    CAPTURE(rank);
    REQUIRE(wrong == 0);
  }
  for (const TensorIndex tensor : kept) {
    CAPTURE(manifest.tensor(tensor).spec.name);
    REQUIRE(found[tensor] == manifest.tensor(tensor).elements);
  }
}

TestModel AnyModel(std::mt19937_64& random) {
  DecoderSizes sizes;
  sizes.layers = 2;
  sizes.kv_heads = std::vector<uint64_t>{1, 2, 4}[Below(random, 3)];
  sizes.experts = 4 + 4 * Below(random, 2);
  sizes.is_tied = Below(random, 2) == 0;
  const std::vector<std::string> architectures = {"LlamaForCausalLM", "Qwen2ForCausalLM",
                                                  "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
                                                  "MixtralForCausalLM"};
  const uint64_t which = Below(random, architectures.size() + 1);
  if (which == architectures.size()) {
    sizes.is_tied = false;
    return MakeDeepSeek(sizes, Below(random, 2) == 0, 1, 1);
  }
  TestModel model = MakeDecoder(architectures[which], sizes);
  // A tie may be saved nevertheless: two tensors of the checkpoint, one memory.
  if (sizes.is_tied && Below(random, 2) == 0) {
    model.Add("lm_head.weight", {sizes.vocab, sizes.hidden});
  }
  return model;
}

TEST_CASE("replica rules: random engines, gathered from all ranks after every step") {
  std::mt19937_64 random(TestSeed("replica rules"));
  for (int i = 0; i < 5; ++i) {
    const TestModel model = AnyModel(random);
    const Manifest manifest = MakeManifest(model.tensors);
    RankSpec sizes;
    sizes.tp_size = 1u << Below(random, 3);
    sizes.pp_size = 1 + static_cast<uint32_t>(Below(random, 2));
    sizes.dp_size = 1 + static_cast<uint32_t>(Below(random, 2));
    sizes.expert_parallel = Below(random, 2) == 0;
    CAPTURE(model.config.dump(), sizes.tp_size, sizes.pp_size, sizes.dp_size,
            sizes.expert_parallel);
    const Engine engine(model, manifest, sizes);
    std::vector<TensorIndex> kept;
    for (TensorIndex tensor = 0; tensor < manifest.size(); ++tensor) {
      const Layout& first = engine.layouts[0];
      const auto& ignored = first.ignored();
      if (first.CanonicalTensor(tensor) == tensor &&
          std::find(ignored.begin(), ignored.end(), tensor) == ignored.end()) {
        kept.push_back(tensor);
      }
    }
    Story story(random, manifest, engine.layouts);
    for (int step = 0; step < 4; ++step) {
      story.Step();
      RequireGathered(engine, story.instance(), manifest, kept, story.publisher().model());
    }
  }
}

TEST_CASE("replica rules: Qwen3-MoE on TP2 and EP2, gate and up rows of two experts") {
  std::mt19937_64 random(TestSeed("replica experts"));
  DecoderSizes sizes;
  sizes.layers = 1;
  const TestModel model = MakeDecoder("Qwen3MoeForCausalLM", sizes);
  const Manifest manifest = MakeManifest(model.tensors);
  RankSpec spec;
  spec.tp_size = 2;
  spec.expert_parallel = true;
  const Engine engine(model, manifest, spec);
  Publisher publisher(manifest, RandomModel(manifest, random));
  Instance instance(manifest, publisher.key(), engine.layouts, {});
  instance.Load(publisher);

  // Of four experts rank 0 has 0 and 1, rank 1 has 2 and 3. Row 3 of expert 1, row 5 of expert 2.
  Changes changes;
  std::vector<std::set<int64_t>> expected(2);
  for (const uint32_t rank : {0, 1}) {
    for (const std::string projection : {"gate_proj", "up_proj"}) {
      const std::string name =
          "model.layers.0.mlp.experts." + std::to_string(1 + rank) + "." + projection + ".weight";
      const std::optional<TensorIndex> tensor = manifest.Find(name);
      REQUIRE(tensor.has_value());
      for (uint64_t column = 0; column < sizes.hidden; ++column) {
        const uint64_t element = (3 + 2 * rank) * sizes.hidden + column;
        changes[{*tensor, element}] = 1 + column;
        expected[rank].insert(ElementId(*tensor, element));
      }
    }
  }
  Update update = publisher.Publish(changes);
  update.chunks = EncodeChanges(manifest, changes,
                                {.transaction = update.header.transaction, .tiles_per_chunk = 2},
                                &update.summary.contents);
  REQUIRE(update.chunks.size() == 2);
  const Model before = publisher.model();
  REQUIRE_OK(instance.Run(update));
  publisher.Commit(update);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    std::set<int64_t> changed;
    uint64_t wrong = 0;
    engine.ForElements(instance, rank, [&](int64_t id, absl::Span<const uint8_t> bytes) {
      if (!IsAt(before, id, bytes)) changed.insert(id);
      if (!IsAt(publisher.model(), id, bytes)) ++wrong;
    });
    CAPTURE(rank);
    REQUIRE(wrong == 0);
    REQUIRE(changed == expected[rank]);
    REQUIRE(instance.Holds(rank, publisher.model()));
    REQUIRE(instance.events(rank).back().elements == changed.size());
  }
}

}  // namespace
}  // namespace wstore::testing
