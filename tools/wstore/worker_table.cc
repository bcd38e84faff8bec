#include "tools/wstore/worker_table.h"

#include "absl/strings/str_cat.h"
#include "tools/wstore/format.h"
#include "tools/wstore/table.h"

namespace wstore::cli {
namespace {

// A lost rank that cannot be fenced may serve what it had.
std::string StateOf(const WorkerInfo& worker) {
  if (worker.state != "lost" || !worker.may_serve_when_lost) return worker.state;
  return worker.version ? absl::StrCat("lost, may serve ", ToString(*worker.version))
                        : "lost, may serve";
}

}  // namespace

std::string RenderWorkers(const std::vector<WorkerInfo>& workers, size_t width) {
  if (workers.empty()) return "";
  using Align = Table::Align;
  Table table({{"WORKER"},
               {"VERSION"},
               {"STATE"},
               {"LAG", Align::kRight},
               {"HEARD", Align::kRight},
               {"RECEIVED", Align::kRight},
               {"PEER"},
               {"ERROR"}});
  for (const WorkerInfo& worker : workers) {
    table.AddRow({absl::StrCat(Printable(worker.instance), "/", worker.rank),
                  worker.version ? ToString(*worker.version) : "-", StateOf(worker),
                  FormatCount(worker.lag), FormatDuration(worker.heard_micros_ago),
                  FormatBytes(worker.carried_bytes + worker.served_bytes), Printable(worker.peer),
                  Printable(worker.error)});
  }
  return table.Render(width);
}

}  // namespace wstore::cli
