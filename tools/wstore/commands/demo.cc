// wstore demo: what wstore is for, with real processes on this machine.
#include <filesystem>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "tools/bench/harness.h"
#include "tools/demo/story.h"
#include "tools/demo/trainer.h"
#include "tools/wstore/command.h"

namespace wstore::cli {
namespace {

class DemoCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& program) override {
    CLI::App* const verb = program.add_subcommand("demo",
                                                  "A server, a trainer and two instances on this "
                                                  "machine: updates, a killed rank, a rollback");
    verb->group(kOtherGroup);
    verb->add_option("--dir", directory_,
                     "Keep store, logs and checkpoints in a new folder of this name. Default: the "
                     "folder for temporary files, and removed at the end")
        ->type_name(kDirectoryType);
    // The trainer's process.
    verb->add_flag("--trainer", trainer_)->group("");
    verb->footer(Examples({"wstore demo", "wstore demo --dir fleet"}));
    return verb;
  }

  absl::StatusOr<ExitCode> Run(Session& session) override {
    if (trainer_) {
      ASSIGN_OR_RETURN(const std::string store, session.StoreDirectory());
      RETURN_IF_ERROR(
          demo::RunTrainer(absl::StrCat("unix:", store, "/wstore.sock"), std::cin, std::cout));
      return ExitCode::kDone;
    }
    std::error_code error;
    std::optional<bench::Scratch> scratch;
    std::string directory = directory_;
    if (directory.empty()) {
      const std::string parent = std::filesystem::temp_directory_path(error).string();
      ASSIGN_OR_RETURN(bench::Scratch made, bench::Scratch::Create(parent));
      directory = scratch.emplace(std::move(made)).path();
    } else if (!std::filesystem::create_directory(directory, error)) {
      return absl::AlreadyExistsError(
          absl::StrCat("cannot make the folder ", directory, ": ",
                       error ? error.message() : "it is there already; name a new one"));
    }
    demo::StoryOptions options;
    options.program = std::filesystem::read_symlink("/proc/self/exe", error).string();
    options.directory = std::filesystem::absolute(directory, error).string();
    Json steps = Json::array();
    options.tell = [&](int64_t micros, const std::string& text) {
      steps.push_back({{"at_ms", micros / 1000}, {"text", text}});
      if (session.options().json || session.options().quiet) return;
      std::cout << absl::StrFormat("%5.1f s  %s\n", static_cast<double>(micros) * 1e-6, text)
                << std::flush;
    };
    const absl::Status told = demo::TellStory(options);
    if (!told.ok() && scratch) scratch->Keep();
    if (!told.ok()) {
      return absl::Status(
          told.code(), absl::StrCat(told.message(), "; logs are in ", options.directory, "/logs"));
    }
    session.ChangeResult("", "", {{"ok", true}, {"steps", steps}});
    return ExitCode::kDone;
  }

 private:
  std::string directory_;
  bool trainer_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeDemoCommand() { return std::make_unique<DemoCommand>(); }

}  // namespace wstore::cli
