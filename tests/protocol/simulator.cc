// Runs the commit protocol through seeded fleets. See --help.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "store/protocol/mutations.h"
#include "tests/protocol/world.h"

namespace wstore::protocol::testing {
namespace {

constexpr std::string_view kHelp =
    R"(protocol_simulator [--first SEED] [--seeds N] [--list FILE] [--mutation NAME] [--trace]
                   [--coverage]
    Runs N seeds, 300 unless told otherwise, and stops at the first that breaks a promise: its trace
    is printed. With --trace also if nothing is broken. --list: runs the seeds of the file, too; a
    line is a seed and what it is there for. --coverage: says what was seen how often, and fails if
    something never was.
protocol_simulator --all-mutations [--seeds N]
    Runs every deliberate fault until a seed shows it; fails if one shows in none of N seeds.
protocol_simulator --list-mutations
)";

constexpr std::array<std::string_view, static_cast<size_t>(Mutation::kCount)> kMutationNames = {
    "none",
    "record-without-fence",
    "grant-in-window",
    "match-on-version",
    "decision-starts-any-rank",
    "out-ranks-apply",
    "grant-without-nonce",
    "epoch-not-synced",
    "no-recovery",
    "abort-while-recording",
    "resume-alone",
    "lease-without-skew",
    "lease-from-receipt",
    "repeat-commits-again",
    "fence-unfenceable",
    "sums-not-compared",
    "reread-not-compared",
};

struct Totals {
  uint64_t seeds = 0;
  uint64_t steps = 0;
  uint64_t commits = 0;
  Counts counts{};
};

// Prints how often each thing was seen; false if one never was.
bool PrintCounts(const Counts& counts) {
  bool all = true;
  for (size_t i = 0; i < counts.size(); ++i) {
    all = all && counts[i] != 0;
    std::cout << std::setw(10) << counts[i] << "  " << kSeenNames[i]
              << (counts[i] == 0 ? "   <-- never seen" : "") << '\n';
  }
  return all;
}

// Empty if all seeds kept all promises.
std::string RunSeeds(uint64_t first, uint64_t count, Totals& totals, uint64_t& failed_seed) {
  for (uint64_t seed = first; seed < first + count; ++seed) {
    World world({seed, false});
    const std::string violation = world.Run();
    ++totals.seeds;
    totals.steps += world.steps();
    totals.commits += world.commits();
    for (size_t i = 0; i < totals.counts.size(); ++i) totals.counts[i] += world.counts()[i];
    if (!violation.empty()) {
      failed_seed = seed;
      return violation;
    }
  }
  return "";
}

void PrintTrace(uint64_t seed, size_t lines) {
  World world({seed, true});
  world.Run();
  const std::vector<std::string>& trace = world.trace();
  const size_t begin = trace.size() > lines ? trace.size() - lines : 0;
  for (size_t i = begin; i < trace.size(); ++i) std::cout << trace[i] << '\n';
}

// Lines of a number and a sentence; # begins a comment.
std::vector<uint64_t> ReadSeeds(const std::string& path) {
  std::vector<uint64_t> seeds;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') seeds.push_back(std::stoull(line));
  }
  return seeds;
}

int RunAllMutations(uint64_t seeds) {
  int missed = 0;
  for (size_t i = 1; i < kMutationNames.size(); ++i) {
    active_mutation = static_cast<Mutation>(i);
    Totals totals;
    uint64_t seed = 0;
    const std::string violation = RunSeeds(1, seeds, totals, seed);
    if (violation.empty()) {
      ++missed;
      std::cout << "MISSED   " << kMutationNames[i] << ": no seed of " << seeds << " shows it\n";
    } else {
      std::cout << "caught   " << kMutationNames[i] << ": seed " << seed << ": " << violation
                << '\n';
    }
  }
  active_mutation = Mutation::kNone;
  return missed == 0 ? 0 : 1;
}

int Main(const std::vector<std::string>& arguments) {
  uint64_t first = 1;
  uint64_t seeds = 300;
  bool trace = false;
  bool all_mutations = false;
  bool coverage = false;
  std::vector<uint64_t> listed;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool has_value = i + 1 < arguments.size();
    if (arguments[i] == "--first" && has_value) {
      first = std::stoull(arguments[++i]);
    } else if (arguments[i] == "--seeds" && has_value) {
      seeds = std::stoull(arguments[++i]);
    } else if (arguments[i] == "--list" && has_value) {
      listed = ReadSeeds(arguments[++i]);
      if (listed.empty()) {
        std::cerr << "no seeds in " << arguments[i] << '\n';
        return 2;
      }
    } else if (arguments[i] == "--coverage") {
      coverage = true;
    } else if (arguments[i] == "--trace") {
      trace = true;
    } else if (arguments[i] == "--all-mutations") {
      all_mutations = true;
    } else if (arguments[i] == "--list-mutations") {
      for (const std::string_view name : kMutationNames) std::cout << name << '\n';
      return 0;
    } else if (arguments[i] == "--mutation" && has_value) {
      const auto found = std::find(kMutationNames.begin(), kMutationNames.end(), arguments[++i]);
      if (found == kMutationNames.end()) {
        std::cerr << "no such mutation: " << arguments[i] << '\n';
        return 2;
      }
      active_mutation = static_cast<Mutation>(found - kMutationNames.begin());
    } else {
      std::cerr << kHelp;
      return 2;
    }
  }
  if (all_mutations) return RunAllMutations(seeds);

  const auto start = std::chrono::steady_clock::now();
  Totals totals;
  uint64_t failed_seed = 0;
  std::string violation;
  for (const uint64_t seed : listed) {
    if (violation.empty()) violation = RunSeeds(seed, 1, totals, failed_seed);
  }
  if (violation.empty()) violation = RunSeeds(first, seeds, totals, failed_seed);
  const auto elapsed = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - start);
  if (!violation.empty()) {
    PrintTrace(failed_seed, trace ? SIZE_MAX : 400);
    std::cout << "seed " << failed_seed << ": " << violation << '\n'
              << "again: protocol_simulator --first " << failed_seed << " --seeds 1\n";
    return 1;
  }
  if (trace) PrintTrace(first, SIZE_MAX);
  const bool saw_all = !coverage || PrintCounts(totals.counts);
  std::cout << totals.seeds << " seeds from " << first << ", " << totals.steps << " steps, "
            << totals.commits << " commits, " << elapsed.count() << " ms: all promises kept\n";
  return saw_all ? 0 : 1;
}

}  // namespace
}  // namespace wstore::protocol::testing

int main(int argc, char** argv) {
  return wstore::protocol::testing::Main(std::vector<std::string>(argv + 1, argv + argc));
}
