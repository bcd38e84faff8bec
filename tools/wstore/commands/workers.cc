// wstore workers and evict: the ranks that follow the store.
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tools/wstore/command.h"
#include "tools/wstore/format.h"
#include "tools/wstore/worker_table.h"

namespace wstore::cli {
namespace {

class WorkersCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& program) override {
    CLI::App* const verb =
        program.add_subcommand("workers", "List the ranks that follow the store, and their state");
    verb->group(kLookGroup);
    verb->footer(Examples({
        "wstore workers",
        "wstore workers --json | jq -r '.[] | select(.state != \"current\").name'",
    }));
    return verb;
  }

  absl::StatusOr<ExitCode> Run(Session& session) override {
    ASSIGN_OR_RETURN(const std::unique_ptr<StoreAccess> store, session.OpenForReading());
    ASSIGN_OR_RETURN(const Client* const client, store->Server());
    ASSIGN_OR_RETURN(const std::vector<WorkerInfo> workers, client->Workers(store->NextDeadline()));
    Json document = Json::array();
    for (const WorkerInfo& worker : workers) document.push_back(JsonOf(worker));
    if (workers.empty()) session.Remark("No workers follow this store.");
    session.Result(RenderWorkers(workers, session.table_width()), document);
    return ExitCode::kDone;
  }
};

class EvictCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& program) override {
    CLI::App* const verb = program.add_subcommand(
        "evict", "Take an instance out of service until its ranks are started again");
    verb->group(kChangeGroup);
    verb->add_option("instance", instance_, "As `wstore workers` names it, without the rank")
        ->type_name("INSTANCE")
        ->required();
    verb->footer(Examples({"wstore evict engine-3"}));
    return verb;
  }

  absl::StatusOr<ExitCode> Run(Session& session) override {
    ASSIGN_OR_RETURN(const std::unique_ptr<StoreAccess> store, session.OpenForWriting());
    ASSIGN_OR_RETURN(Client* const client, store->Server());
    RETURN_IF_ERROR(client->Evict(instance_, store->NextDeadline()));
    ASSIGN_OR_RETURN(const HeadInfo head, store->Head());
    session.ChangeResult(
        absl::StrCat(Printable(instance_), " is evicted; head is ", ToString(head.version), "\n"),
        "", {{"instance", instance_}, {"head", JsonOf(head.version)}});
    return ExitCode::kDone;
  }

 private:
  std::string instance_;
};

}  // namespace

std::unique_ptr<Command> MakeWorkersCommand() { return std::make_unique<WorkersCommand>(); }
std::unique_ptr<Command> MakeEvictCommand() { return std::make_unique<EvictCommand>(); }

}  // namespace wstore::cli
