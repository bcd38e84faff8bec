// wstore status: whether the store is well.
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tools/wstore/command.h"
#include "tools/wstore/format.h"
#include "tools/wstore/table.h"
#include "tools/wstore/worker_table.h"

namespace wstore::cli {
namespace {

class StatusCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& program) override {
    CLI::App* const verb =
        program.add_subcommand("status", "Show head, health and size of the store");
    verb->group(kLookGroup);
    verb->add_flag("--check", is_check_,
                   "Exit with status 5 if the store is read-only or damaged. A hold is no fault: "
                   "it is shown, and the "
                   "status is 0");
    verb->footer(Examples({"wstore status", "wstore status --check --quiet || page-the-operator"}));
    return verb;
  }

  absl::StatusOr<ExitCode> Run(Session& session) override {
    const absl::StatusOr<std::unique_ptr<StoreAccess>> store = session.OpenForReading();
    // A store too damaged to be opened still has a status.
    if (absl::IsDataLoss(store.status())) return Damaged(session, store.status());
    RETURN_IF_ERROR(store.status());
    ASSIGN_OR_RETURN(const AccessStatus status, (*store)->Status());
    const std::string& state = status.store.state;
    const bool is_well = state == "ok" || state == "hold";
    session.Result(Text(session, status), Document(status));
    return is_check_ && !is_well ? ExitCode::kCorrupt : ExitCode::kDone;
  }

 private:
  absl::StatusOr<ExitCode> Damaged(Session& session, const absl::Status& error) const {
    ASSIGN_OR_RETURN(const std::string directory, session.StoreDirectory());
    const std::string detail(error.message());
    session.Result(
        RenderFacts(
            {{"store", Printable(directory)}, {"state", "damaged"}, {"", Printable(detail)}}),
        {{"head", nullptr},
         {"durable", nullptr},
         {"state", "damaged"},
         {"detail", detail},
         {"hold", nullptr},
         {"base", nullptr},
         {"journal_bytes", nullptr},
         {"versions", nullptr},
         {"workers", Json::array()}});
    return is_check_ ? ExitCode::kCorrupt : ExitCode::kDone;
  }

  static Json Document(const AccessStatus& access) {
    const StoreStatus& status = access.store;
    Json workers = Json::array();
    for (const WorkerInfo& worker : access.workers) workers.push_back(JsonOf(worker));
    return {
        {"head", JsonOf(status.head.version)},
        {"durable", JsonOf(access.durable)},
        {"state", status.state},
        {"detail", status.detail},
        {"hold", JsonOf(status.hold)},
        {"base", JsonOf(status.base)},
        {"journal_bytes", status.journal_bytes},
        {"versions", status.versions},
        {"move", status.head.move.value()},
        {"chain_digest", ToHex(status.head.chain_digest)},
        {"server", access.address.empty() ? Json(nullptr) : Json(access.address)},
        {"workers", workers},
    };
  }

  static std::string Text(const Session& session, const AccessStatus& access) {
    const StoreStatus& status = access.store;
    std::vector<std::pair<std::string, std::string>> facts = {
        {"store", Printable(session.StoreName())}};
    if (!access.address.empty()) facts.emplace_back("", "served at " + Printable(access.address));
    facts.emplace_back("state", status.state);
    if (!status.detail.empty()) facts.emplace_back("", Printable(status.detail));
    if (status.hold.has_value()) {
      facts.emplace_back("", absl::StrCat("since ", FormatTime(status.hold->created_unix_micros),
                                          " UTC by ", Printable(status.hold->actor)));
    }
    facts.insert(facts.end(), {{"head", absl::StrCat(ToString(status.head.version), " of ",
                                                     FormatCountOf(status.versions, "version"),
                                                     ", move ", status.head.move.value())},
                               {"base", Printable(status.base.path)},
                               {"", absl::StrCat(FormatCountOf(status.base.tensors, "tensor"), ", ",
                                                 FormatCountOf(status.base.elements, "element"),
                                                 ", ", FormatBytes(status.base.size_bytes))},
                               {"", absl::StrCat("digest ", ToHex(status.base.digest))},
                               {"journal", FormatBytes(status.journal_bytes)}});
    if (access.durable != status.head.version) {
      facts.emplace_back("durable", ToString(access.durable));
    }
    const std::string workers = RenderWorkers(access.workers, session.table_width());
    return absl::StrCat(RenderFacts(facts), workers.empty() ? "" : "\n", workers);
  }

  bool is_check_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeStatusCommand() { return std::make_unique<StatusCommand>(); }

}  // namespace wstore::cli
