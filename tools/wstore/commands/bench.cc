// wstore bench: what wstore costs on this machine, beside rivals in the same run.
#include <filesystem>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/strings.h"
#include "tools/bench/bench.h"
#include "tools/wstore/command.h"
#include "tools/wstore/format.h"
#include "tools/wstore/parse.h"
#include "tools/wstore/table.h"

namespace wstore::cli {
namespace {

// Three significant digits.
std::string Number(double value) { return absl::StrFormat("%.3g", value); }

std::string Cost(double value, const bench::Measurement& of) {
  std::string text = absl::StrCat(Number(value), " ", of.unit);
  if (of.bytes > 0 && value > 0) {
    absl::StrAppend(&text, " (", Number(of.bytes / value / 1e9), " GB/s)");
  }
  return text;
}

class BenchCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& program) override {
    std::vector<std::string> lines;
    std::set<std::string> names = {"all"};
    for (const bench::Benchmark& each : bench::Benchmarks()) {
      names.emplace(each.name);
      lines.push_back(absl::StrCat(ToAbsl(each.name), ": ", ToAbsl(each.summary)));
    }
    CLI::App* const verb = program.add_subcommand(
        "bench", "Measure what wstore costs here, beside rivals in the same run");
    verb->group(kOtherGroup);
    verb->add_option("name", name_, absl::StrCat(absl::StrJoin(lines, "; "), "; all of them: all"))
        ->required()
        ->type_name("NAME")
        ->check(CLI::IsMember(names));
    verb->add_flag("--full", full_, "All sizes and densities, not only those of a short run");
    verb->add_option("--dir", directory_,
                     "Where test data is made: up to 1.7 GB, with --full 3 GB; removed afterwards. "
                     "Default: the folder for temporary files")
        ->type_name(kDirectoryType);
    verb->add_option("--device", device_,
                     "Where live weights are: cpu, the default, or cuda:N for apply; cuda:N for "
                     "audit, diff and update")
        ->type_name("D");
    verb->add_flag("--colocated", colocated_,
                   "update: the (first) rank is on the trainer's GPU; without it, on the next one");
    verb->add_option("--ranks", ranks_,
                     "update: how many ranks the instance has, each on a GPU of its own: attention "
                     "is split, and each expert on one of them. Default: 1, which holds all")
        ->type_name("N")
        ->check(CLI::Range(1, 8));
    verb->add_flag("--subscribe", subscribes_, "update: ranks want only what they hold");
    verb->add_option("--parts", parts_,
                     "update: how many parts changes are found and sent in, 1 to 8. Default: as "
                     "the publisher has it")
        ->type_name("N")
        ->check(CLI::Range(1, 8));
    verb->footer(Examples({"wstore bench publish", "wstore bench apply --device cpu",
                           "wstore bench all --full --dir /scratch --json"}));
    return verb;
  }

  absl::StatusOr<ExitCode> Run(Session& session) override {
    bench::Options options;
    options.full = full_;
    options.device = device_;
    options.colocated = colocated_;
    options.parts = parts_;
    options.ranks = ranks_;
    options.subscribes = subscribes_;
    std::error_code error;
    options.directory =
        directory_.empty() ? std::filesystem::temp_directory_path(error).string() : directory_;
    options.program = std::filesystem::read_symlink("/proc/self/exe", error).string();
    options.report = [&session](std::string_view text) { session.Remark(text); };
    std::vector<bench::Measurement> results;
    for (const bench::Benchmark& each : bench::Benchmarks()) {
      if (name_ == "all" ? each.on_gpu && (device_.empty() || device_ == "cpu")
                         : name_ != each.name)
        continue;
      ASSIGN_OR_RETURN(const std::vector<bench::Measurement> measured, each.run(options));
      results.insert(results.end(), measured.begin(), measured.end());
    }
    session.Result(Text(session, results), Document(results));
    return ExitCode::kDone;
  }

 private:
  static std::string Text(const Session& session, const std::vector<bench::Measurement>& results) {
    Table table(
        {{"bench"}, {"case"}, {"wstore"}, {"rival"}, {"ratio", Table::Align::kRight}, {""}});
    for (const bench::Measurement& each : results) {
      table.AddRow({each.bench, each.name, Cost(each.value, each), Cost(each.rival_value, each),
                    Number(each.ratio()), each.rival});
    }
    return table.Render(session.table_width()) + "ratio: cost of the rival over cost of wstore\n";
  }

  static Json Document(const std::vector<bench::Measurement>& results) {
    Json list = Json::array();
    for (const bench::Measurement& each : results) {
      list.push_back({{"bench", each.bench},
                      {"case", each.name},
                      {"value", each.value},
                      {"unit", each.unit},
                      {"rival", each.rival},
                      {"rival_value", each.rival_value},
                      {"ratio", each.ratio()}});
    }
    return list;
  }

  std::string name_;
  std::string directory_;
  std::string device_;
  bool full_ = false;
  bool colocated_ = false;
  uint32_t ranks_ = 1;
  bool subscribes_ = false;
  uint32_t parts_ = 0;
};

}  // namespace

std::unique_ptr<Command> MakeBenchCommand() { return std::make_unique<BenchCommand>(); }

}  // namespace wstore::cli
