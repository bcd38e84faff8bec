// wstore tag: names versions, and lists the names.
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tools/wstore/command.h"
#include "tools/wstore/format.h"
#include "tools/wstore/table.h"

namespace wstore::cli {
namespace {

class TagCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& program) override {
    CLI::App* const verb =
        program.add_subcommand("tag", "Name a version, move a name, or list the names");
    verb->group(kChangeGroup);
    CLI::Option* const name =
        verb->add_option("name", name_,
                         "1 to 128 letters, digits and . _ - /; begins with a letter or digit")
            ->type_name("NAME");
    CLI::Option* const version =
        verb->add_option("version", version_, "What is named: v42, head or another tag")
            ->type_name(kVersionType);
    name->needs(version);
    verb->footer(Examples({
        "wstore tag prod v41",
        "wstore tag             # lists all tags",
    }));
    return verb;
  }

  absl::StatusOr<ExitCode> Run(Session& session) override {
    return name_.empty() ? List(session) : Set(session);
  }

 private:
  static absl::StatusOr<ExitCode> List(Session& session) {
    ASSIGN_OR_RETURN(const std::unique_ptr<StoreAccess> store, session.OpenForReading());
    Json document = Json::array();
    Table table({{"TAG"}, {"VERSION"}, {"CREATED (UTC)"}, {"BY"}});
    ASSIGN_OR_RETURN(const std::vector<TagInfo> tags, store->Tags());
    for (const TagInfo& tag : tags) {
      document.push_back(JsonOf(tag));
      table.AddRow({Printable(tag.name), ToString(tag.version), FormatTime(tag.created_unix_micros),
                    Printable(tag.actor)});
    }
    if (tags.empty()) session.Remark("There are no tags.");
    session.Result(tags.empty() ? "" : table.Render(session.table_width()), document);
    return ExitCode::kDone;
  }

  absl::StatusOr<ExitCode> Set(Session& session) const {
    ASSIGN_OR_RETURN(const std::unique_ptr<StoreAccess> store, session.OpenForWriting());
    ASSIGN_OR_RETURN(const VersionInfo info, store->Version(version_));
    const VersionId version = info.version;
    ASSIGN_OR_RETURN(const std::vector<TagInfo> tags, store->Tags());
    std::optional<VersionId> previous;
    for (const TagInfo& tag : tags) {
      if (tag.name == name_) previous = tag.version;
    }
    RETURN_IF_ERROR(store->Tag(name_, version));
    const std::string was = previous.has_value() && *previous != version
                                ? absl::StrCat("; it was ", ToString(*previous))
                                : "";
    session.ChangeResult(
        absl::StrCat(name_, " is ", ToString(version), was, "\n"), ToString(version),
        {{"name", name_}, {"version", JsonOf(version)}, {"previous", JsonOf(previous)}});
    return ExitCode::kDone;
  }

  std::string name_;
  std::string version_;
};

}  // namespace

std::unique_ptr<Command> MakeTagCommand() { return std::make_unique<TagCommand>(); }

}  // namespace wstore::cli
