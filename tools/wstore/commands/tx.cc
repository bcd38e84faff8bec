// wstore tx: transactions of a server, open and decided.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "tools/wstore/command.h"
#include "tools/wstore/format.h"
#include "tools/wstore/table.h"

namespace wstore::cli {
namespace {

Json DocumentOf(const OpenTransaction& open) {
  return {{"id", open.id},
          {"kind", open.kind},
          {"tx", open.transaction.value()},
          {"version", JsonOf(open.version)},
          {"phase", open.phase},
          {"contributors", open.contributors},
          {"waiting_for", open.waiting_for},
          {"staged_bytes", open.staged_bytes},
          {"age_ms", MsOf(open.age_micros)}};
}

std::string TableOf(const std::vector<OpenTransaction>& open, size_t width) {
  using Align = Table::Align;
  Table table({{"TX", Align::kRight},
               {"KIND"},
               {"VERSION"},
               {"PHASE"},
               {"AGE", Align::kRight},
               {"WAITS FOR"},
               {"ID"}});
  for (const OpenTransaction& entry : open) {
    const std::string waits =
        entry.waiting_for.empty()
            ? "-"
            : absl::StrCat(absl::StrJoin(entry.waiting_for, ","), " of ", entry.contributors);
    table.AddRow({absl::StrCat(entry.transaction.value()), entry.kind, ToString(entry.version),
                  entry.phase, FormatDuration(entry.age_micros), waits, Printable(entry.id)});
  }
  return table.Render(width);
}

class TxCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& program) override {
    CLI::App* const verb = program.add_subcommand(
        "tx", "List open transactions, tell what became of an id, or abort one");
    verb->group(kLookGroup);
    verb->add_option("action", action_, "list, show or abort")
        ->type_name("ACTION")
        ->required()
        ->check(CLI::IsMember({"list", "show", "abort"}));
    verb->add_option("id", id_, "The transaction id, for show and abort")->type_name("ID");
    verb->add_option("-m,--message", reason_, "Why it is aborted")->type_name("TEXT");
    verb->footer(Examples({
        "wstore tx list",
        "wstore tx show rl-7/1200    # the answer to an unknown outcome",
        "wstore tx abort rl-7/1200 -m \"trainer is gone\"",
    }));
    return verb;
  }

  absl::StatusOr<ExitCode> Run(Session& session) override {
    if ((action_ == "list") != id_.empty()) {
      return UsageError(action_ == "list" ? "tx list takes no transaction id"
                                          : absl::StrCat("tx ", action_, " needs an id"));
    }
    if (action_ != "abort" && !reason_.empty()) {
      return UsageError("--message says why a transaction is aborted");
    }
    ASSIGN_OR_RETURN(const std::unique_ptr<StoreAccess> store, session.OpenForReading());
    ASSIGN_OR_RETURN(Client* const client, store->Server());
    if (action_ == "abort") return Abort(session, *client, store->NextDeadline());
    ASSIGN_OR_RETURN(const std::vector<OpenTransaction> open,
                     client->Transactions(store->NextDeadline()));
    if (action_ == "list") return List(session, open);
    for (const OpenTransaction& entry : open) {
      if (entry.id != id_) continue;
      Json document = DocumentOf(entry);
      document["outcome"] = "open";
      session.Result(TableOf({entry}, session.table_width()), document);
      return ExitCode::kDone;
    }
    return Show(session, *client, store->NextDeadline());
  }

 private:
  static absl::StatusOr<ExitCode> List(Session& session, const std::vector<OpenTransaction>& open) {
    Json document = Json::array();
    for (const OpenTransaction& entry : open) document.push_back(DocumentOf(entry));
    if (open.empty()) session.Remark("No transaction is open.");
    session.Result(open.empty() ? "" : TableOf(open, session.table_width()), document);
    return ExitCode::kDone;
  }

  absl::StatusOr<ExitCode> Show(Session& session, const Client& client, Deadline deadline) const {
    ASSIGN_OR_RETURN(const Decision decision, client.Ask(id_, deadline));
    session.Result(absl::StrCat(Printable(id_), " is committed: ", ToString(decision.version),
                                ", transaction ", decision.transaction.value(), "; head is ",
                                ToString(decision.head.head.version), "\n"),
                   {{"id", id_},
                    {"outcome", OutcomeName(decision.outcome)},
                    {"version", JsonOf(decision.version)},
                    {"head", JsonOf(decision.head.head.version)},
                    {"tx", decision.transaction.value()},
                    {"move", decision.move.value()},
                    {"chain_digest", ToHex(decision.chain_digest)}});
    return ExitCode::kDone;
  }

  absl::StatusOr<ExitCode> Abort(Session& session, Client& client, Deadline deadline) const {
    const std::string reason = reason_.empty() ? "aborted by an operator" : reason_;
    RETURN_IF_ERROR(client.Abort(id_, reason, deadline));
    session.ChangeResult(absl::StrCat(Printable(id_), " is aborted; everything is as before\n"), "",
                         {{"id", id_}, {"outcome", "aborted"}});
    return ExitCode::kDone;
  }

  std::string action_;
  std::string id_;
  std::string reason_;
};

}  // namespace

std::unique_ptr<Command> MakeTxCommand() { return std::make_unique<TxCommand>(); }

}  // namespace wstore::cli
