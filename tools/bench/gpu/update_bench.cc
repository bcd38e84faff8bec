// wstore bench update: whole updates, from a trainer's weights on a GPU into a rank that serves,
// through a server's transaction; beside the method that goes tensor by tensor.
#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "store/checkpoint/checkpoint.h"
#include "tools/bench/bench.h"
#include "tools/bench/gpu/broadcast_bench.h"
#include "tools/bench/gpu/floor.h"
#include "tools/bench/gpu/gpu.h"
#include "tools/bench/gpu/live_model.h"
#include "tools/bench/gpu/workload.h"
#include "tools/bench/harness.h"
#include "tools/bench/workload.h"
#include "wstore/store.h"

namespace wstore::bench {
namespace {

constexpr uint64_t kLayers = 8;
constexpr uint64_t kAllLayers = 48;
constexpr int kRounds = 7;
constexpr int kHistory = 2;  // versions of the densest kind that a rank can go back by
constexpr uint64_t kTinyElements = 4096;
constexpr char kPeer[] = "tools/bench/gpu/peer_update.py";
constexpr uint64_t kScatterElements = uint64_t{1} << 29;  // a scatter into more is as fast
constexpr double kMostDense = 0.075;
constexpr double kBytesPerChange = 3.2;  // of bf16, encoded, where 1% changes

// Seconds by the name of a part, of a program that prints one JSON object with numbers.
double NumberOf(const std::string& json, const std::string& name) {
  const size_t at = json.find(absl::StrCat("\"", name, "\": "));
  double value = 0;
  if (at == std::string::npos) return 0;
  const size_t begin = json.find(':', at) + 1;
  const std::string text = json.substr(begin, json.find_first_of(",}", begin) - begin);
  return absl::SimpleAtod(text, &value) ? value : 0;
}

class UpdateBench {
 public:
  UpdateBench(const Options& options, const Gpu& gpu, int device, uint64_t layers)
      : options_(options),
        gpu_(gpu),
        trainer_device_(device),
        worker_device_(options.colocated ? device : device + 1),
        layers_(layers),
        case_(absl::StrCat(layers, " layers, ",
                           options.ranks > 1 ? absl::StrCat(options.ranks, " ranks, ") : "",
                           options.subscribes ? "subscribing, " : "")),
        model_(Model::Qwen3Moe(layers)) {}

  absl::Status Prepare() {
    options_.report(absl::StrCat("update: a store of ", layers_, " layers, ",
                                 model_.size_bytes / 1'000'000, " MB"));
    ASSIGN_OR_RETURN(Scratch scratch, Scratch::Create(options_.directory));
    scratch_.emplace(std::move(scratch));
    const std::string base = *scratch_ / "model.safetensors";
    ASSIGN_OR_RETURN(trainer_, Trainer::Make(gpu_, model_, base));
    RETURN_IF_ERROR(Store::Create(*scratch_ / "store", base, {}).status());
    ASSIGN_OR_RETURN(checkpoint_, Checkpoint::Open(base));
    dense_ = MakeDense(checkpoint_->manifest(), *checkpoint_);
    ASSIGN_OR_RETURN(served_, Served::Start(options_, *scratch_, "store"));
    const uint64_t patch_bytes = PatchBytes(layers_ == kLayers ? kMostDense : 0.01);
    ASSIGN_OR_RETURN(
        instance_,
        LiveInstance::Start(gpu_, {worker_device_, options_.ranks, options_.subscribes}, model_,
                            *served_, *dense_, trainer_->weights(), kHistory * patch_bytes));
    RETURN_IF_ERROR(trainer_->Connect(*served_, *checkpoint_, patch_bytes, options_.parts));
    return trainer_->publisher().lead()->AwaitRanks(options_.ranks, Soon());
  }

  // A pause that is not about the size of the update.
  absl::Status MeasureEmpty() {
    std::vector<double> pauses;
    for (int i = 0; i < kRounds; ++i) {
      RETURN_IF_ERROR(trainer_->Change(kTinyElements, 0.5));
      ASSIGN_OR_RETURN(const Round round, Publish(PublishDurability::kAsync));
      pauses.push_back(round.pause);
    }
    empty_pause_ = MedianOf(pauses);
    options_.report(absl::StrFormat("update: pause of a tiny set %.2f ms", empty_pause_ * 1e3));
    return absl::OkStatus();
  }

  // Until the rank's history is full: from then on an update takes the memory that the oldest one
  // gives back, as it does in a fleet that has run for a while.
  absl::Status Warm(double density) {
    for (int i = 0; i < kHistory + 2; ++i) {
      RETURN_IF_ERROR(trainer_->Change(model_.manifest.elements(), density));
      RETURN_IF_ERROR(Publish(PublishDurability::kAsync).status());
    }
    return absl::OkStatus();
  }

  absl::Status Measure(double density, PublishDurability durability) {
    const bool is_async = durability == PublishDurability::kAsync;
    const std::string name =
        absl::StrCat(case_, is_async ? "async" : "sync", " ", DensityName(density));
    std::vector<double> received(options_.ranks);  // in the latest update
    std::vector<double> all;
    std::vector<double> pauses;
    std::vector<double> durable;
    std::array<std::vector<double>, 6> parts;
    for (int i = -1; i < kRounds; ++i) {
      RETURN_IF_ERROR(trainer_->Change(model_.manifest.elements(), density));
      for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
        received[rank] = static_cast<double>(instance_->received_bytes(rank));
      }
      ASSIGN_OR_RETURN(const Round round, Publish(durability));
      if (i < 0) continue;
      all.push_back(round.all);
      pauses.push_back(round.pause);
      durable.push_back(round.durable);
      const CudaPublishTimes& times = round.times;
      const std::array<int64_t, 6> micros = {times.begin, times.first,  times.diff,
                                             times.send,  times.digest, times.commit};
      for (size_t part = 0; part < parts.size(); ++part) {
        parts[part].push_back(static_cast<double>(micros[part]) / 1e3);
      }
    }
    options_.report(absl::StrFormat(
        "update: %s: %.2f ms (diff %.2f, in it begun after %.2f and the first part after %.2f; "
        "send "
        "%.2f, digest %.2f, commit %.2f; best %.2f), durable after %.0f ms, pause %.2f ms",
        name, MedianOf(all) * 1e3, MedianOf(parts[2]), MedianOf(parts[0]), MedianOf(parts[1]),
        MedianOf(parts[3]), MedianOf(parts[4]), MedianOf(parts[5]),
        *std::min_element(all.begin(), all.end()) * 1e3, MedianOf(durable) * 1e3,
        MedianOf(pauses) * 1e3));
    for (uint32_t rank = 0; options_.ranks > 1 && rank < options_.ranks; ++rank) {
      options_.report(absl::StrFormat(
          "update: %s: rank %d received %.1f MB", name, rank,
          (static_cast<double>(instance_->received_bytes(rank)) - received[rank]) / 1e6));
    }
    if (options_.has_peer) {
      ASSIGN_OR_RETURN(const std::string peer, Peer(density));
      Add(name, MedianOf(all), "tensor by tensor", NumberOf(peer, "update"));
    } else if (layers_ == kAllLayers && options_.ranks == 1) {
      Add(name, MedianOf(all), "65 ms", 0.065);
    } else {
      Add(name, MedianOf(all), "", 0);
    }
    if (!is_async) return absl::OkStatus();
    times_.emplace_back(density, MedianOf(all));
    pause_ = MedianOf(pauses);
    const double scale = static_cast<double>(kAllLayers) / static_cast<double>(layers_);
    Add(absl::StrCat(case_, "pause as of 48 layers, ", DensityName(density)),
        (pause_ - empty_pause_) * scale + empty_pause_, "30 ms", 0.030);
    return absl::OkStatus();
  }

  // Back to the version before, out of the rank's own history; the trainer follows.
  absl::Status MeasureRollback(double density) {
    std::vector<double> pauses;
    for (int i = 0; i < kRounds; ++i) {
      const VersionId before = trainer_->publisher().parent().version;
      RETURN_IF_ERROR(trainer_->Change(model_.manifest.elements(), density));
      RETURN_IF_ERROR(Publish(PublishDurability::kAsync).status());
      MoveOptions options;
      options.version = ToString(before);
      RETURN_IF_ERROR(served_->client()->Rollback(options, Soon()).status());
      RETURN_IF_ERROR(instance_->Await(before));
      pauses.push_back(instance_->pause());
      RETURN_IF_ERROR(served_->client()->SetHold(false, "", Soon()).status());
      RETURN_IF_ERROR(trainer_->publisher().Rebase(Soon()).status());
      RETURN_IF_ERROR(trainer_->Reset());
      RETURN_IF_ERROR(CheckRanks());
    }
    Add(absl::StrCat(case_, "pause of going back, ", DensityName(density)), MedianOf(pauses),
        "pause of the publish", pause_);
    return absl::OkStatus();
  }

  // What goes from GPU to GPU, beside NCCL alone; and the density from which on a broadcast of all
  // weights, without checks and without a way back, takes less time than an update.
  absl::Status MeasureBroadcasts(double density) {
    const auto elements = static_cast<double>(model_.manifest.elements());
    const auto bytes = static_cast<uint64_t>(elements * density * kBytesPerChange);
    ASSIGN_OR_RETURN(const BroadcastTimes times,
                     MeasureBroadcast(trainer_device_, worker_device_, bytes, model_.size_bytes));
    Add(absl::StrCat(case_, "broadcast of ", bytes >> 20, " MiB"), times.frames, "ncclBroadcast",
        times.bare);
    options_.report(absl::StrFormat(
        "update: a broadcast of %d MiB takes %.2f ms in frames and %.2f bare; of all weights %.1f",
        bytes >> 20, times.frames * 1e3, times.bare * 1e3, times.dense * 1e3));
    RETURN_IF_ERROR(CompareWithFloor(density, times.bare));
    std::sort(times_.begin(), times_.end());
    for (size_t i = 1; i < times_.size(); ++i) {
      const auto [low, fast] = times_[i - 1];
      const auto [high, slow] = times_[i];
      if (fast > times.dense || slow <= times.dense) continue;
      const double at = low + (high - low) * (times.dense - fast) / (slow - fast);
      options_.report(absl::StrFormat(
          "update: as much time as a broadcast of all weights at %.1f%% changed", at * 100));
    }
    return absl::OkStatus();
  }

  // An update beside one and a half times what it cannot do without: reading both sides, a
  // broadcast of the chunks, and a plain scatter.
  absl::Status CompareWithFloor(double density, double broadcast) {
    ASSIGN_OR_RETURN(const double read, TimeRead(gpu_, trainer_->weights(), model_.size_bytes));
    ASSIGN_OR_RETURN(const auto region, gpu_.Allocate(2 * kScatterElements));
    ASSIGN_OR_RETURN(const double part, TimeScatter(gpu_, density, kScatterElements,
                                                    reinterpret_cast<uint16_t*>(region.get())));
    const double scatter = part * static_cast<double>(model_.manifest.elements()) /
                           static_cast<double>(kScatterElements);
    const double floor = 2 * read + broadcast + scatter;
    options_.report(absl::StrFormat(
        "update: reading both sides takes %.2f ms, a bare broadcast %.2f, a plain scatter %.2f",
        2 * read * 1e3, broadcast * 1e3, scatter * 1e3));
    const auto update = std::find_if(times_.begin(), times_.end(),
                                     [&](const auto& time) { return time.first == density; });
    if (update == times_.end()) return absl::OkStatus();
    Add(absl::StrCat(case_, "async ", DensityName(density), ", beside its floor"), update->second,
        "1.5 times reading, a bare broadcast and a plain scatter", 1.5 * floor);
    return absl::OkStatus();
  }

  // The ranks hold what the trainer has, by sums of every tensor: of one rank they are compared
  // with those of the trainer's weights; of several, the server compares them with the version's.
  absl::Status CheckRanks() const {
    if (options_.ranks > 1) {
      ASSIGN_OR_RETURN(const std::vector<WorkerCheck> checks,
                       served_->client()->VerifyWorkers(Soon()));
      const bool is_right = checks.size() == options_.ranks &&
                            std::all_of(checks.begin(), checks.end(),
                                        [](const WorkerCheck& check) { return !check.fault; });
      return is_right ? absl::OkStatus()
                      : absl::DataLossError("not all ranks hold what the trainer published");
    }
    const FingerprintKey key(trainer_->publisher().parent().base_digest);
    std::vector<std::vector<Fingerprint>> sums;
    for (const bool of_rank : {false, true}) {
      RETURN_IF_ERROR(UseCudaDevice(of_rank ? worker_device_ : trainer_device_));
      const auto sum = [&]() -> absl::StatusOr<std::vector<Fingerprint>> {
        const std::unique_ptr<CudaMemory> memory = MakeCudaPoolMemory();
        ASSIGN_OR_RETURN(const OwnedCudaStream stream, OwnedCudaStream::Create());
        ASSIGN_OR_RETURN(const std::unique_ptr<CudaAuditor> auditor,
                         CudaAuditor::Create(model_.manifest, key, stream.get(), memory.get()));
        RETURN_IF_ERROR(
            auditor->Start(model_.At(of_rank ? instance_->weights() : trainer_->weights())));
        return auditor->Finish();
      };
      absl::StatusOr<std::vector<Fingerprint>> found = sum();
      RETURN_IF_ERROR(UseCudaDevice(trainer_device_));
      RETURN_IF_ERROR(found.status());
      sums.push_back(*std::move(found));
    }
    if (sums[0] == sums[1]) return absl::OkStatus();
    return absl::DataLossError("the rank does not hold what the trainer published");
  }

  std::vector<Measurement> Take() { return std::move(results_); }

 private:
  struct Round {
    double all = 0;
    double pause = 0;
    double durable = 0;
    CudaPublishTimes times;
  };

  uint64_t PatchBytes(double density) const {
    const auto elements = static_cast<double>(model_.manifest.elements());
    return static_cast<uint64_t>(elements * density * 4.2) + model_.manifest.tiles() * 512;
  }

  absl::StatusOr<Round> Publish(PublishDurability durability) {
    Round round;
    Decision decision;
    const auto publish = [&]() -> absl::Status {
      ASSIGN_OR_RETURN(decision, trainer_->Publish(durability));
      return absl::OkStatus();
    };
    ASSIGN_OR_RETURN(round.all, Seconds(publish));
    round.times = trainer_->publisher().times();
    RETURN_IF_ERROR(round.times.sent);
    RETURN_IF_ERROR(instance_->Await(decision.version));
    round.pause = instance_->pause();
    ASSIGN_OR_RETURN(const double rest,
                     Seconds([&] { return trainer_->publisher().AwaitDurable(Soon()); }));
    round.durable = round.all + rest;
    return round;
  }

  absl::StatusOr<std::string> Peer(double density) {
    return ReadProgram({"python3", kPeer, options_.colocated ? "colocated" : "two",
                        absl::StrCat(layers_), absl::StrCat(density)});
  }

  void Add(std::string name, double value, std::string rival, double rival_value) {
    results_.push_back({"update", std::move(name), value, "s", std::move(rival), rival_value, 0});
  }

  const Options options_;
  const Gpu& gpu_;
  const int trainer_device_;
  const int worker_device_;
  const uint64_t layers_;
  const std::string case_;  // what names of cases begin with
  const Model model_;
  std::optional<Scratch> scratch_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<DenseSource> dense_;
  std::unique_ptr<Served> served_;
  std::unique_ptr<LiveInstance> instance_;
  std::unique_ptr<Trainer> trainer_;
  double empty_pause_ = 0;
  double pause_ = 0;                              // of the publish that was measured last
  std::vector<std::pair<double, double>> times_;  // of async updates, by density
  std::vector<Measurement> results_;
};

}  // namespace

absl::StatusOr<std::vector<Measurement>> RunGpuUpdate(const Options& given) {
  Options options = given;
  ASSIGN_OR_RETURN(const std::unique_ptr<Gpu> gpu, Gpu::Open(options.device));
  int device = 0;
  RETURN_IF_ERROR(WSTORE_CUDA(cudaGetDevice(&device)));
  int devices = 0;
  RETURN_IF_ERROR(WSTORE_CUDA(cudaGetDeviceCount(&devices)));
  const int first_rank = options.colocated ? device : device + 1;
  if (first_rank + static_cast<int>(options.ranks) > devices) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ranks on cuda:", first_rank, " to cuda:", first_rank + static_cast<int>(options.ranks) - 1,
        " were asked for; there are ", devices, " GPUs here"));
  }
  const bool has_all = options.full && !options.colocated;
  // It has one rank, and would need a third and a fourth copy of all 48 layers.
  const bool wants_peer = options.ranks == 1 && !has_all;
  options.has_peer = wants_peer && std::filesystem::exists(kPeer) && HasProgram("python3") &&
                     RunProgram({"python3", "-c", "import torch"}).ok();
  if (wants_peer && !options.has_peer) {
    options.report(absl::StrCat("update: no rival: it is ", kPeer, ", and needs PyTorch"));
  }
  UpdateBench bench(options, *gpu, device, has_all ? kAllLayers : kLayers);
  RETURN_IF_ERROR(bench.Prepare());
  RETURN_IF_ERROR(bench.Warm(has_all ? 0.01 : kMostDense));
  RETURN_IF_ERROR(bench.MeasureEmpty());
  for (const double density : {0.001, 0.01, kMostDense}) {
    if (has_all && density != 0.01) continue;
    RETURN_IF_ERROR(bench.Measure(density, PublishDurability::kAsync));
    RETURN_IF_ERROR(bench.CheckRanks());
  }
  if (!has_all) {
    RETURN_IF_ERROR(bench.Measure(0.01, PublishDurability::kSync));
    RETURN_IF_ERROR(bench.Measure(0.01, PublishDurability::kAsync));
    RETURN_IF_ERROR(bench.MeasureRollback(0.01));
  }
  if (!options.colocated) RETURN_IF_ERROR(bench.MeasureBroadcasts(0.01));
  return bench.Take();
}

}  // namespace wstore::bench
