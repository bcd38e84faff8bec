// wstore rollback: moves head to any committed version.
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tools/wstore/command.h"
#include "tools/wstore/difference.h"
#include "tools/wstore/format.h"
#include "tools/wstore/terminal.h"

namespace wstore::cli {
namespace {

// Moves and attempts among which one that was made just now is found.
constexpr size_t kRecent = 1000;

class RollbackCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& program) override {
    CLI::App* const verb = program.add_subcommand(
        "rollback", "Move head to any committed version, and hold publishing");
    verb->group(kChangeGroup);
    verb->add_option("--to", target_, "The version that head shall be")
        ->type_name(kVersionType)
        ->required();
    verb->add_option("-m,--message", message_, "Why; shown by log --moves")->type_name("TEXT");
    verb->add_option("--id", id_,
                     "Makes retries safe: the same id and version returns the first outcome")
        ->type_name("KEY");
    verb->add_flag("--dry-run", is_dry_run_, "Show what would change, and change nothing");
    verb->add_flag("--force", is_forced_, "Also to a version that is marked bad");
    verb->add_flag("--yes", is_confirmed_,
                   "Do not ask. Needed where there is no terminal to ask at");
    verb->footer(Examples({
        "wstore rollback --to v41 --dry-run",
        "wstore rollback --to v41 --yes -m \"reward collapsed at v42\"",
        "wstore resume    # when trainers may publish again",
    }));
    return verb;
  }

  absl::StatusOr<ExitCode> Run(Session& session) override {
    if (is_dry_run_) return DryRun(session);
    if (!is_confirmed_ && !session.is_interactive()) {
      return absl::FailedPreconditionError(
          "a rollback changes what the fleet serves: give --yes to do it, or --dry-run to see what "
          "it would change");
    }
    ASSIGN_OR_RETURN(const std::unique_ptr<StoreAccess> store, session.OpenForWriting());
    ASSIGN_OR_RETURN(const VersionInfo to, store->Version(target_));
    const RollbackRequest request = {to.version, id_, message_, is_forced_};
    ASSIGN_OR_RETURN(const HeadInfo before, store->Head());
    if (!is_confirmed_ && request.to != before.version) {
      RETURN_IF_ERROR(Confirm(*store, before.version, request.to));
    }
    ASSIGN_OR_RETURN(const CommitResult result, store->Rollback(request));
    const absl::StatusOr<ExitCode> reported = Report(session, *store, result);
    if (reported.ok()) return reported;
    return Prefixed(reported.status(), absl::StrCat("head was moved to ", ToString(result.version),
                                                    ", but what to print of it could not be asked "
                                                    "for"));
  }

 private:
  absl::StatusOr<ExitCode> DryRun(Session& session) const {
    ASSIGN_OR_RETURN(const std::unique_ptr<StoreAccess> store, session.OpenForReading());
    ASSIGN_OR_RETURN(const VersionInfo target, store->Version(target_));
    const VersionId to = target.version;
    ASSIGN_OR_RETURN(const HeadInfo head, store->Head());
    const VersionId from = head.version;
    ASSIGN_OR_RETURN(const DifferenceCount difference, CountDifference(*store, from, to));
    ASSIGN_OR_RETURN(const std::shared_ptr<const Manifest> manifest, store->manifest());
    Json document = {{"version", JsonOf(to)}, {"head", JsonOf(from)}, {"tx", nullptr},
                     {"outcome", "dry-run"},  {"duration_ms", 0},     {"from", JsonOf(from)},
                     {"to", JsonOf(to)}};
    document.update(JsonOf(difference, *manifest));
    session.Result(
        absl::StrCat("Would move head from ", ToString(from), " to ", ToString(to), ":\n",
                     RenderDifference(difference, *manifest), "Nothing has changed\n"),
        document);
    return ExitCode::kDone;
  }

  static absl::Status Confirm(StoreAccess& store, VersionId from, VersionId to) {
    ASSIGN_OR_RETURN(const DifferenceCount difference, CountDifference(store, from, to));
    ASSIGN_OR_RETURN(const AccessStatus status, store.Status());
    const bool yes = AskYesNo(absl::StrCat(
        "Head moves from ", ToString(from), " to ", ToString(to), ", which changes\n  ",
        Summary(difference.changed, difference.by_tensor.size(), status.store.base),
        "\nPublishing is on hold from then on, until `wstore resume`.\nRoll back?"));
    store.RestartTimeout();
    if (yes) return absl::OkStatus();
    return absl::CancelledError(
        absl::StrCat("not confirmed: head stays at ", ToString(from), ", nothing has changed"));
  }

  // The first outcome of a repeated id may lie some moves back.
  static absl::StatusOr<std::optional<MoveInfo>> FindMove(StoreAccess& store,
                                                          const CommitResult& result) {
    const bool is_new = result.outcome != CommitResult::Outcome::kRepeated;
    ASSIGN_OR_RETURN(const std::vector<MoveInfo> moves, store.Moves(is_new ? kRecent : SIZE_MAX));
    for (const MoveInfo& candidate : moves) {
      if (candidate.transaction == result.transaction && !IsRefused(candidate)) return candidate;
    }
    return std::nullopt;
  }

  static absl::StatusOr<ExitCode> Report(Session& session, StoreAccess& store,
                                         const CommitResult& result) {
    ASSIGN_OR_RETURN(const std::optional<MoveInfo> move, FindMove(store, result));
    ASSIGN_OR_RETURN(const AccessStatus status, store.Status());
    const bool has_moved = result.outcome != CommitResult::Outcome::kUnchanged && move.has_value();
    const VersionId from = has_moved ? move->from : result.head;
    std::string text;
    switch (result.outcome) {
      case CommitResult::Outcome::kCommitted:
      case CommitResult::Outcome::kServedNotDurable:
        text = absl::StrCat("Head moved from ", ToString(from), " to ", ToString(result.version),
                            " in ", FormatDuration(result.duration_micros),
                            "\nPublishing is on hold until `wstore resume`\n");
        break;
      case CommitResult::Outcome::kRepeated:
        text = absl::StrCat("Head was moved to ", ToString(result.version),
                            " under this id before; nothing done, head is ", ToString(result.head),
                            "\n");
        break;
      case CommitResult::Outcome::kUnchanged:
        text = absl::StrCat("Head is ", ToString(result.head), " already; nothing done\n");
        break;
    }
    session.ChangeResult(text, ToString(result.head),
                         {{"version", JsonOf(result.version)},
                          {"head", JsonOf(result.head)},
                          {"tx", has_moved ? Json(result.transaction.value()) : Json(nullptr)},
                          {"id", has_moved ? move->transaction_id : ""},
                          {"outcome", OutcomeName(result.outcome)},
                          {"duration_ms", MsOf(result.duration_micros)},
                          {"from", JsonOf(from)},
                          {"to", JsonOf(result.version)},
                          {"hold", JsonOf(status.store.hold)}});
    return ExitCode::kDone;
  }

  std::string target_;
  std::string message_;
  std::string id_;
  bool is_dry_run_ = false;
  bool is_confirmed_ = false;
  bool is_forced_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeRollbackCommand() { return std::make_unique<RollbackCommand>(); }

}  // namespace wstore::cli
