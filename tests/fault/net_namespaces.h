// Processes on networks of their own, whose links lose packets and go down.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/support/temp_dir.h"
#include "tools/process/child_process.h"

namespace wstore::testing {

// Network namespaces of this kernel: a hub, and leaves that reach the hub and nothing else, each by
// a link of its own. They hang on processes that die with this one, so nothing of them is left.
//
// Threads: one at a time.
class NetNamespaces {
 public:
  // Needs the right to administer networks, and the programs ip, iptables, nsenter and unshare.
  //   kUnavailable: there is no such thing here, and why
  static absl::StatusOr<std::unique_ptr<NetNamespaces>> Create(
      const std::vector<std::string>& leaves);

  // What starts a program there; see LocalFleet. "": in the hub.
  std::vector<std::string> Launcher(const std::string& leaf) const;
  // The hub's, as this leaf sees it.
  std::string HubAddress(const std::string& leaf) const;

  // Every packet on every link is lost with this probability.
  absl::Status SetLoss(double probability);
  absl::Status SetLink(const std::string& leaf, bool is_up);

 private:
  struct Leaf {
    size_t number;
    std::unique_ptr<ChildProcess> keeper;
  };

  NetNamespaces() = default;
  absl::StatusOr<std::unique_ptr<ChildProcess>> StartKeeper();
  absl::Status Join(const std::string& name, size_t number);
  absl::Status RunIn(const ChildProcess& keeper, const std::vector<std::string>& command) const;

  const TempDir logs_;
  std::unique_ptr<ChildProcess> hub_;
  std::map<std::string, Leaf> leaves_;
};

}  // namespace wstore::testing
