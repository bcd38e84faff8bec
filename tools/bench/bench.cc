#include "tools/bench/bench.h"

namespace wstore::bench {

absl::Span<const Benchmark> Benchmarks() {
  static constexpr Benchmark kBenchmarks[] = {
      {"base", "digest of a dense checkpoint, against `openssl speed`", RunBase},
      {"compose", "the difference across many versions, against reading and decoding them",
       RunCompose},
      {"export", "a version as a dense checkpoint, against a synced copy of the base", RunExport},
      {"publish", "a whole publish, against xdelta3 and zstd --patch-from", RunPublish},
  };
  return kBenchmarks;
}

}  // namespace wstore::bench
