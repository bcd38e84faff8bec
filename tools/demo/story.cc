#include "tools/demo/story.h"

#include <signal.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "tools/demo/model.h"
#include "tools/process/local_fleet.h"

namespace wstore::demo {
namespace {

constexpr int64_t kWaitMicros = 20'000'000;
constexpr size_t kRanks = 4;  // of both instances

class Story {
 public:
  explicit Story(const StoryOptions& options)
      : options_(options), begun_(SystemClock().NowMonotonicMicros()) {}

  absl::Status Run() {
    RETURN_IF_ERROR(SetUp());
    RETURN_IF_ERROR(Publish("v1"));
    RETURN_IF_ERROR(Publish("v2"));
    RETURN_IF_ERROR(VerifyMemory("v2"));
    RETURN_IF_ERROR(KillOneRank());
    RETURN_IF_ERROR(BringItBack());
    RETURN_IF_ERROR(PublishOnWrongParent());
    RETURN_IF_ERROR(Publish("v4"));
    RETURN_IF_ERROR(Publish("v5"));
    RETURN_IF_ERROR(VerifyMemory("v5"));
    RETURN_IF_ERROR(RollBack());
    return CheckTheEnd();
  }

 private:
  int64_t Now() const { return SystemClock().NowMonotonicMicros() - begun_; }
  void Tell(const std::string& text) const { options_.tell(Now(), text); }

  static std::string Milliseconds(int64_t micros) {
    return absl::StrFormat("%.0f ms", static_cast<double>(micros) / 1000);
  }

  absl::Status SetUp() {
    const std::string checkpoint = options_.directory + "/base";
    RETURN_IF_ERROR(model_.Write(checkpoint));
    LocalFleet::Options fleet;
    fleet.program = options_.program;
    fleet.directory = options_.directory;
    fleet.checkpoint = checkpoint;
    fleet.server_arguments = {"--lease",          "1s", "--skew",          "200ms",
                              "--apply-deadline", "2s", "--hold-deadline", "5s"};
    ASSIGN_OR_RETURN(fleet_, LocalFleet::Create(fleet));
    Tell(absl::StrFormat("a store on a Qwen3-MoE of %.1f million elements, %.1f MB",
                         1e-6 * static_cast<double>(model_.manifest().elements()),
                         1e-6 * static_cast<double>(model_.manifest().size_bytes())));
    RETURN_IF_ERROR(fleet_->StartServer());
    Tell(absl::StrCat("a server, process ", fleet_->server().pid()));
    RETURN_IF_ERROR(fleet_->StartInstance("a"));
    RETURN_IF_ERROR(fleet_->StartInstance("b"));
    RETURN_IF_ERROR(fleet_->AwaitCurrent("v0", kRanks, kWaitMicros));
    Tell("instances a and b, two ranks each (TP2, EP2), have proved their memory and serve v0");
    return StartTrainer();
  }

  absl::Status StartTrainer() {
    ChildProcess::Options child;
    child.out_path = fleet_->log_path("trainer");
    child.err_path = fleet_->log_path("trainer-err");
    child.with_input = true;
    ASSIGN_OR_RETURN(trainer_, ChildProcess::Start({options_.program, "--store",
                                                    fleet_->store_path(), "demo", "--trainer"},
                                                   child));
    trained_ = std::make_unique<LineFollower>(child.out_path);
    return absl::OkStatus();
  }

  // The trainer takes a step and publishes it. `alive`: ranks that have to follow.
  absl::Status TrainStep(const std::string& version, size_t alive, int64_t* micros) {
    const int64_t begun = Now();
    model_.TrainStep();
    RETURN_IF_ERROR(trainer_->Write("step\n"));
    const std::optional<std::string> line = trained_->Next(kWaitMicros);
    if (!line || line->find("\"" + version + "\"") == std::string::npos) {
      return absl::InternalError(absl::StrCat("the trainer did not publish ", version, ": ",
                                              line.value_or("it said nothing")));
    }
    *micros = Now() - begun;
    return fleet_->AwaitCurrent(version, alive, kWaitMicros);
  }

  absl::Status Publish(const std::string& version) {
    int64_t micros = 0;
    RETURN_IF_ERROR(TrainStep(version, kRanks, &micros));
    ASSIGN_OR_RETURN(const nlohmann::json shown, fleet_->Must({"show", version}));
    Tell(absl::StrCat("the trainer published ", version, ": ", shown["elements"].get<uint64_t>(),
                      " elements, served by all four ranks, ", Milliseconds(micros)));
    return absl::OkStatus();
  }

  absl::Status VerifyMemory(const std::string& version) {
    ASSIGN_OR_RETURN(const nlohmann::json verified, fleet_->Must({"verify", "--workers"}));
    if (verified["ok"] != true) {
      return absl::DataLossError(absl::StrCat("verify --workers: ", verified.dump()));
    }
    RETURN_IF_ERROR(fleet_->AwaitCurrent(version, kRanks, kWaitMicros));
    Tell(absl::StrCat("verified from live memory: four ranks hold ", version, ", every bit"));
    return absl::OkStatus();
  }

  absl::Status KillOneRank() {
    // Started anew, it stops when it is about to write v3.
    RETURN_IF_ERROR(fleet_->StartRank("b", 1, {"--at-step", "applying:stop"}));
    RETURN_IF_ERROR(fleet_->AwaitServing("b", 1, kWaitMicros));
    RETURN_IF_ERROR(fleet_->AwaitCurrent("v2", kRanks, kWaitMicros));
    const int64_t begun = Now();
    model_.TrainStep();
    RETURN_IF_ERROR(trainer_->Write("step\n"));
    if (!fleet_->rank("b", 1).WaitStopped(kWaitMicros)) {
      return absl::InternalError("rank 1 of b did not come to apply v3");
    }
    fleet_->rank("b", 1).Signal(SIGKILL);
    Tell("rank 1 of b was killed in the middle of applying v3");
    const std::optional<std::string> line = trained_->Next(kWaitMicros);
    if (!line || line->find("\"v3\"") == std::string::npos) {
      return absl::InternalError(absl::StrCat("v3 was not committed: ", line.value_or("")));
    }
    ASSIGN_OR_RETURN(const nlohmann::json workers, fleet_->Must({"workers"}));
    for (const nlohmann::json& worker : workers) {
      const bool is_a = worker["instance"] == "a";
      if (is_a && worker["version"] != "v3") {
        return absl::InternalError(absl::StrCat("a is not at v3: ", workers.dump()));
      }
      if (!is_a && worker["state"] == "current") {
        return absl::InternalError(absl::StrCat("b still serves: ", workers.dump()));
      }
    }
    Tell(absl::StrCat("b was fenced when its lease had ended; v3 committed, a serves it, ",
                      Milliseconds(Now() - begun)));
    return absl::OkStatus();
  }

  absl::Status BringItBack() {
    const int64_t begun = Now();
    RETURN_IF_ERROR(fleet_->StartRank("b", 1));
    RETURN_IF_ERROR(fleet_->AwaitCurrent("v3", kRanks, kWaitMicros));
    Tell(absl::StrCat("rank 1 of b was started again: loaded, caught up, and b serves v3, ",
                      Milliseconds(Now() - begun)));
    return absl::OkStatus();
  }

  absl::Status PublishOnWrongParent() {
    ASSIGN_OR_RETURN(const LocalFleet::Answer answer,
                     fleet_->Run({"publish", "--from", options_.directory + "/base", "--parent",
                                  "v1", "-m", "a trainer that was away"}));
    if (answer.exit_status != 3) {
      return absl::InternalError(absl::StrCat("a publish on v1 exited with ", answer.exit_status,
                                              ": ", answer.errors, answer.document.dump()));
    }
    RETURN_IF_ERROR(fleet_->AwaitCurrent("v3", kRanks, kWaitMicros));
    Tell("a publish that was made against v1 was refused, with exit status 3:");
    const std::string message = answer.document["error"]["message"];
    Tell("    " + message.substr(0, message.find(';')));
    return absl::OkStatus();
  }

  absl::Status RollBack() {
    trainer_->Signal(SIGKILL);
    trainer_->Wait(kWaitMicros);
    Tell("the trainer was killed");
    ASSIGN_OR_RETURN(const nlohmann::json moved,
                     fleet_->Must({"rollback", "--to", "v2", "--yes", "-m", "v5 looks bad"}));
    RETURN_IF_ERROR(fleet_->AwaitCurrent("v2", kRanks, kWaitMicros));
    Tell(absl::StrCat("wstore rollback --to v2: all four ranks serve v2 again, ",
                      moved["duration_ms"].dump(), " ms; publishing is on hold"));
    return VerifyMemory("v2");
  }

  // What the store has as v2, and what the trainer had.
  absl::Status CheckTheEnd() {
    const std::string out = options_.directory + "/v2";
    RETURN_IF_ERROR(fleet_->Must({"export", "v2", "--out", out}).status());
    Model expected;
    expected.TrainStep();
    expected.TrainStep();
    RETURN_IF_ERROR(expected.Write(options_.directory + "/expected"));
    if (Bytes(out) != Bytes(options_.directory + "/expected")) {
      return absl::DataLossError("the export of v2 is not what the trainer had after two steps");
    }
    RETURN_IF_ERROR(fleet_->CheckOneVersionAtATime());
    Tell("v2 as exported is what the trainer had after two steps, bit for bit");
    Tell("at no moment did two ranks serve different versions");
    return absl::OkStatus();
  }

  // Of the tensors, without the header, which may have other metadata.
  static std::string Bytes(const std::string& checkpoint) {
    std::ifstream file(checkpoint + "/model.safetensors", std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(file), {}};
    uint64_t header = 0;
    for (int i = 7; i >= 0; --i) header = header << 8 | static_cast<uint8_t>(bytes.at(i));
    return bytes.substr(8 + header);
  }

  const StoryOptions& options_;
  const int64_t begun_;
  Model model_;
  std::unique_ptr<LocalFleet> fleet_;
  std::unique_ptr<ChildProcess> trainer_;
  std::unique_ptr<LineFollower> trained_;
};

}  // namespace

absl::Status TellStory(const StoryOptions& options) { return Story(options).Run(); }

}  // namespace wstore::demo
