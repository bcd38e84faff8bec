// wstore mark and promote: which versions may be head.
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tools/wstore/command.h"
#include "tools/wstore/format.h"

namespace wstore::cli {
namespace {

class MarkCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& program) override {
    CLI::App* const verb = program.add_subcommand(
        "mark", "Mark a version bad, so that nothing is built on it, or good");
    verb->group(kChangeGroup);
    verb->add_option("version", version_, "v42, head or a tag")
        ->type_name(kVersionType)
        ->required();
    verb->add_option("verdict", verdict_, "bad or good")
        ->type_name("VERDICT")
        ->required()
        ->check([](const std::string& text) {
          return text == "bad" || text == "good"
                     ? ""
                     : absl::StrCat("\"", text, "\" is neither good nor bad");
        });
    verb->add_option("-m,--message", reason_, "Why")->type_name("TEXT");
    verb->footer(Examples({
        "wstore mark v42 bad -m \"reward collapsed\"",
        "wstore mark v42 good",
    }));
    return verb;
  }

  absl::StatusOr<ExitCode> Run(Session& session) override {
    const bool is_bad = verdict_ == "bad";
    if (!is_bad && !reason_.empty()) return UsageError("a version that is good needs no --message");
    ASSIGN_OR_RETURN(const std::unique_ptr<StoreAccess> store, session.OpenForWriting());
    ASSIGN_OR_RETURN(const VersionInfo info, store->Version(version_));
    const VersionId version = info.version;
    RETURN_IF_ERROR(store->Mark(version, is_bad, reason_));
    ASSIGN_OR_RETURN(const HeadInfo head, store->Head());
    const std::string name = ToString(version);
    const std::string advice = is_bad && version == head.version
                                   ? "\nIt is head: `wstore rollback` goes to another version"
                                   : "";
    session.ChangeResult(absl::StrCat(name, " is marked ", verdict_, advice, "\n"), "",
                         {{"version", JsonOf(version)},
                          {"bad", is_bad ? Json(reason_) : Json(nullptr)},
                          {"head", JsonOf(head.version)}});
    return ExitCode::kDone;
  }

 private:
  std::string version_;
  std::string verdict_;
  std::string reason_;
};

class PromoteCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& program) override {
    CLI::App* const verb = program.add_subcommand("promote", "Make a candidate head");
    verb->group(kChangeGroup);
    verb->add_option("version", version_, "A version that was published with --candidate")
        ->type_name(kVersionType)
        ->required();
    verb->footer(Examples({
        "wstore publish --from step-1200 --candidate",
        "wstore promote v42",
    }));
    return verb;
  }

  absl::StatusOr<ExitCode> Run(Session& session) override {
    ASSIGN_OR_RETURN(const std::unique_ptr<StoreAccess> store, session.OpenForWriting());
    ASSIGN_OR_RETURN(const VersionInfo info, store->Version(version_));
    const VersionId version = info.version;
    ASSIGN_OR_RETURN(const HeadInfo before, store->Head());
    const absl::StatusOr<CommitResult> result = store->Promote(version);
    RETURN_IF_ERROR(result.status());
    const bool is_unchanged = result->outcome == CommitResult::Outcome::kUnchanged;
    const std::string text =
        is_unchanged
            ? absl::StrCat("Head is ", ToString(version), " already; nothing done\n")
            : absl::StrCat("Head moved from ", ToString(before.version), " to ", ToString(version),
                           " in ", FormatDuration(result->duration_micros), "\n");
    session.ChangeResult(text, ToString(result->head),
                         {{"version", JsonOf(result->version)},
                          {"head", JsonOf(result->head)},
                          {"tx", is_unchanged ? Json(nullptr) : Json(result->transaction.value())},
                          {"outcome", OutcomeName(result->outcome)},
                          {"duration_ms", MsOf(result->duration_micros)},
                          {"from", JsonOf(before.version)},
                          {"to", JsonOf(version)}});
    return ExitCode::kDone;
  }

 private:
  std::string version_;
};

}  // namespace

std::unique_ptr<Command> MakeMarkCommand() { return std::make_unique<MarkCommand>(); }
std::unique_ptr<Command> MakePromoteCommand() { return std::make_unique<PromoteCommand>(); }

}  // namespace wstore::cli
