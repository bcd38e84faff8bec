#include "tools/bench/served_store.h"

#include <chrono>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace wstore::bench {

absl::StatusOr<std::unique_ptr<Served>> Served::Start(const Options& options,
                                                      const Scratch& scratch,
                                                      const std::string& name) {
  const std::string store = scratch / name;
  ChildProcess::Options child;
  child.out_path = store + ".log";
  ASSIGN_OR_RETURN(
      std::unique_ptr<ChildProcess> process,
      ChildProcess::Start(
          {options.program, "--store", store, "serve", "--lease", "1s", "--skew", "100ms"}, child));
  auto served = std::make_unique<Served>();
  served->process_ = std::move(process);
  served->connect_.address = absl::StrCat("unix:", store, "/wstore.sock");
  ASSIGN_OR_RETURN(served->client_, Client::Connect(served->connect_));
  // Leases of a run before it might still hold.
  for (const Deadline deadline = Soon();;) {
    ASSIGN_OR_RETURN(const ServedHead head, served->client_->Head(deadline));
    if (head.state != "recovering") return served;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

absl::StatusOr<double> Served::PeakBytes() const {
  std::ifstream status(absl::StrCat("/proc/", process_->pid(), "/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stod(line.substr(6)) * 1024;
  }
  return absl::UnavailableError("the server is gone");
}

}  // namespace wstore::bench
