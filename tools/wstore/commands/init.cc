// wstore init: creates a store on a dense base.
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tools/wstore/command.h"
#include "tools/wstore/format.h"

namespace wstore::cli {
namespace {

class InitCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& program) override {
    CLI::App* const verb = program.add_subcommand(
        "init", "Create a store on a dense base checkpoint, which becomes v0");
    verb->group(kChangeGroup);
    verb->add_option("dir", directory_, "Where the store shall be: a new or an empty directory")
        ->type_name(kDirectoryType)
        ->required();
    verb->add_option("--base", base_,
                     "A safetensors file, or a directory with model.safetensors or its index. All "
                     "of it is read; it "
                     "is not copied, so keep it where it is")
        ->type_name(kCheckpointType)
        ->required();
    verb->footer(Examples({"wstore init /srv/store --base /models/qwen3-8b"}));
    return verb;
  }

  absl::StatusOr<ExitCode> Run(Session& session) override {
    if (!session.options().store.empty()) {
      return UsageError(
          "init takes the store's directory as its argument, not from --store: wstore init DIR "
          "--base "
          "CHECKPOINT");
    }
    ProgressLine progress("reading the base", session.shows_progress());
    CreateOptions options;
    options.progress = progress.Callback();
    ASSIGN_OR_RETURN(const std::unique_ptr<Store> store, Store::Create(directory_, base_, options));
    progress.Finish();

    const StoreStatus status = store->status();
    const int64_t micros = progress.elapsed_micros();
    const std::string text = absl::StrCat(
        "Store created in ", Printable(directory_), "; head is ", ToString(status.head.version),
        "\n  base ", Printable(status.base.path), ": ",
        FormatCountOf(status.base.tensors, "tensor"), ", ",
        FormatCountOf(status.base.elements, "element"), ", ", FormatBytes(status.base.size_bytes),
        "\n  digest ", ToHex(status.base.digest), "\n  ", FormatDuration(micros), ", read at ",
        FormatRate(progress.done_bytes(), micros), "\n");
    session.ChangeResult(text, ToString(status.head.version),
                         {{"version", JsonOf(status.head.version)},
                          {"head", JsonOf(status.head.version)},
                          {"store", directory_},
                          {"base", JsonOf(status.base)},
                          {"chain_digest", ToHex(status.head.chain_digest)},
                          {"duration_ms", MsOf(micros)}});
    return ExitCode::kDone;
  }

 private:
  std::string directory_;
  std::string base_;
};

}  // namespace

std::unique_ptr<Command> MakeInitCommand() { return std::make_unique<InitCommand>(); }

}  // namespace wstore::cli
