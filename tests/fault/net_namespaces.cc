#include "tests/fault/net_namespaces.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "tests/support/process.h"

namespace wstore::testing {
namespace {

std::string NamespaceFile(const std::string& process) {
  return absl::StrCat("/proc/", process, "/ns/net");
}

std::string NamespaceOf(const std::string& process) {
  std::error_code error;
  return std::filesystem::read_symlink(NamespaceFile(process), error).string();
}

std::string KeptBy(const ChildProcess& keeper) {
  return absl::StrCat("--net=", NamespaceFile(std::to_string(keeper.pid())));
}

}  // namespace

absl::StatusOr<std::unique_ptr<NetNamespaces>> NetNamespaces::Create(
    const std::vector<std::string>& leaves) {
  std::unique_ptr<NetNamespaces> made(new NetNamespaces());
  ASSIGN_OR_RETURN(made->hub_, made->StartKeeper());
  for (const std::string& leaf : leaves) {
    RETURN_IF_ERROR(made->Join(leaf, made->leaves_.size() + 1));
  }
  RETURN_IF_ERROR(made->SetLoss(0.5));  // whether there is such a thing
  RETURN_IF_ERROR(made->SetLoss(0));
  return made;
}

absl::StatusOr<std::unique_ptr<ChildProcess>> NetNamespaces::StartKeeper() {
  ChildProcess::Options options;
  options.out_path = logs_ / "keepers";
  ASSIGN_OR_RETURN(std::unique_ptr<ChildProcess> keeper,
                   ChildProcess::Start({"unshare", "--net", "sleep", "infinity"}, options));
  while (NamespaceOf(std::to_string(keeper->pid())) == NamespaceOf("self")) {
    if (keeper->Wait(1000)) {
      std::ifstream said(options.out_path);
      return absl::UnavailableError(absl::StrCat(
          "no network namespaces here: ", std::string{std::istreambuf_iterator<char>(said), {}}));
    }
  }
  return keeper;
}

absl::Status NetNamespaces::RunIn(const ChildProcess& keeper,
                                  const std::vector<std::string>& command) const {
  std::vector<std::string> whole = {"nsenter", KeptBy(keeper)};
  whole.insert(whole.end(), command.begin(), command.end());
  const ProcessResult result = RunProcess(whole);
  if (result.exit_status == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("'", absl::StrJoin(command, " "), "' exited with ",
                                             result.exit_status, ": ",
                                             result.err.substr(0, result.err.find('\n'))));
}

absl::Status NetNamespaces::Join(const std::string& name, size_t number) {
  ASSIGN_OR_RETURN(std::unique_ptr<ChildProcess> keeper, StartKeeper());
  const std::string link = absl::StrCat("leaf", number);
  RETURN_IF_ERROR(RunIn(*hub_, {"ip", "link", "add", link, "type", "veth", "peer", "name", "hub",
                                "netns", std::to_string(keeper->pid())}));
  RETURN_IF_ERROR(
      RunIn(*hub_, {"ip", "addr", "add", absl::StrCat("10.77.", number, ".1/24"), "dev", link}));
  RETURN_IF_ERROR(
      RunIn(*keeper, {"ip", "addr", "add", absl::StrCat("10.77.", number, ".2/24"), "dev", "hub"}));
  RETURN_IF_ERROR(RunIn(*keeper, {"ip", "link", "set", "hub", "up"}));
  leaves_[name] = {number, std::move(keeper)};
  return SetLink(name, true);
}

std::vector<std::string> NetNamespaces::Launcher(const std::string& leaf) const {
  return {"nsenter", KeptBy(leaf.empty() ? *hub_ : *leaves_.at(leaf).keeper)};
}

std::string NetNamespaces::HubAddress(const std::string& leaf) const {
  return absl::StrCat("10.77.", leaves_.at(leaf).number, ".1");
}

absl::Status NetNamespaces::SetLoss(double probability) {
  std::vector<const ChildProcess*> ends = {hub_.get()};
  for (const auto& [name, leaf] : leaves_) ends.push_back(leaf.keeper.get());
  for (const ChildProcess* const end : ends) {
    RETURN_IF_ERROR(RunIn(*end, {"iptables", "-w", "-F", "INPUT"}));
    if (probability == 0) continue;
    RETURN_IF_ERROR(
        RunIn(*end, {"iptables", "-w", "-A", "INPUT", "-m", "statistic", "--mode", "random",
                     "--probability", absl::StrCat(probability), "-j", "DROP"}));
  }
  return absl::OkStatus();
}

absl::Status NetNamespaces::SetLink(const std::string& leaf, bool is_up) {
  return RunIn(*hub_, {"ip", "link", "set", absl::StrCat("leaf", leaves_.at(leaf).number),
                       is_up ? "up" : "down"});
}

}  // namespace wstore::testing
