// wstore log: versions, or moves of head, newest first.
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tools/wstore/command.h"
#include "tools/wstore/format.h"
#include "tools/wstore/table.h"

namespace wstore::cli {
namespace {

using Align = Table::Align;

// To the minute: tables must fit a terminal; `show` and --json have all of it.
std::string ToMinute(int64_t unix_micros) { return FormatTime(unix_micros).substr(0, 16); }

// The first line of a message.
std::string Subject(const std::string& message) {
  const size_t end = message.find('\n');
  return Printable(message.substr(0, end)) + (end == std::string::npos ? "" : " ...");
}

class LogCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& program) override {
    CLI::App* const verb = program.add_subcommand("log", "List versions, newest first");
    verb->group(kLookGroup);
    verb->add_option("-n", limit_, "At most this many")
        ->type_name("COUNT")
        ->check(CLI::PositiveNumber);
    verb->add_flag("--moves", is_moves_,
                   "List moves of head instead: every publish and rollback, also refused ones");
    verb->footer(Examples({
        "wstore log -n 20",
        "wstore log --moves",
        "wstore log --json | jq -r '.[] | select(.is_head).version'",
    }));
    return verb;
  }

  absl::StatusOr<ExitCode> Run(Session& session) override {
    ASSIGN_OR_RETURN(const std::unique_ptr<StoreAccess> store, session.OpenForReading());
    RETURN_IF_ERROR(is_moves_ ? Moves(session, *store) : Versions(session, *store));
    return ExitCode::kDone;
  }

 private:
  size_t limit() const { return limit_ > 0 ? limit_ : SIZE_MAX; }

  absl::Status Versions(Session& session, StoreAccess& store) const {
    ASSIGN_OR_RETURN(const std::vector<VersionInfo> versions, store.Versions(limit()));
    ASSIGN_OR_RETURN(const VersionContext context, VersionContext::Load(store));
    Json document = Json::array();
    Table table({{"VERSION"},
                 {"PARENT"},
                 {"CHANGED", Align::kRight},
                 {"DENSITY", Align::kRight},
                 {"SIZE", Align::kRight},
                 {"CREATED (UTC)"},
                 {"MESSAGE"}});
    for (const VersionInfo& version : versions) {
      if (session.options().json) {
        document.push_back(JsonOf(version, context));
        continue;
      }
      const bool is_base = !version.parent.has_value();
      const std::string names = context.Names(version);
      const std::string subject =
          is_base && version.message.empty() ? "base" : Subject(version.message);
      table.AddRow({ToString(version.version), is_base ? "-" : ToString(*version.parent),
                    is_base ? "-" : FormatCount(version.elements),
                    is_base ? "-" : FormatPercent(version.elements, context.base.elements),
                    FormatBytes(version.payload_bytes), ToMinute(version.created_unix_micros),
                    absl::StrCat(names, names.empty() ? "" : " ", subject)});
    }
    session.Result(table.Render(session.table_width()), document);
    return absl::OkStatus();
  }

  absl::Status Moves(Session& session, StoreAccess& store) const {
    ASSIGN_OR_RETURN(const std::vector<MoveInfo> moves, store.Moves(limit()));
    Json document = Json::array();
    Table table({{"MOVE", Align::kRight},
                 {"FROM"},
                 {"TO"},
                 {"WHY"},
                 {"OUTCOME"},
                 {"TIME", Align::kRight},
                 {"CREATED (UTC)"},
                 {"BY"},
                 {"MESSAGE"}});
    for (const MoveInfo& move : moves) {
      document.push_back(JsonOf(move));
      table.AddRow({IsRefused(move) ? "-" : absl::StrCat(move.move.value()), ToString(move.from),
                    ToString(move.to), move.why, move.outcome, FormatDuration(move.duration_micros),
                    ToMinute(move.created_unix_micros), Printable(move.actor),
                    Subject(move.message)});
    }
    if (moves.empty()) session.Remark("Head has not moved yet: it is v0.");
    session.Result(moves.empty() ? "" : table.Render(session.table_width()), document);
    return absl::OkStatus();
  }

  uint64_t limit_ = 0;
  bool is_moves_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeLogCommand() { return std::make_unique<LogCommand>(); }

}  // namespace wstore::cli
