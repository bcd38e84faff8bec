// A store on a file system that runs full.
#include <sys/mount.h>

#include <filesystem>

#include "tests/crash/model.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "wstore/store.h"

namespace wstore::testing {
namespace {

// A tmpfs of its own; needs root.
class SmallDisk {
 public:
  bool Mount() {
    return mount("tmpfs", directory_.path().c_str(), "tmpfs", 0, "size=24m") == 0 &&
           (is_mounted_ = true);
  }
  void Grow() {
    REQUIRE(mount("tmpfs", directory_.path().c_str(), "tmpfs", MS_REMOUNT, "size=256m") == 0);
  }
  ~SmallDisk() {
    if (is_mounted_) umount2(directory_.path().c_str(), MNT_DETACH);
  }
  std::string operator/(const std::string& name) const { return directory_ / name; }

 private:
  TempDir directory_;
  bool is_mounted_ = false;
};

absl::StatusOr<CommitResult> Publish(Store& store, const std::string& checkpoint) {
  auto transaction = store.Begin({});
  if (!transaction.ok()) return transaction.status();
  const absl::Status set = (*transaction)->SetCheckpoint(checkpoint);
  if (!set.ok()) return set;
  return (*transaction)->Commit();
}

void RequireSound(Store& store, VersionId last) {
  REQUIRE(store.head().version == last);
  REQUIRE(store.versions().back().version == last);
  VerifyOptions all;
  all.all = true;
  const auto report = store.Verify(all);
  REQUIRE_OK(report);
  for (const VerifyProblem& problem : report->problems) FAIL(problem.what);
}

TEST_CASE("C01 on a full disk a publish fails, what was acknowledged stays, and space heals it") {
  TempDir directory;
  SmallDisk disk;
  if (!disk.Mount()) SKIP_TEST("mounting a tmpfs needs root");
  NaiveTensors tensors = CrashModelBase();
  WriteFile(directory / "base.safetensors", NaiveWrite(tensors, NamesOf(tensors)));
  auto store = Store::Create(disk / "store", directory / "base.safetensors", {});
  REQUIRE_OK(store);

  // Dense versions of about a megabyte, until there is no room.
  VersionId last(0);
  absl::Status full;
  const std::string checkpoint = directory / "next.safetensors";
  for (uint64_t n = 1; n <= 30 && full.ok(); ++n) {
    MutateCrashModel(3 * n, &tensors);
    WriteFile(checkpoint, NaiveWrite(tensors, NamesOf(tensors)));
    const auto result = Publish(**store, checkpoint);
    full = result.status();
    if (result.ok()) last = result->version;
  }
  INFO(full.ToString());
  REQUIRE(last > VersionId(1));
  REQUIRE((absl::IsResourceExhausted(full) || absl::IsUnknown(full)));
  if (absl::IsResourceExhausted(full)) {
    REQUIRE_THAT(std::string(full.message()), Catch::Matchers::Contains("pace"));
    RequireSound(**store, last);
  } else {
    REQUIRE((*store)->status().state == "read-only");
  }
  ExportOptions options;
  options.directory = directory / "export";
  REQUIRE_OK((*store)->Export(last, options));

  // Looking works on the full disk too.
  OpenOptions look;
  look.read_only = true;
  const auto reader = Store::Open(disk / "store", look);
  REQUIRE_OK(reader);
  const VersionId seen = (*reader)->head().version;
  REQUIRE(seen >= last);

  disk.Grow();
  if (absl::IsUnknown(full)) {
    store->reset();
    store = Store::Open(disk / "store", {});
    REQUIRE_OK(store);
    last = (*store)->head().version;
    REQUIRE(last == seen);
  }
  const auto again = Publish(**store, checkpoint);
  REQUIRE_OK(again);
  RequireSound(**store, again->version);
  store->reset();
  store = Store::Open(disk / "store", {});
  REQUIRE_OK(store);
  RequireSound(**store, again->version);
}

}  // namespace
}  // namespace wstore::testing
