#include "tools/bench/bench.h"

namespace wstore::bench {

absl::Span<const Benchmark> Benchmarks() {
  static constexpr Benchmark kBenchmarks[] = {
      {"apply", "a staged update into live weights, and back, against a plain scatter", false,
       RunApply},
      {"audit", "sums of weights on a GPU, against a device copy", true, RunGpuAudit},
      {"base", "digest of a dense checkpoint, against `openssl speed`", false, RunBase},
      {"compose", "the difference across many versions, against reading and decoding them", false,
       RunCompose},
      {"diff", "diff, encoding and sums on a GPU, against a device copy", true, RunGpuDiff},
      {"export", "a version as a dense checkpoint, against a synced copy of the base", false,
       RunExport},
      {"publish", "a whole publish, against xdelta3 and zstd --patch-from", false, RunPublish},
      {"service", "commits, catch-up and slow readers of a server, against disk and bare stream",
       false, RunService},
      {"update", "whole updates from a GPU into a rank that serves, against one tensor by tensor",
       true, RunGpuUpdate},
  };
  return kBenchmarks;
}

}  // namespace wstore::bench
