// wstore completion: shell completion, made from the verbs and options themselves.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tools/wstore/command.h"
#include "tools/wstore/completion_script.h"

namespace wstore::cli {
namespace {

class CompletionCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& program) override {
    program_ = &program;
    CLI::App* const verb =
        program.add_subcommand("completion", "Print a script that completes commands in a shell");
    verb->group(kOtherGroup);
    verb->add_option("shell", shell_, "bash, zsh or fish")
        ->type_name("SHELL")
        ->required()
        ->check([](const std::string& shell) {
          const bool is_known =
              shell == "bash" || shell == "zsh" || shell == "fish" || shell == "names";
          return is_known ? ""
                          : absl::StrCat("no completion for \"", shell,
                                         "\": there is bash, zsh and fish");
        });
    verb->footer(Examples({
        "source <(wstore completion bash)        # in ~/.bashrc",
        "source <(wstore completion zsh)         # in ~/.zshrc, after compinit",
        "wstore completion fish | source         # in ~/.config/fish/config.fish",
    }));
    return verb;
  }

  absl::StatusOr<ExitCode> Run(Session& session) override {
    if (shell_ == "names") return Names(session);
    const std::string script = CompletionScript(*program_, shell_);
    session.Result(script, {{"shell", shell_}, {"script", script}});
    return ExitCode::kDone;
  }

 private:
  // What the scripts ask for: the names of versions, one a line.
  static absl::StatusOr<ExitCode> Names(Session& session) {
    ASSIGN_OR_RETURN(const std::unique_ptr<StoreAccess> store, session.OpenForReading());
    Json document = Json::array({"head"});
    ASSIGN_OR_RETURN(const std::vector<TagInfo> tags, store->Tags());
    for (const TagInfo& tag : tags) document.push_back(tag.name);
    ASSIGN_OR_RETURN(std::vector<VersionInfo> versions, store->Versions(SIZE_MAX));
    std::reverse(versions.begin(), versions.end());
    for (const VersionInfo& version : versions) document.push_back(JsonOf(version.version));
    std::string text;
    for (const auto& name : document) absl::StrAppend(&text, name.get<std::string>(), "\n");
    session.Result(text, document);
    return ExitCode::kDone;
  }

  CLI::App* program_ = nullptr;
  std::string shell_;
};

}  // namespace

std::unique_ptr<Command> MakeCompletionCommand() { return std::make_unique<CompletionCommand>(); }

}  // namespace wstore::cli
