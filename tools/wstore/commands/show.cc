// wstore show: everything that is known of one version.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "tools/wstore/command.h"
#include "tools/wstore/format.h"
#include "tools/wstore/table.h"

namespace wstore::cli {
namespace {

class ShowCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& program) override {
    CLI::App* const verb = program.add_subcommand("show", "Show all facts of one version");
    verb->group(kLookGroup);
    verb->add_option("version", version_, "v42, head or a tag")
        ->type_name(kVersionType)
        ->required();
    verb->footer(Examples({"wstore show v42", "wstore show head --json"}));
    return verb;
  }

  absl::StatusOr<ExitCode> Run(Session& session) override {
    ASSIGN_OR_RETURN(const std::unique_ptr<StoreAccess> store, session.OpenForReading());
    ASSIGN_OR_RETURN(const VersionInfo version, store->Version(version_));
    ASSIGN_OR_RETURN(const VersionContext context, VersionContext::Load(*store));
    Json document = JsonOf(version, context);
    document["base_digest"] = ToHex(context.base.digest);
    session.Result(Text(version, context), document);
    return ExitCode::kDone;
  }

 private:
  static std::string Text(const VersionInfo& version, const VersionContext& context) {
    const bool is_base = !version.parent.has_value();
    std::vector<std::pair<std::string, std::string>> facts;
    facts.emplace_back("version", absl::StrCat(ToString(version.version),
                                               version.version == context.head ? " (head)" : ""));
    const std::vector<std::string> tags = context.TagsOf(version.version);
    if (version.candidate) facts.emplace_back("candidate", "until `wstore promote`");
    if (version.bad.has_value()) facts.emplace_back("marked bad", Printable(*version.bad));
    if (!tags.empty()) facts.emplace_back("tags", absl::StrJoin(tags, ", "));
    if (!is_base) facts.emplace_back("parent", ToString(*version.parent));
    facts.emplace_back("created", FormatRfc3339(version.created_unix_micros));
    facts.emplace_back("by", Printable(version.actor));
    if (!version.message.empty()) facts.emplace_back("message", Printable(version.message));
    std::string name = "meta";
    for (const auto& [key, value] : version.meta) {
      facts.emplace_back(name, absl::StrCat(Printable(key), "=", Printable(value)));
      name.clear();
    }
    if (is_base) {
      facts.emplace_back("base", absl::StrCat(FormatCountOf(version.tensors, "tensor"), ", ",
                                              FormatCountOf(version.elements, "element")));
    } else {
      facts.emplace_back("changed", Summary(version.elements, version.tensors, context.base));
    }
    facts.emplace_back("size", absl::StrCat(FormatBytes(version.payload_bytes), " (",
                                            FormatCountOf(version.payload_bytes, "byte"), ")"));
    facts.emplace_back("verified", std::string(VerifiedName(version.verified)));
    facts.emplace_back("chain digest", ToHex(version.chain_digest));
    if (!is_base) facts.emplace_back("patch digest", ToHex(version.patch_digest));
    facts.emplace_back("base digest", ToHex(context.base.digest));
    facts.emplace_back("fingerprint", ToHex(version.fingerprint));
    if (!is_base) {
      const std::string id = version.transaction_id.empty()
                                 ? ""
                                 : absl::StrCat(", id ", Printable(version.transaction_id));
      facts.emplace_back("transaction", absl::StrCat(version.transaction.value(), id));
    }
    return RenderFacts(facts);
  }

  std::string version_;
};

}  // namespace

std::unique_ptr<Command> MakeShowCommand() { return std::make_unique<ShowCommand>(); }

}  // namespace wstore::cli
