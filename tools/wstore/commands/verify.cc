// wstore verify: computes digests and sums again.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "tools/wstore/command.h"
#include "tools/wstore/format.h"

namespace wstore::cli {
namespace {

class VerifyCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& program) override {
    CLI::App* const verb = program.add_subcommand(
        "verify", "Compute digests and fingerprints again; exit with status 5 if any is wrong");
    verb->group(kLookGroup);
    CLI::Option* const version =
        verb->add_option("version", version_, "v42, head or a tag; default: head")
            ->type_name(kVersionType);
    verb->add_flag("--all", is_all_, "Every version")->excludes(version);
    verb->add_flag("--base", is_base_,
                   "Read the base's files too, and compare them with the recorded digests");
    verb->add_flag("--workers", is_workers_,
                   "Instead: the live memory of every rank that follows the store")
        ->excludes(version);
    verb->footer(
        Examples({"wstore verify", "wstore verify --all --base", "wstore verify --workers"}));
    return verb;
  }

  absl::StatusOr<ExitCode> Run(Session& session) override {
    const absl::StatusOr<std::unique_ptr<StoreAccess>> store = Open(session);
    // Damage that keeps the store from being opened is what this verb is there to find.
    if (absl::IsDataLoss(store.status())) {
      VerifyReport report;
      report.problems.push_back(
          {.version = {}, .tensor = "", .what = std::string(store.status().message())});
      return Report(session, report, nullptr);
    }
    RETURN_IF_ERROR(store.status());
    if (is_workers_) return Workers(session, **store);
    ProgressLine progress("verifying", session.shows_progress());
    VerifyOptions options;
    options.all = is_all_;
    options.base = is_base_;
    options.progress = progress.Callback();
    if (!version_.empty()) {
      ASSIGN_OR_RETURN(const VersionInfo version, (*store)->Version(version_));
      options.versions.push_back(version.version);
    }
    ASSIGN_OR_RETURN(const VerifyReport report, (*store)->Verify(options));
    progress.Finish();
    return Report(session, report, &progress);
  }

 private:
  static absl::StatusOr<ExitCode> Workers(Session& session, StoreAccess& store) {
    ASSIGN_OR_RETURN(const Client* const client, store.Server());
    ASSIGN_OR_RETURN(const std::vector<WorkerCheck> checks,
                     client->VerifyWorkers(store.NextDeadline()));
    Json problems = Json::array();
    Json checked = Json::array();
    std::string text;
    for (const WorkerCheck& check : checks) {
      const std::string name = absl::StrCat(check.instance, "/", check.rank);
      checked.push_back(name);
      const std::string version = check.version ? ToString(*check.version) : "";
      if (check.fault) {
        problems.push_back({{"version", JsonOf(check.version)},
                            {"worker", name},
                            {"tensor", nullptr},
                            {"what", *check.fault}});
      }
      absl::StrAppend(&text, Printable(name), version.empty() ? "" : " holds ", version, ": ",
                      check.fault ? Printable(*check.fault) : "all sums are right", "\n");
    }
    if (checks.empty()) session.Remark("No workers follow this store.");
    const bool ok = problems.empty();
    session.Result(text, {{"ok", ok}, {"checked", checked}, {"problems", problems}});
    return ok ? ExitCode::kDone : ExitCode::kCorrupt;
  }

  // Open for writing, --base also records new times of files whose content is as it was; beside
  // another writer it does without.
  absl::StatusOr<std::unique_ptr<StoreAccess>> Open(const Session& session) const {
    if (!is_base_) return session.OpenForReading();
    absl::StatusOr<std::unique_ptr<StoreAccess>> store = session.OpenForWriting();
    return absl::IsUnavailable(store.status()) ? session.OpenForReading() : std::move(store);
  }

  // "v0, v1, v2, base"; many versions as "v0 to v57".
  static std::string Listed(std::vector<std::string> checked) {
    const auto others = std::stable_partition(
        checked.begin(), checked.end(),
        [](const std::string& name) { return ParseVersionId(name).has_value(); });
    if (const auto versions = others - checked.begin(); versions > 4) {
      checked.front() = absl::StrCat(checked.front(), " to ", checked[versions - 1]);
      checked.erase(checked.begin() + 1, others);
    }
    return absl::StrJoin(checked, ", ");
  }

  static ExitCode Report(Session& session, const VerifyReport& report,
                         const ProgressLine* progress) {
    Json problems = Json::array();
    std::string text;
    for (const VerifyProblem& problem : report.problems) {
      problems.push_back({{"version", JsonOf(problem.version)},
                          {"worker", nullptr},
                          {"tensor", problem.tensor.empty() ? Json(nullptr) : Json(problem.tensor)},
                          {"what", problem.what}});
      absl::StrAppend(&text, problem.version.has_value() ? ToString(*problem.version) + ": " : "",
                      problem.tensor.empty() ? "" : Printable(problem.tensor) + ": ",
                      Printable(problem.what), "\n");
    }
    const std::string checked = Listed(report.checked);
    if (report.ok()) {
      absl::StrAppend(&text, checked, " verified: all digests and sums are right\n");
    } else {
      absl::StrAppend(&text, FormatCountOf(report.problems.size(), "problem"), " found",
                      checked.empty() ? "" : " in ", checked, "\n");
    }
    if (progress != nullptr && progress->done_bytes() > 0) {
      absl::StrAppend(&text, "  ", FormatBytes(progress->done_bytes()), " read in ",
                      FormatDuration(progress->elapsed_micros()), ", ",
                      FormatRate(progress->done_bytes(), progress->elapsed_micros()), "\n");
    }
    session.Result(text,
                   {{"ok", report.ok()}, {"checked", report.checked}, {"problems", problems}});
    return report.ok() ? ExitCode::kDone : ExitCode::kCorrupt;
  }

  std::string version_;
  bool is_all_ = false;
  bool is_base_ = false;
  bool is_workers_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeVerifyCommand() { return std::make_unique<VerifyCommand>(); }

}  // namespace wstore::cli
