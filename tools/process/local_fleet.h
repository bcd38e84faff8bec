// A server and ranks of several instances, each a process of its own, on this machine.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/process/child_process.h"

namespace wstore {

// Threads: one at a time. All processes end with it.
class LocalFleet {
 public:
  // By instance, "server", or a name given to StartAs: a command that becomes the program whose
  // arguments follow it, such as `nsenter --net=FILE`. Others are started as they are.
  using Launchers = std::map<std::string, std::vector<std::string>>;

  struct Options {
    std::string program;     // the wstore command
    std::string directory;   // for store, logs and sockets; must exist
    std::string checkpoint;  // a directory with config.json: the base, and what layouts come from
    uint32_t ranks = 2;      // tensor parallel, of each instance
    bool expert_parallel = true;
    std::vector<std::string> server_arguments;
    Launchers launchers;
  };
  struct Answer {
    int exit_status = -1;
    nlohmann::json document;  // null where stdout was none
    std::string errors;       // stderr
  };
  // From the moment that a rank began to serve a version to its last release of output.
  struct Serving {
    std::string instance;
    uint32_t rank = 0;
    std::string version;
    int64_t from_micros = 0;  // of the clock that all processes share
    int64_t to_micros = 0;    // as `from_micros` where the process was killed: not known
  };

  // Creates the store; starts nothing.
  static absl::StatusOr<std::unique_ptr<LocalFleet>> Create(const Options& options);

  std::string store_path() const;
  std::string log_path(const std::string& name) const;

  // Starts the server, and waits until it answers.
  absl::Status StartServer(const std::vector<std::string>& more_arguments = {});
  ChildProcess& server() { return *server_; }
  // Ranks of this instance, or what StartAs starts under this name, reach the server there from now
  // on, by TCP without TLS; others by its unix socket.
  void SetAddress(const std::string& who, const std::string& address) { addresses_[who] = address; }
  absl::Status StartRank(const std::string& instance, uint32_t rank,
                         const std::vector<std::string>& more_arguments = {});
  // Waits until the process that was started last as this rank says that it serves.
  absl::Status AwaitServing(const std::string& instance, uint32_t rank, int64_t timeout_micros);
  // All ranks of an instance.
  absl::Status StartInstance(const std::string& instance);
  ChildProcess& rank(const std::string& instance, uint32_t rank) {
    return *ranks_.at({instance, rank});
  }

  // Starts `wstore --json ARGUMENTS` against the server, its output in log_path(`log`).
  absl::StatusOr<std::unique_ptr<ChildProcess>> StartAs(const std::string& who,
                                                        const std::vector<std::string>& arguments,
                                                        const std::string& log) const;
  // The same to its end, within a minute.
  absl::StatusOr<Answer> Run(const std::vector<std::string>& arguments) const;
  // The same, which must exit with 0.
  absl::StatusOr<nlohmann::json> Must(const std::vector<std::string>& arguments) const;

  // Waits until `workers` shows all of `count` ranks current at `version`, and no other rank.
  absl::Status AwaitCurrent(const std::string& version, size_t count, int64_t timeout_micros) const;

  // What the ranks' logs say, in order of time.
  std::vector<Serving> ServingTimes() const;
  // That no rank released output of a version while another rank, of whatever instance, served
  // another one.
  //   kDataLoss: both are named
  absl::Status CheckOneVersionAtATime() const;

 private:
  explicit LocalFleet(const Options& options) : options_(options) {}
  std::vector<std::string> Command(const std::string& who,
                                   const std::vector<std::string>& arguments) const;
  absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const std::string& who,
                                                      const std::vector<std::string>& arguments,
                                                      ChildProcess::Options child) const;

  std::vector<Serving> ServingTimesOf(const std::string& instance, uint32_t rank) const;

  const Options options_;
  std::unique_ptr<ChildProcess> server_;
  std::map<std::string, std::string> addresses_;
  std::map<std::pair<std::string, uint32_t>, std::unique_ptr<ChildProcess>> ranks_;
  std::map<std::pair<std::string, uint32_t>, uint64_t> starts_;  // where its log began
};

}  // namespace wstore
