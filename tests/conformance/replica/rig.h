// Replicas whose backend can be made to fail.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/replica/faulty_backend.h"
#include "tests/conformance/replica/instance.h"

namespace wstore::testing {

// Eight tensors: with a chunk a tile, the units of an update are one each.
inline Manifest EightTensors() {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 8; ++i) {
    specs.push_back({"t" + std::to_string(i), i % 2 == 0 ? Dtype::kBF16 : Dtype::kF32, {20, 30}});
  }
  return MakeManifest(specs);
}

// Each rank has all of the model.
struct Rig {
  explicit Rig(uint64_t seed, size_t ranks = 1, uint64_t read_ahead_groups = UINT64_MAX)
      : random(seed), manifest(EightTensors()), publisher(manifest, RandomModel(manifest, random)) {
    std::vector<Layout> layouts;
    for (size_t i = 0; i < ranks; ++i) layouts.push_back(WholeLayout(manifest));
    Instance::Options options;
    options.read_ahead_groups = read_ahead_groups;
    options.wrap = [this](uint32_t, std::shared_ptr<MemoryBackend> inner) {
      backends.push_back(std::make_shared<FaultyBackend>(std::move(inner)));
      return backends.back();
    };
    instance = std::make_unique<Instance>(manifest, publisher.key(), std::move(layouts), options);
    instance->Load(publisher);
  }

  Replica& replica() { return instance->replica(0); }
  FaultyBackend& backend() { return *backends[0]; }
  // A chunk for each tensor.
  Update NewUpdate() {
    const Changes changes = RandomChanges(manifest, 25, random);
    Update update = publisher.Publish(changes);
    update.chunks = EncodeChanges(manifest, changes,
                                  {.transaction = update.header.transaction, .tiles_per_chunk = 1},
                                  &update.summary.contents);
    return update;
  }

  std::mt19937_64 random;
  const Manifest manifest;
  Publisher publisher;
  std::vector<std::shared_ptr<FaultyBackend>> backends;
  std::unique_ptr<Instance> instance;
};

}  // namespace wstore::testing
