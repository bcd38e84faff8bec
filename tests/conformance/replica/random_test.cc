// Random layouts, with stories of everything that can happen.
#include "tests/support/random.h"
#include "tests/conformance/replica/random_layouts.h"
#include "tests/conformance/replica/story.h"
#include "tests/support/catch.h"

namespace wstore::testing {
namespace {

Manifest RandomManifest(std::mt19937_64& random) {
  constexpr Dtype kDtypes[] = {Dtype::kBF16, Dtype::kF8E4M3, Dtype::kF32, Dtype::kI64};
  std::vector<TensorSpec> specs;
  const uint64_t count = 1 + Below(random, 4);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t rows = 1 + Below(random, i == 0 ? 300 : 30);
    specs.push_back({"t" + std::to_string(i),
                     kDtypes[Below(random, 4)],
                     {rows, 4 * (1 + Below(random, i == 0 ? 70 : 10))}});
  }
  return MakeManifest(specs);
}

TEST_CASE("replica: random stories end as the dense reference says") {
  std::mt19937_64 random(TestSeed("replica stories"));
  for (int i = 0; i < 8; ++i) {
    const Manifest manifest = RandomManifest(random);
    Story story(random, manifest, RandomLayouts(random, manifest));
    for (int step = 0; step < 6; ++step) {
      if (Below(random, 8) == 0) story.Sleep();
      story.Step();
    }
  }
}

}  // namespace
}  // namespace wstore::testing
