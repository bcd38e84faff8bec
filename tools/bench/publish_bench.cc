// wstore bench publish: the wall time of the whole command, and what it stores.
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tools/bench/bench.h"
#include "tools/bench/harness.h"
#include "tools/bench/workload.h"
#include "wstore/store.h"

namespace wstore::bench {
namespace {

constexpr uint64_t kElements = 256 << 20;  // 512 MiB
constexpr int kRepetitions = 5;

struct Case {
  double density;
  bool with_slow_rivals;
};

// Each repetition publishes into a fresh copy of the store, which is small: the base is not in it.
absl::StatusOr<double> TimePublish(const Options& options, const Scratch& scratch,
                                   const std::string& changed) {
  const std::string store = scratch / "copy";
  std::filesystem::remove_all(store);
  std::filesystem::copy(scratch / "store", store, std::filesystem::copy_options::recursive);
  return RunProgram({options.program, "--store", store, "publish", "--from", changed});
}

absl::StatusOr<double> TimeTool(const std::vector<std::string>& arguments, const std::string& out,
                                uint64_t* out_bytes) {
  ASSIGN_OR_RETURN(const double seconds, RunProgram(arguments));
  *out_bytes = std::filesystem::file_size(out);
  return seconds;
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> RunPublish(const Options& options) {
  std::vector<Case> cases = {{0.01, true}};
  if (options.full)
    cases.insert(cases.end(), {{0.0002, false}, {0.001, false}, {0.075, false}, {0.4, false}});
  ASSIGN_OR_RETURN(const Scratch scratch, Scratch::Create(options.directory));
  const std::string base = scratch / "base.safetensors";
  const std::string changed = scratch / "changed.safetensors";
  std::vector<Measurement> results;
  for (const Case& each : cases) {
    const std::string name = absl::StrCat("bf16 ", DensityName(each.density));
    options.report(absl::StrCat("publish ", name, ": making two checkpoints of 512 MiB"));
    const Workload workload{kElements, kElements / 64, each.density, 1};
    RETURN_IF_ERROR(WriteCheckpoints(workload, base, changed));
    std::filesystem::remove_all(scratch / "store");
    RETURN_IF_ERROR(Store::Create(scratch / "store", base, {}).status());

    options.report(absl::StrCat("publish ", name, ": wstore publish"));
    ASSIGN_OR_RETURN(const double seconds,
                     Median(kRepetitions, [&] { return TimePublish(options, scratch, changed); }));
    OpenOptions look;
    look.read_only = true;
    ASSIGN_OR_RETURN(const std::unique_ptr<Store> store, Store::Open(scratch / "copy", look));
    ASSIGN_OR_RETURN(const VersionInfo version, store->version(VersionId(1)));
    const auto elements = static_cast<double>(version.elements);
    const auto stored = static_cast<double>(version.payload_bytes) / elements;

    const auto add = [&](const std::string& rival, double rival_seconds, uint64_t rival_bytes) {
      results.push_back({"publish", absl::StrCat("whole command ", name), seconds, "s", rival,
                         rival_seconds, 2.0 * kElements});
      if (rival_bytes == 0) return;
      results.push_back({"publish", absl::StrCat("stored ", name), stored,
                         "bytes per changed element", rival,
                         static_cast<double>(rival_bytes) / elements, 0});
    };
    options.report(absl::StrCat("publish ", name, ": the floor, reading both files"));
    ASSIGN_OR_RETURN(const double read, Median(kRepetitions, [&] {
                       return RunProgram({"cat", base, changed});
                     }));
    add("cat of both files", read, 0);
    if (!each.with_slow_rivals) continue;
    uint64_t bytes = 0;
    if (HasProgram("zstd")) {
      options.report(absl::StrCat("publish ", name, ": zstd -1 --patch-from"));
      ASSIGN_OR_RETURN(const double zstd, TimeTool({"zstd", "-1", "-f", "--long=31", "--patch-from",
                                                    base, changed, "-o", scratch / "out"},
                                                   scratch / "out", &bytes));
      add("zstd -1 --patch-from", zstd, bytes);
    }
    if (HasProgram("xdelta3")) {
      options.report(absl::StrCat("publish ", name, ": xdelta3 -1 -e"));
      ASSIGN_OR_RETURN(const double xdelta,
                       TimeTool({"xdelta3", "-1", "-f", "-e", "-s", base, changed, scratch / "out"},
                                scratch / "out", &bytes));
      add("xdelta3 -1 -e", xdelta, bytes);
    }
  }
  return results;
}

}  // namespace wstore::bench
