// Head's bits in memory: the same versions come out, whatever the image holds at the moment.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/random.h"
#include "tests/unit/store/store_fixture.h"

namespace wstore::testing {
namespace {

// False: not within that time.
bool WaitForImage(Store& store, VersionId version,
                  std::chrono::milliseconds time = std::chrono::seconds(30)) {
  const auto deadline = std::chrono::steady_clock::now() + time;
  while (store.status().image != version) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

OpenOptions WithImage(const Store& store) {
  OpenOptions options;
  options.actor = "tester";
  options.head_image_bytes = store.manifest().size_bytes();
  return options;
}

TEST_CASE("publishes onto the image of head make the same versions as onto the base") {
  const uint64_t seed = TestSeed("image");
  StoreFixture fixture(seed);
  REQUIRE_FALSE(fixture.store().status().image.has_value());
  fixture.Reopen(WithImage(fixture.store()));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 20; ++i) {
    INFO("step " << i);
    const uint64_t versions = fixture.store().versions().size();
    if (random() % 3 == 0) {
      RollbackOptions rollback;
      rollback.to = VersionId(random() % versions);
      REQUIRE_OK(fixture.store().Rollback(rollback));
      REQUIRE_OK(fixture.store().Resume());
    }
    // Sometimes the image has had the time to get to head, sometimes it is on its way.
    const VersionId head = fixture.store().head().version;
    if (random() % 2 == 0) REQUIRE(WaitForImage(fixture.store(), head));
    REQUIRE_OK(fixture.Publish(fixture.Changed(fixture.version(head.value()), 0.01)));
  }
  REQUIRE(WaitForImage(fixture.store(), fixture.store().head().version));
  // Single values, whose old bits come from the image.
  NaiveTensors expected = fixture.version(fixture.store().head().version.value());
  const int64_t index = 69999;
  const uint8_t value = 0x7b;
  expected["layer.1.codes"].bytes[index] = static_cast<char>(value);
  auto transaction = fixture.store().Begin({});
  REQUIRE_OK(transaction);
  TensorPatch patch;
  patch.name = "layer.1.codes";
  patch.dtype = Dtype::kI8;
  patch.shape = {70000};
  patch.indices = absl::MakeConstSpan(&index, 1);
  patch.values = absl::MakeConstSpan(&value, 1);
  REQUIRE_OK((*transaction)->Add({patch}));
  const auto result = (*transaction)->Commit();
  REQUIRE_OK(result);
  REQUIRE(fixture.Exported(result->version.value()) == expected);
  fixture.RequireAllVersions();
}

TEST_CASE("B13 a base that changed is refused although its bits are in memory") {
  StoreFixture fixture;
  fixture.Reopen(WithImage(fixture.store()));
  REQUIRE(WaitForImage(fixture.store(), VersionId(0)));
  const std::string bytes = ReadFile(fixture.base_file());
  std::filesystem::remove(fixture.base_file());
  WriteFile(fixture.base_file(), bytes);
  REQUIRE_ERROR(fixture.Publish(fixture.Changed(fixture.version(0), 0.01)),
                absl::StatusCode::kFailedPrecondition, "model.safetensors");
}

TEST_CASE("a model over the limit has no image, and a damaged base makes none") {
  StoreFixture fixture;
  OpenOptions options = WithImage(fixture.store());
  --options.head_image_bytes;
  fixture.Reopen(options);
  REQUIRE_OK(fixture.Publish(fixture.Changed(fixture.version(0), 0.01)));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  REQUIRE_FALSE(fixture.store().status().image.has_value());

  // One bit, with the file's times put back: only the sums can tell.
  const auto time = std::filesystem::last_write_time(fixture.base_file());
  std::fstream file(fixture.base_file(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const char last = static_cast<char>(file.get() ^ 1);
  file.seekp(-1, std::ios::end);
  file.put(last);
  file.close();
  std::filesystem::last_write_time(fixture.base_file(), time);
  ++options.head_image_bytes;
  fixture.Reopen(options);
  REQUIRE_FALSE(WaitForImage(fixture.store(), VersionId(1), std::chrono::milliseconds(300)));
}

TEST_CASE("an image moves while others publish, read and look") {
  StoreFixture fixture;
  fixture.Reopen(WithImage(fixture.store()));
  std::atomic<bool> done = false;
  std::atomic<int> failures = 0;
  std::thread looker([&] {
    while (!done) {
      const VersionId head = fixture.store().head().version;
      if (!fixture.store().DescribeDifference(VersionId(0), head).ok()) ++failures;
    }
  });
  for (int i = 0; i < 10; ++i) {
    REQUIRE_OK(fixture.Publish(fixture.Changed(fixture.version(i), 0.01)));
  }
  done = true;
  looker.join();
  REQUIRE(failures == 0);
  fixture.RequireAllVersions();
}

}  // namespace
}  // namespace wstore::testing
