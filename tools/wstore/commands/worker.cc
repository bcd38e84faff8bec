// wstore worker: a rank that holds live weights and follows a server, with an engine that computes
// nothing.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "common/strings.h"
#include "store/checkpoint/checkpoint.h"
#include "tools/wstore/command.h"
#include "tools/wstore/device/device.h"
#include "tools/wstore/format.h"
#include "tools/wstore/parse.h"
#include "wstore/layout_file.h"
#include "wstore/placement_rules.h"
#include "wstore/worker.h"

namespace wstore::cli {
namespace {

constexpr char kMeetingParent[] = "/dev/shm";
constexpr int64_t kLeastWaitMicros = 5'000'000;
constexpr int64_t kGroupWaitMicros = 60'000'000;
constexpr int64_t kLeaveMicros = 15'000'000;
constexpr int64_t kLookMicros = 50'000;
constexpr uint64_t kUndoBytes = uint64_t{1} << 30;

// One of `size` in a kind of parallelism.
struct Share {
  uint32_t rank = 0;
  uint32_t size = 1;
};

absl::Status ParseShare(const std::string& text, const char* flag, Share* share) {
  if (text.empty()) return absl::OkStatus();
  const std::vector<std::string> parts = absl::StrSplit(text, '/');
  if (parts.size() == 2 && absl::SimpleAtoi(parts[0], &share->rank) &&
      absl::SimpleAtoi(parts[1], &share->size) && share->rank < share->size) {
    return absl::OkStatus();
  }
  return UsageError(absl::StrCat(flag, ": '", text, "' is no R/N with R from 0 to N - 1"));
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return std::string{std::istreambuf_iterator<char>(file), {}};
}

// A rank, and what it says: a line for each thing that happens, on stdout.
class Narrator {
 public:
  explicit Narrator(const Session& session)
      : is_json_(session.options().json), is_quiet_(session.options().quiet) {}

  void Say(const std::string& event, Json fields, const std::string& text) {
    if (is_quiet_ && !is_json_) return;
    const std::string time = FormatRfc3339(SystemClock().NowUnixMicros());
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_json_) {
      Json document = {{"event", event}, {"time", time}};
      document.update(fields);
      std::cout << document.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
    } else {
      std::cout << time << " " << Printable(text) << std::endl;
    }
  }

 private:
  const bool is_json_;
  const bool is_quiet_;
  std::mutex mutex_;
};

Json VersionJson(const std::optional<VersionName>& version) {
  return version ? Json(ToString(version->version)) : Json(nullptr);
}

class WorkerCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& program) override {
    CLI::App* const verb = program.add_subcommand(
        "worker", "Hold live weights as one rank of an engine and follow a server, until SIGTERM");
    verb->group(kOtherGroup);
    verb->add_option("--layout", layout_,
                     "A layout file, or a checkpoint whose config.json says where weights go")
        ->type_name(kCheckpointType)
        ->required();
    verb->add_option("--base", base_,
                     "The store's base, to load from. Default: the checkpoint of --layout, or the "
                     "server")
        ->type_name(kCheckpointType);
    verb->add_option("--device", device_, "cpu, or cuda:N")->capture_default_str();
    verb->add_option("--tp", tp_, "Rank R of N in tensor parallelism")->type_name("R/N");
    verb->add_option("--pp", pp_, "Rank R of N in pipeline parallelism")->type_name("R/N");
    verb->add_option("--dp", dp_, "Rank R of N in data parallelism")->type_name("R/N");
    verb->add_flag("--ep", ep_, "Experts are spread, whole, over the ranks of --tp and --dp");
    verb->add_option("--instance", instance_, "Its name. Default: the host's")->type_name("NAME");
    verb->add_option("--meet", meet_,
                     "Where the ranks of one instance meet. Default: a directory of this user, "
                     "server and instance in /dev/shm")
        ->type_name(kDirectoryType);
    verb->add_option("--step", step_, "How long a step of the engine takes")
        ->capture_default_str()
        ->type_name("T");
    verb->add_option("--audit-interval", audit_interval_,
                     "How often all of the weights are compared beside serving; 0: when asked")
        ->capture_default_str()
        ->type_name("T");
    verb->add_flag("--subscribe", subscribe_,
                   "Have the server send only tensors that this rank holds");
    verb->add_option("--on-lost-lease", on_lost_lease_,
                     "stop, or serve on: such a worker cannot be fenced")
        ->capture_default_str()
        ->check(CLI::IsMember({"stop", "serve"}));
    // For tests of faults. STEP:stop stops the process there, STEP:kill ends it, of the first
    // update after it has begun to serve.
    verb->add_option("--at-step", at_step_)->group("");
    verb->footer(
        Examples({"wstore worker --server unix:/srv/m/wstore.sock --layout /models/qwen3-8b",
                  "wstore worker --store /srv/m --layout /models/qwen3-30b --tp 0/2 --ep"}));
    return verb;
  }

  absl::StatusOr<ExitCode> Run(Session& session) override {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    signal(SIGPIPE, SIG_IGN);

    Narrator narrator(session);
    WorkerOptions options;
    ASSIGN_OR_RETURN(const RankSpec place, Fill(session, narrator, &options));
    const Deadline deadline =
        Deadline::After(std::max<int64_t>(session.options().timeout_ms * 1000, kLeastWaitMicros));
    ASSIGN_OR_RETURN(const std::shared_ptr<const WorkerBase> base,
                     ReadWorkerBase(options.connect, deadline));
    ASSIGN_OR_RETURN(const std::shared_ptr<const Layout> layout,
                     MakeRankLayout(place, base->manifest));
    ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, OpenDevice(device_));
    std::vector<LocalBuffer> buffers;
    for (uint32_t i = 0; i < layout->buffers().size(); ++i) {
      const uint64_t size_bytes = layout->buffer_bytes(i);
      ASSIGN_OR_RETURN(void* const memory, device->Allocate(std::max<uint64_t>(size_bytes, 1)));
      buffers.push_back({memory, size_bytes});
    }
    ASSIGN_OR_RETURN(options.replica.backend, device->MakeBackend());
    ASSIGN_OR_RETURN(options.transfer, device->MakeTransferPort());
    options.on_thread = [&device] { device->UseInThread(); };
    std::unique_ptr<Checkpoint> files;
    std::unique_ptr<DenseSource> dense;
    RETURN_IF_ERROR(OpenBase(session, *base, &files, &dense));
    options.base = dense.get();
    ASSIGN_OR_RETURN(
        const std::unique_ptr<Worker> worker,
        Worker::Start(base, layout, buffers, std::move(options),
                      Deadline::After(std::max(deadline.left_micros(), kGroupWaitMicros))));
    narrator.Say("started", {{"worker", name_}, {"pid", getpid()}},
                 absl::StrCat("worker ", name_, ", process ", getpid()));
    RunEngine(*worker, narrator, signals);
    worker->Leave(Deadline::After(kLeaveMicros));
    narrator.Say("left", {{"worker", name_}}, "left");
    return ExitCode::kDone;
  }

 private:
  // Where this rank stands among those of its instance. Data parallel ranks that share no experts
  // are instances of their own.
  absl::StatusOr<RankSpec> Fill(const Session& session, Narrator& narrator,
                                WorkerOptions* options) {
    Share tp;
    Share pp;
    Share dp;
    RETURN_IF_ERROR(ParseShare(tp_, "--tp", &tp));
    RETURN_IF_ERROR(ParseShare(pp_, "--pp", &pp));
    RETURN_IF_ERROR(ParseShare(dp_, "--dp", &dp));
    RankSpec place;
    place.tp_rank = tp.rank;
    place.tp_size = tp.size;
    place.pp_rank = pp.rank;
    place.pp_size = pp.size;
    place.dp_rank = dp.rank;
    place.dp_size = dp.size;
    place.expert_parallel = ep_;
    options->instance = instance_.empty() ? HostName() : instance_;
    uint32_t rank = pp.rank * tp.size + tp.rank;
    uint32_t ranks = pp.size * tp.size;
    if (ep_) {
      rank += dp.rank * ranks;
      ranks *= dp.size;
    } else if (dp.size > 1) {
      absl::StrAppend(&options->instance, "-dp", dp.rank);
    }
    name_ = absl::StrCat(options->instance, "/", rank);
    ASSIGN_OR_RETURN(options->connect, session.ServerOptions());
    if (ranks > 1) {
      if (meet_.empty()) SweepHostGroups(kMeetingParent, MeetingPrefix());
      const std::string meet = meet_.empty() ? MeetingPlace(*options) : meet_;
      ASSIGN_OR_RETURN(options->group, OpenHostGroup(meet, rank, ranks));
    }
    ASSIGN_OR_RETURN(const int64_t step_ms, ParseDurationMs(step_));
    step_micros_ = step_ms * 1000;
    ASSIGN_OR_RETURN(const int64_t audit_ms, ParseDurationMs(audit_interval_));
    options->audit_interval_micros = audit_ms * 1000;
    options->subscribes = subscribe_;
    options->serves_on_lost_lease = on_lost_lease_ == "serve";
    options->replica.undo_budget_bytes = kUndoBytes;
    options->replica.on_change = [&narrator](const ChangeEvent& event) {
      narrator.Say("change",
                   {{"from", ToString(event.from.version)},
                    {"to", ToString(event.to.version)},
                    {"why", std::string(ChangeReasonName(event.reason))},
                    {"move", event.move.value()},
                    {"elements", event.elements}},
                   absl::StrCat(ToString(event.from.version), " -> ", ToString(event.to.version),
                                ": ", ToAbsl(ChangeReasonName(event.reason)), ", ",
                                FormatCountOf(event.elements, "element")));
    };
    options->log = [&narrator](const std::string& line) {
      narrator.Say("log", {{"line", line}}, line);
    };
    RETURN_IF_ERROR(SetFault(options));
    return place;
  }

  absl::Status SetFault(WorkerOptions* options) {
    if (at_step_.empty()) return absl::OkStatus();
    const std::vector<std::string> parts = absl::StrSplit(at_step_, ':');
    if (parts.size() != 2 || (parts[1] != "stop" && parts[1] != "kill")) {
      return UsageError("--at-step: give STEP:stop or STEP:kill");
    }
    options->on_step = [this, step = parts[0],
                        number = parts[1] == "stop" ? SIGSTOP : SIGKILL](std::string_view reached) {
      if (reached != step) return;
      // The first hello comes before it serves.
      if (step == "hello" ? !has_said_hello_.exchange(true) : has_served_.exchange(false)) {
        kill(getpid(), number);
      }
    };
    return absl::OkStatus();
  }

  static std::string HostName() {
    char name[256] = {};
    if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "worker";
    return std::string(name).substr(0, 128);
  }

  static std::string MeetingPlace(const WorkerOptions& options) {
    const Digest digest = Sha256()
                              .Update(options.connect.address)
                              .Update(std::string_view("\n"))
                              .Update(options.instance)
                              .Finish();
    return absl::StrCat(kMeetingParent, "/", MeetingPrefix(), ToHex(digest).substr(0, 16));
  }
  static std::string MeetingPrefix() { return absl::StrCat("wstore-", getuid(), "-"); }

  absl::StatusOr<std::shared_ptr<const Layout>> MakeRankLayout(const RankSpec& place,
                                                               const Manifest& manifest) const {
    const bool is_checkpoint = std::filesystem::is_directory(layout_);
    ASSIGN_OR_RETURN(const std::string text,
                     ReadText(is_checkpoint ? layout_ + "/config.json" : layout_));
    constexpr uint64_t kGeneration = 1;
    absl::StatusOr<Layout> layout = is_checkpoint ? MakeLayout(text, manifest, place, kGeneration)
                                                  : ReadLayout(text, manifest, kGeneration);
    RETURN_IF_ERROR(Prefixed(layout.status(), layout_));
    return std::make_shared<const Layout>(*std::move(layout));
  }

  // Files whose tensors are the base's; whether their bits are, an audit tells. Others are not
  // used.
  absl::Status OpenBase(const Session& session, const WorkerBase& base,
                        std::unique_ptr<Checkpoint>* files,
                        std::unique_ptr<DenseSource>* dense) const {
    const bool is_asked_for = !base_.empty();
    if (!is_asked_for && !std::filesystem::is_directory(layout_)) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<Checkpoint>> opened =
        Checkpoint::Open(is_asked_for ? base_ : layout_);
    if (!opened.ok() && !is_asked_for) return absl::OkStatus();  // config.json alone
    RETURN_IF_ERROR(opened.status());
    const Manifest& manifest = (*opened)->manifest();
    bool is_same = manifest.size() == base.manifest.size();
    for (TensorIndex i = 0; is_same && i < manifest.size(); ++i) {
      is_same = manifest.tensor(i).spec == base.manifest.tensor(i).spec;
    }
    if (!is_same) {
      const std::string what = absl::StrCat((*opened)->path(), " has other tensors than the base");
      if (is_asked_for) return absl::FailedPreconditionError(what);
      session.Remark(absl::StrCat(what, "; the weights come from the server"));
      return absl::OkStatus();
    }
    *files = *std::move(opened);
    *dense = MakeDense(base.manifest, **files);
    return absl::OkStatus();
  }

  // Steps that take their time and compute nothing, until a signal.
  void RunEngine(Worker& worker, Narrator& narrator, const sigset_t& signals) {
    bool served = false;
    std::optional<VersionName> shown;
    std::string detail;
    int64_t released_micros = 0;  // when output of `shown` was released last
    for (;;) {
      const SafePoint at = worker.AtSafePoint(Deadline::After(kLookMicros));
      const WorkerStatus status = worker.status();
      if (status.may_serve && (!served || shown != status.version)) {
        const double pause_ms = static_cast<double>(status.last_pause_micros) / 1000;
        narrator.Say(
            "serving",
            {{"version", VersionJson(status.version)},
             {"move", status.move.value()},
             {"pause_ms", pause_ms},
             {"at_micros", SystemClock().NowMonotonicMicros()},
             {"released_micros", released_micros}},
            absl::StrCat("serving ", ToString(*status.version), ", move ", status.move.value(),
                         ", after a pause of ", FormatDuration(status.last_pause_micros)));
        if (!shown) has_served_ = true;
        shown = status.version;
      } else if (!status.may_serve && served && at != SafePoint::kRun) {
        narrator.Say("paused",
                     {{"standing", status.standing},
                      {"detail", status.detail},
                      {"released_micros", released_micros}},
                     absl::StrCat("not serving: ", status.standing, " ", status.detail));
      } else if (!status.may_serve && status.detail != detail) {
        narrator.Say("waiting", {{"standing", status.standing}, {"detail", status.detail}},
                     absl::StrCat("waiting: ", status.detail));
      }
      served = status.may_serve;
      detail = status.detail;
      if (at == SafePoint::kClosed) return;
      // Ranks of an engine make their steps together. These do not, so that one that has fallen
      // behind hurries to the step where the others wait.
      const int64_t micros = at == SafePoint::kRun && status.may_serve ? step_micros_ : 0;
      const timespec step = {micros / 1'000'000, micros % 1'000'000 * 1000};
      if (sigtimedwait(&signals, nullptr, &step) > 0) return;
      // Here an engine would release what the step made.
      if (at == SafePoint::kRun && worker.MayServe()) {
        released_micros = SystemClock().NowMonotonicMicros();
      }
    }
  }

  std::string layout_;
  std::string base_;
  std::string device_ = "cpu";
  std::string tp_;
  std::string pp_;
  std::string dp_;
  bool ep_ = false;
  bool subscribe_ = false;
  std::string instance_;
  std::string meet_;
  std::string step_ = "10ms";
  std::string audit_interval_ = "0";
  std::string on_lost_lease_ = "stop";
  std::string at_step_;
  std::string name_;
  int64_t step_micros_ = 0;
  std::atomic<bool> has_served_ = false;
  std::atomic<bool> has_said_hello_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeWorkerCommand() { return std::make_unique<WorkerCommand>(); }

}  // namespace wstore::cli
