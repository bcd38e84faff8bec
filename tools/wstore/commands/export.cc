// wstore export: writes a version as a dense checkpoint.
#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tools/wstore/command.h"
#include "tools/wstore/format.h"
#include "tools/wstore/parse.h"

namespace wstore::cli {
namespace {

// The checkpoint's files in a directory that was exported to, by name.
std::vector<std::string> CheckpointFiles(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"))
      names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

class ExportCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& program) override {
    CLI::App* const verb =
        program.add_subcommand("export", "Write a version as a dense safetensors checkpoint");
    verb->group(kLookGroup);
    verb->add_option("version", version_, "v42, head or a tag")
        ->type_name(kVersionType)
        ->required();
    verb->add_option("--out", directory_, "Where to; created if missing")
        ->type_name(kDirectoryType)
        ->required();
    verb->add_option("--shard-size", shard_size_,
                     "Tensors beyond this go to further files. Default: 5GB")
        ->type_name("SIZE")
        ->check([](const std::string& text) {
          return std::string(ParseSize(text).status().message());
        });
    verb->footer(Examples({
        "wstore export v42 --out /models/rl-7-v42",
        "wstore export prod --out exported --shard-size 2GiB",
    }));
    return verb;
  }

  absl::StatusOr<ExitCode> Run(Session& session) override {
    ASSIGN_OR_RETURN(const std::unique_ptr<StoreAccess> store, session.OpenForReading());
    ASSIGN_OR_RETURN(const VersionInfo info, store->Version(version_));
    const VersionId version = info.version;
    ProgressLine progress("exporting", session.shows_progress());
    ExportOptions options;
    options.directory = directory_;
    options.progress = progress.Callback();
    ASSIGN_OR_RETURN(options.shard_size_bytes, ParseSize(shard_size_));
    RETURN_IF_ERROR(store->Export(version, options));
    progress.Finish();

    const int64_t micros = progress.elapsed_micros();
    ASSIGN_OR_RETURN(const AccessStatus status, store->Status());
    const uint64_t size_bytes = status.store.base.size_bytes;
    const std::vector<std::string> files = CheckpointFiles(directory_);
    session.ChangeResult(
        absl::StrCat(ToString(version), " written to ", Printable(directory_), "\n  ",
                     FormatCountOf(files.size(), "file"), ", ", FormatBytes(size_bytes), ", ",
                     FormatDuration(micros), ", ", FormatRate(size_bytes, micros), "\n"),
        "",
        {{"version", JsonOf(version)},
         {"directory", directory_},
         {"files", files},
         {"tensors", status.store.base.tensors},
         {"bytes", size_bytes},
         {"duration_ms", MsOf(micros)}});
    return ExitCode::kDone;
  }

 private:
  std::string version_;
  std::string directory_;
  std::string shard_size_ = "5GB";
};

}  // namespace

std::unique_ptr<Command> MakeExportCommand() { return std::make_unique<ExportCommand>(); }

}  // namespace wstore::cli
