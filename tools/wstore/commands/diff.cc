// wstore diff: how much two versions differ, tensor by tensor.
#include "common/status_macros.h"
#include "tools/wstore/command.h"
#include "tools/wstore/difference.h"

namespace wstore::cli {
namespace {

class DiffCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& program) override {
    CLI::App* const verb = program.add_subcommand(
        "diff", "Show how many elements of each tensor differ between two versions");
    verb->group(kLookGroup);
    verb->add_option("from", from_, "v42, head or a tag")->type_name(kVersionType)->required();
    verb->add_option("to", to_, "v42, head or a tag")->type_name(kVersionType)->required();
    verb->footer(Examples({"wstore diff v41 v42", "wstore diff prod head --json"}));
    return verb;
  }

  absl::StatusOr<ExitCode> Run(Session& session) override {
    ASSIGN_OR_RETURN(const std::unique_ptr<StoreAccess> store, session.OpenForReading());
    ASSIGN_OR_RETURN(const VersionInfo from, store->Version(from_));
    ASSIGN_OR_RETURN(const VersionInfo to, store->Version(to_));
    ASSIGN_OR_RETURN(const DifferenceCount difference,
                     CountDifference(*store, from.version, to.version));
    ASSIGN_OR_RETURN(const std::shared_ptr<const Manifest> manifest, store->manifest());
    Json document = {{"from", JsonOf(from.version)}, {"to", JsonOf(to.version)}};
    document.update(JsonOf(difference, *manifest));
    session.Result(RenderDifference(difference, *manifest), document);
    return ExitCode::kDone;
  }

 private:
  std::string from_;
  std::string to_;
};

}  // namespace

std::unique_ptr<Command> MakeDiffCommand() { return std::make_unique<DiffCommand>(); }

}  // namespace wstore::cli
