// wstore hold and resume: stop publishing, and allow it again.
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tools/wstore/command.h"
#include "tools/wstore/format.h"

namespace wstore::cli {
namespace {

Json StateDocument(const StoreStatus& status) {
  return {{"state", status.state},
          {"head", JsonOf(status.head.version)},
          {"hold", JsonOf(status.hold)}};
}

class HoldCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& program) override {
    CLI::App* const verb = program.add_subcommand("hold", "Refuse publishing until resume");
    verb->group(kChangeGroup);
    verb->add_option("-m,--message", reason_, "Why; shown to whoever tries to publish")
        ->type_name("TEXT");
    verb->footer(Examples({"wstore hold -m \"looking into v42\""}));
    return verb;
  }

  absl::StatusOr<ExitCode> Run(Session& session) override {
    ASSIGN_OR_RETURN(const std::unique_ptr<StoreAccess> store, session.OpenForWriting());
    RETURN_IF_ERROR(store->SetHold(true, reason_));
    ASSIGN_OR_RETURN(const AccessStatus access, store->Status());
    const StoreStatus& status = access.store;
    session.ChangeResult(absl::StrCat("Publishing is on hold until `wstore resume`; head is ",
                                      ToString(status.head.version), "\n"),
                         "", StateDocument(status));
    return ExitCode::kDone;
  }

 private:
  std::string reason_;
};

class ResumeCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& program) override {
    CLI::App* const verb =
        program.add_subcommand("resume", "Allow publishing again, after a rollback or a hold");
    verb->group(kChangeGroup);
    verb->footer(Examples({"wstore resume"}));
    return verb;
  }

  absl::StatusOr<ExitCode> Run(Session& session) override {
    ASSIGN_OR_RETURN(const std::unique_ptr<StoreAccess> store, session.OpenForWriting());
    ASSIGN_OR_RETURN(const AccessStatus before, store->Status());
    const bool was_held = before.store.hold.has_value();
    RETURN_IF_ERROR(store->SetHold(false, ""));
    ASSIGN_OR_RETURN(const AccessStatus access, store->Status());
    const StoreStatus& status = access.store;
    session.ChangeResult(
        absl::StrCat(was_held ? "Publishing is allowed again" : "Publishing was not on hold",
                     "; head is ", ToString(status.head.version), "\n"),
        "", StateDocument(status));
    return ExitCode::kDone;
  }
};

}  // namespace

std::unique_ptr<Command> MakeHoldCommand() { return std::make_unique<HoldCommand>(); }
std::unique_ptr<Command> MakeResumeCommand() { return std::make_unique<ResumeCommand>(); }

}  // namespace wstore::cli
