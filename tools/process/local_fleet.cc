#include "tools/process/local_fleet.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace wstore {
namespace {

constexpr int64_t kStartMicros = 20'000'000;
constexpr int64_t kCommandMicros = 60'000'000;
constexpr int64_t kPollMicros = 20'000;
constexpr auto kPollPause = std::chrono::microseconds(kPollMicros);

int64_t Now() { return SystemClock().NowMonotonicMicros(); }

std::string Slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool SaysListening(const std::string& line) {
  return line.find("event=listening") != std::string::npos;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalFleet>> LocalFleet::Create(const Options& options) {
  std::unique_ptr<LocalFleet> fleet(new LocalFleet(options));
  std::filesystem::create_directories(options.directory + "/logs");
  RETURN_IF_ERROR(
      fleet->Must({"init", fleet->store_path(), "--base", options.checkpoint}).status());
  return fleet;
}

std::string LocalFleet::store_path() const { return options_.directory + "/store"; }

std::string LocalFleet::log_path(const std::string& name) const {
  return absl::StrCat(options_.directory, "/logs/", name, ".log");
}

std::vector<std::string> LocalFleet::Command(const std::string& who,
                                             const std::vector<std::string>& arguments) const {
  std::vector<std::string> command;
  const auto launcher = options_.launchers.find(who);
  if (launcher != options_.launchers.end()) command = launcher->second;
  command.insert(command.end(), {options_.program, "--json"});
  const auto address = addresses_.find(who);
  if (address != addresses_.end()) {
    command.insert(command.end(), {"--server", address->second});
  } else if (arguments[0] != "init") {
    command.insert(command.end(), {"--store", store_path()});
  }
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

absl::StatusOr<std::unique_ptr<ChildProcess>> LocalFleet::Start(
    const std::string& who, const std::vector<std::string>& arguments,
    ChildProcess::Options child) const {
  if (addresses_.count(who) != 0) child.environment["WSTORE_INSECURE_TCP"] = "1";
  return ChildProcess::Start(Command(who, arguments), child);
}

absl::StatusOr<std::unique_ptr<ChildProcess>> LocalFleet::StartAs(
    const std::string& who, const std::vector<std::string>& arguments,
    const std::string& log) const {
  ChildProcess::Options child;
  child.out_path = log_path(log);
  return Start(who, arguments, child);
}

absl::Status LocalFleet::StartServer(const std::vector<std::string>& more_arguments) {
  std::vector<std::string> arguments = {"serve"};
  arguments.insert(arguments.end(), options_.server_arguments.begin(),
                   options_.server_arguments.end());
  arguments.insert(arguments.end(), more_arguments.begin(), more_arguments.end());
  ChildProcess::Options child;
  child.out_path = log_path("server");
  std::error_code absent;
  const auto written = std::filesystem::file_size(child.out_path, absent);
  LineFollower log(child.out_path, absent ? 0 : written);
  ASSIGN_OR_RETURN(server_, Start("server", arguments, child));
  bool is_listening = false;
  for (const int64_t deadline = Now() + kStartMicros;;) {
    // Before it listens, a command would look at the store by itself.
    is_listening = is_listening || log.Find(SaysListening, kPollMicros);
    if (is_listening) {
      ASSIGN_OR_RETURN(const Answer answer, Run({"status"}));
      if (answer.exit_status == 0 && answer.document["state"] != "recovering") {
        return absl::OkStatus();
      }
    }
    if (server_->Wait(0) || Now() >= deadline) {
      return absl::UnavailableError(
          absl::StrCat("the server did not start: ", Slurp(child.out_path)));
    }
    if (is_listening) std::this_thread::sleep_for(kPollPause);
  }
}

absl::Status LocalFleet::StartRank(const std::string& instance, uint32_t rank,
                                   const std::vector<std::string>& more_arguments) {
  std::vector<std::string> arguments = {"worker",
                                        "--layout",
                                        options_.checkpoint,
                                        "--instance",
                                        instance,
                                        "--tp",
                                        absl::StrCat(rank, "/", options_.ranks)};
  if (options_.expert_parallel) arguments.emplace_back("--ep");
  arguments.insert(arguments.end(), more_arguments.begin(), more_arguments.end());
  ChildProcess::Options child;
  const std::string name = absl::StrCat(instance, "-", rank);
  child.out_path = log_path(name);
  child.err_path = log_path(name + "-err");
  auto& process = ranks_[{instance, rank}];
  process.reset();
  std::error_code absent;
  const auto written = std::filesystem::file_size(child.out_path, absent);
  starts_[{instance, rank}] = absent ? 0 : written;
  ASSIGN_OR_RETURN(process, Start(instance, arguments, child));
  return absl::OkStatus();
}

absl::Status LocalFleet::AwaitServing(const std::string& instance, uint32_t rank,
                                      int64_t timeout_micros) {
  LineFollower log(log_path(absl::StrCat(instance, "-", rank)), starts_[{instance, rank}]);
  const auto serves = [](const std::string& line) {
    return line.find("\"event\":\"serving\"") != std::string::npos;
  };
  if (log.Find(serves, timeout_micros)) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("rank ", rank, " of ", instance,
                   " does not serve; its log: ", log_path(absl::StrCat(instance, "-", rank))));
}

absl::Status LocalFleet::StartInstance(const std::string& instance) {
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
    RETURN_IF_ERROR(StartRank(instance, rank));
  }
  return absl::OkStatus();
}

absl::StatusOr<LocalFleet::Answer> LocalFleet::Run(
    const std::vector<std::string>& arguments) const {
  const std::string out = options_.directory + "/logs/command.out";
  const std::string err = options_.directory + "/logs/command.err";
  std::filesystem::remove(out);
  std::filesystem::remove(err);
  ChildProcess::Options child;
  child.out_path = out;
  child.err_path = err;
  ASSIGN_OR_RETURN(const std::unique_ptr<ChildProcess> process, Start("", arguments, child));
  const std::optional<int> status = process->Wait(kCommandMicros);
  if (!status) {
    return absl::DeadlineExceededError(
        absl::StrCat("'wstore ", absl::StrJoin(arguments, " "), "' did not end within a minute"));
  }
  Answer answer;
  answer.exit_status = *status;
  answer.document = nlohmann::json::parse(Slurp(out), nullptr, /*allow_exceptions=*/false);
  if (answer.document.is_discarded()) answer.document = nullptr;
  answer.errors = Slurp(err);
  return answer;
}

absl::StatusOr<nlohmann::json> LocalFleet::Must(const std::vector<std::string>& arguments) const {
  ASSIGN_OR_RETURN(Answer answer, Run(arguments));
  if (answer.exit_status == 0) return std::move(answer.document);
  return absl::UnavailableError(absl::StrCat("'wstore ", absl::StrJoin(arguments, " "),
                                             "' exited with ", answer.exit_status, ": ",
                                             answer.errors, answer.document.dump()));
}

absl::Status LocalFleet::AwaitCurrent(const std::string& version, size_t count,
                                      int64_t timeout_micros) const {
  for (const int64_t deadline = Now() + timeout_micros;;) {
    ASSIGN_OR_RETURN(const Answer answer, Run({"workers"}));
    const bool listed = answer.exit_status == 0 && answer.document.is_array();
    const bool all =
        listed && answer.document.size() == count &&
        std::all_of(answer.document.begin(), answer.document.end(),
                    [&](const nlohmann::json& worker) {
                      return worker["state"] == "current" && worker["version"] == version;
                    });
    if (all) return absl::OkStatus();
    if (Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("not all of ", count, " ranks came to ",
                                                      version, ": ", answer.document.dump(),
                                                      answer.errors));
    }
    std::this_thread::sleep_for(kPollPause);
  }
}

// What one rank's log says, in order. Processes that ran one after another wrote it.
std::vector<LocalFleet::Serving> LocalFleet::ServingTimesOf(const std::string& instance,
                                                            uint32_t rank) const {
  std::vector<Serving> times;
  bool is_open = false;
  std::ifstream log(log_path(absl::StrCat(instance, "-", rank)));
  for (std::string line; std::getline(log, line);) {
    const nlohmann::json said = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!said.is_object()) continue;  // a process was killed in the middle of it
    const std::string event = said.value("event", "");
    if (event == "started") is_open = false;  // when the one before it served last is not known
    if (event != "serving" && event != "paused" && event != "left") continue;
    if (is_open) {
      times.back().to_micros =
          std::max(times.back().from_micros, said.value("released_micros", int64_t{0}));
    }
    is_open = event == "serving";
    if (!is_open) continue;
    const auto from = said.value("at_micros", int64_t{0});
    times.push_back({instance, rank, said.value("version", ""), from, from});
  }
  return times;
}

std::vector<LocalFleet::Serving> LocalFleet::ServingTimes() const {
  std::vector<Serving> all;
  for (const auto& [rank, process] : ranks_) {
    const std::vector<Serving> times = ServingTimesOf(rank.first, rank.second);
    all.insert(all.end(), times.begin(), times.end());
  }
  std::sort(all.begin(), all.end(),
            [](const Serving& a, const Serving& b) { return a.from_micros < b.from_micros; });
  return all;
}

absl::Status LocalFleet::CheckOneVersionAtATime() const {
  const std::vector<Serving> times = ServingTimes();
  if (times.empty()) return absl::DataLossError("no rank's log says that it served");
  for (size_t i = 0; i < times.size(); ++i) {
    for (size_t k = i + 1; k < times.size() && times[k].from_micros < times[i].to_micros; ++k) {
      if (times[i].version == times[k].version) continue;
      return absl::DataLossError(absl::StrCat(
          times[i].instance, " rank ", times[i].rank, " served ", times[i].version, " until ",
          times[i].to_micros, ", ", times[k].instance, " rank ", times[k].rank, " served ",
          times[k].version, " from ", times[k].from_micros));
    }
  }
  return absl::OkStatus();
}

}  // namespace wstore
