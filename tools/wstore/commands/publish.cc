// wstore publish: commits a checkpoint, or a patch set from a file, as the next version.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "tools/wstore/command.h"
#include "tools/wstore/format.h"
#include "tools/wstore/parse.h"

namespace wstore::cli {
namespace {

class PublishCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& program) override {
    CLI::App* const verb = program.add_subcommand(
        "publish", "Commit what a checkpoint, or a patch file, changes as the next version");
    verb->group(kChangeGroup);
    CLI::Option* const from = verb->add_option(
        "--from", checkpoint_,
        "The new weights: a safetensors file, or a directory of them, with the tensors of the "
        "base. They are compared with head");
    from->type_name(kCheckpointType);
    verb->add_option("--patch", patch_file_,
                     "The changed elements alone, in the interchange format "
                     "(docs/formats/interchange.md)")
        ->type_name(kFileType)
        ->excludes(from);
    verb->add_option("--parent", parent_,
                     "What the new weights were made from. Refused if head is another version by "
                     "now. Default: head")
        ->type_name(kVersionType);
    verb->add_option("-m,--message", message_, "Shown by log")->type_name("TEXT");
    verb->add_option("--meta", meta_,
                     "A fact about the version, such as step=1200. May be repeated")
        ->type_name("KEY=VALUE")
        ->allow_extra_args(false)
        ->check([](const std::string& text) {
          return std::string(ParsePair(text).status().message());
        });
    verb->add_option("--id", id_,
                     "Makes retries safe: the same id and content returns the first outcome, other "
                     "content is refused")
        ->type_name("KEY");
    verb->add_option("--policy", policy_,
                     "all: every instance ends at the new version or every one at the old; each: "
                     "head moves, and instances follow. Default: all")
        ->type_name("POLICY")
        ->check(CLI::IsMember({"all", "each"}));
    verb->add_option(
            "--durability", durability_,
            "sync: durable when it returns; async: when the fleet serves it. Default: sync")
        ->type_name("DURABILITY")
        ->check(CLI::IsMember({"sync", "async"}));
    verb->add_flag("--force", is_forced_, "Also on a head that is marked bad");
    verb->add_flag("--candidate", is_candidate_,
                   "Commit the version without making it head; `wstore promote` does that later");
    verb->footer(Examples({
        "wstore publish --from /runs/rl-7/step-1200 -m \"step 1200\" --meta reward=0.71",
        "wstore publish --from step-1200 --parent v41 --id rl-7/1200    # safe to repeat",
        "wstore publish --patch step-1200.safetensors",
    }));
    return verb;
  }

  absl::StatusOr<ExitCode> Run(Session& session) override {
    if (checkpoint_.empty() && patch_file_.empty()) {
      return UsageError("what to publish is missing: give --from CHECKPOINT or --patch FILE");
    }
    PublishRequest request;
    request.checkpoint = checkpoint_;
    request.patch_file = patch_file_;
    request.parent = parent_;
    request.begin.transaction_id = id_;
    request.begin.message = message_;
    request.begin.candidate = is_candidate_;
    request.begin.force = is_forced_;
    ASSIGN_OR_RETURN(request.begin.meta, ParseMeta());
    if (policy_ == "each") request.policy = PublishPolicy::kEach;
    if (durability_ == "async") request.durability = PublishDurability::kAsync;
    ASSIGN_OR_RETURN(const std::unique_ptr<StoreAccess> store, session.OpenForWriting());
    ProgressLine progress("publishing", session.shows_progress());
    request.progress = progress.Callback();
    const absl::StatusOr<CommitResult> result = store->Publish(request);
    progress.Finish();
    RETURN_IF_ERROR(result.status());
    const absl::StatusOr<ExitCode> reported = Report(session, *store, *result, progress);
    if (reported.ok()) return reported;
    return Prefixed(reported.status(), absl::StrCat(ToString(result->version),
                                                    " is committed, but what it holds could not be "
                                                    "asked for"));
  }

 private:
  absl::StatusOr<Metadata> ParseMeta() const {
    Metadata meta;
    for (const std::string& text : meta_) {
      ASSIGN_OR_RETURN(auto pair, ParsePair(text));
      const auto [position, is_new] = meta.insert(pair);
      if (!is_new && position->second != pair.second) {
        return UsageError(absl::StrCat("--meta gives \"", pair.first, "\" twice: \"",
                                       position->second, "\" and \"", pair.second, "\""));
      }
    }
    return meta;
  }

  absl::StatusOr<ExitCode> Report(Session& session, StoreAccess& store, const CommitResult& result,
                                  const ProgressLine& progress) const {
    ASSIGN_OR_RETURN(const VersionInfo version, store.Version(ToString(result.version)));
    ASSIGN_OR_RETURN(const AccessStatus status, store.Status());
    const BaseInfo& base = status.store.base;
    const bool is_unchanged = result.outcome == CommitResult::Outcome::kUnchanged;
    const uint64_t elements = is_unchanged ? 0 : version.elements;
    Json document = {
        {"version", JsonOf(result.version)},
        {"head", JsonOf(result.head)},
        {"tx", result.transaction.value()},
        {"id", is_unchanged ? id_ : version.transaction_id},
        {"outcome", OutcomeName(result.outcome)},
        {"duration_ms", MsOf(result.duration_micros)},
        {"parent", is_unchanged ? JsonOf(result.version) : JsonOf(version.parent)},
        {"tensors", is_unchanged ? 0 : version.tensors},
        {"elements", elements},
        {"density", Density(elements, base.elements)},
        {"bytes", is_unchanged ? 0 : version.payload_bytes},
        {"chain_digest", ToHex(version.chain_digest)},
        {"patch_digest", is_unchanged ? Json(nullptr) : Json(ToHex(version.patch_digest))},
        {"candidate", !is_unchanged && version.candidate},
        {"read_bytes", progress.done_bytes()},
    };
    session.ChangeResult(Text(base, result, version, progress), ToString(result.version), document);
    return ExitCode::kDone;
  }

  std::string Text(const BaseInfo& base, const CommitResult& result, const VersionInfo& version,
                   const ProgressLine& progress) const {
    const std::string name = ToString(result.version);
    std::string timing = FormatDuration(result.duration_micros);
    if (progress.done_bytes() > 0) {
      absl::StrAppend(&timing, ", read at ",
                      FormatRate(progress.done_bytes(), result.duration_micros));
    }
    timing += "\n";
    switch (result.outcome) {
      case CommitResult::Outcome::kUnchanged:
        return absl::StrCat("No change: nothing in ",
                            Printable(patch_file_.empty() ? checkpoint_ : patch_file_),
                            " differs from ", name, "; no version made\n  ", timing);
      case CommitResult::Outcome::kRepeated:
        return absl::StrCat(name, " was committed under this id before; nothing done, head is ",
                            ToString(result.head), "\n");
      case CommitResult::Outcome::kServedNotDurable:
        timing = absl::StrCat("served, durable in a moment; ", timing);
        break;
      case CommitResult::Outcome::kCommitted:
        break;
    }
    const std::string standing =
        version.candidate ? absl::StrCat(" as a candidate; head is ", ToString(result.head)) : "";
    return absl::StrCat(name, " committed on ", ToString(*version.parent), standing, "\n  ",
                        Summary(version.elements, version.tensors, base), "\n  ",
                        FormatBytes(version.payload_bytes), " stored, ",
                        absl::StrFormat("%.2f", static_cast<double>(version.payload_bytes) /
                                                    static_cast<double>(version.elements)),
                        " bytes per element; ", timing);
  }

  std::string checkpoint_;
  std::string patch_file_;
  std::string parent_;
  std::string message_;
  std::vector<std::string> meta_;
  std::string id_;
  std::string policy_;
  std::string durability_;
  bool is_candidate_ = false;
  bool is_forced_ = false;
};

}  // namespace

std::unique_ptr<Command> MakePublishCommand() { return std::make_unique<PublishCommand>(); }

}  // namespace wstore::cli
