// wstore bench base: the base digest.
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/parallel.h"
#include "common/status_macros.h"
#include "store/checkpoint/base_digest.h"
#include "store/checkpoint/checkpoint.h"
#include "tools/bench/bench.h"
#include "tools/bench/harness.h"
#include "tools/bench/workload.h"

namespace wstore::bench {
namespace {

constexpr uint64_t kElements = 256 << 20;  // 512 MiB
constexpr int kRepetitions = 3;

// Bytes per second of as many processes as there are cores, from a line such as
// "sha256  2947131.23k" (in thousands).
absl::StatusOr<double> OpensslRate(int threads) {
  ASSIGN_OR_RETURN(const std::string output,
                   ReadProgram({"openssl", "speed", "-seconds", "2", "-evp", "sha256", "-bytes",
                                "1048576", "-multi", std::to_string(threads)}));
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (!absl::StartsWithIgnoreCase(line, "sha256") && !absl::StartsWith(line, "evp")) continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    double thousands = 0;
    if (words.size() >= 2 && absl::EndsWith(words.back(), "k") &&
        absl::SimpleAtod(words.back().substr(0, words.back().size() - 1), &thousands)) {
      return 1000 * thousands;
    }
  }
  return absl::UnavailableError("`openssl speed` printed no rate for sha256");
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> RunBase(const Options& options) {
  const int threads = DefaultParallelism();
  ASSIGN_OR_RETURN(const Scratch scratch, Scratch::Create(options.directory));
  options.report("base: openssl speed -evp sha256");
  ASSIGN_OR_RETURN(const double rate, OpensslRate(threads));
  std::vector<Measurement> results;
  for (const uint64_t tensors : {64, 1}) {
    const std::string name =
        absl::StrCat("512 MiB in ", tensors, tensors == 1 ? " tensor" : " tensors");
    options.report(absl::StrCat("base: ", name));
    const std::string path = scratch / "base.safetensors";
    RETURN_IF_ERROR(WriteCheckpoints({kElements, kElements / tensors, 0, 1}, path, ""));
    ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(path));
    ASSIGN_OR_RETURN(
        const double seconds, Median(kRepetitions, [&] {
          return Seconds([&] {
            return DigestCheckpoint(checkpoint->manifest(), *checkpoint, threads, {}).status();
          });
        }));
    results.push_back({"base", name, seconds, "s",
                       absl::StrCat("openssl speed -evp sha256 -multi ", threads),
                       2.0 * kElements / rate, 2.0 * kElements});
  }
  return results;
}

}  // namespace wstore::bench
