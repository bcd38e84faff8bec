// wstore bench export: a version as a dense checkpoint.
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
constexpr int kRepetitions = 3;

}  // namespace

absl::StatusOr<std::vector<Measurement>> RunExport(const Options& options) {
  ASSIGN_OR_RETURN(const Scratch scratch, Scratch::Create(options.directory));
  const std::string base = scratch / "base.safetensors";
  const std::string changed = scratch / "changed.safetensors";
  options.report("export: making a version of 512 MiB");
  RETURN_IF_ERROR(WriteCheckpoints({kElements, kElements / 64, 0.01, 1}, base, changed));
  {
    ASSIGN_OR_RETURN(const std::unique_ptr<Store> store,
                     Store::Create(scratch / "store", base, {}));
    ASSIGN_OR_RETURN(const std::unique_ptr<Transaction> transaction, store->Begin({}));
    RETURN_IF_ERROR(transaction->SetCheckpoint(changed));
    RETURN_IF_ERROR(transaction->Commit().status());
  }
  std::filesystem::remove(changed);
  options.report("export: wstore export and a synced copy, in turn");
  std::vector<double> copies;
  ASSIGN_OR_RETURN(const double seconds, Median(kRepetitions, [&]() -> absl::StatusOr<double> {
                     std::filesystem::remove_all(scratch / "out");
                     std::filesystem::remove(scratch / "copy");
                     ASSIGN_OR_RETURN(const double copy,
                                      RunProgram({"dd", "if=" + base, "of=" + (scratch / "copy"),
                                                  "bs=1M", "conv=fsync", "status=none"}));
                     copies.push_back(copy);
                     return RunProgram({options.program, "--store", scratch / "store", "export",
                                        "v1", "--out", scratch / "out"});
                   }));
  size_t next = 0;
  ASSIGN_OR_RETURN(const double copy, Median(kRepetitions, [&]() -> absl::StatusOr<double> {
                     return copies[next++];
                   }));
  return std::vector<Measurement>{{"export", "whole command, bf16 1%", seconds, "s",
                                   "dd of the base with fsync", copy, 2.0 * kElements}};
}

}  // namespace wstore::bench
