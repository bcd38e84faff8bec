#include "tools/bench/gpu/live_model.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/parallel.h"
#include "common/status_macros.h"
#include "tools/bench/gpu/workload.h"
#include "wstore/cuda_replica.h"
#include "wstore/cuda_transfer.h"
#include "wstore/layout_builder.h"

namespace wstore::bench {
namespace {

constexpr uint64_t kWindowBytes = 512 << 20;
constexpr uint64_t kStretchBytes = 16 << 20;
constexpr auto kEngineStep = std::chrono::microseconds(20);
constexpr auto kPoll = std::chrono::microseconds(200);

// The length, and the header, of a safetensors file with all tensors one behind the other.
std::string HeaderOf(const Model& model) {
  std::vector<std::string> entries;
  for (TensorIndex i = 0; i < model.manifest.size(); ++i) {
    const TensorSpec& spec = model.manifest.tensor(i).spec;
    const uint64_t begin = model.offsets[i];
    entries.push_back(absl::StrCat("\"", spec.name, "\":{\"dtype\":\"",
                                   std::string(DtypeName(spec.dtype)), "\",\"shape\":[",
                                   absl::StrJoin(spec.shape, ","), "],\"data_offsets\":[", begin,
                                   ",", begin + model.manifest.tensor(i).size_bytes(), "]}"));
  }
  std::string header = absl::StrCat("{", absl::StrJoin(entries, ","), "}");
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
  return length + header;
}

absl::Status WriteAt(int file, const uint8_t* data, uint64_t size, uint64_t offset) {
  while (size > 0) {
    const ssize_t done = pwrite(file, data, size, static_cast<off_t>(offset));
    if (done <= 0) return absl::ResourceExhaustedError("cannot write the base checkpoint");
    data += done;
    offset += static_cast<uint64_t>(done);
    size -= static_cast<uint64_t>(done);
  }
  return absl::OkStatus();
}

absl::Status WriteModel(const Gpu& gpu, const Model& model, const uint8_t* weights, int file) {
  const std::string header = HeaderOf(model);
  RETURN_IF_ERROR(WriteAt(file, reinterpret_cast<const uint8_t*>(header.data()), header.size(), 0));
  ASSIGN_OR_RETURN(const auto window, cuda::PinnedBuffer<uint8_t>::Create(kWindowBytes));
  for (uint64_t at = 0; at < model.size_bytes; at += kWindowBytes) {
    const uint64_t size = std::min(kWindowBytes, model.size_bytes - at);
    RETURN_IF_ERROR(cuda::CopyAsync(weights + at, window.get(), size, gpu.stream()));
    RETURN_IF_ERROR(cuda::Synchronize(gpu.stream()));
    const uint64_t stretches = (size + kStretchBytes - 1) / kStretchBytes;
    RETURN_IF_ERROR(ParallelFor(stretches, DefaultParallelism(), [&](uint64_t i) {
      const uint64_t begin = i * kStretchBytes;
      return WriteAt(file, window.get() + begin, std::min(kStretchBytes, size - begin),
                     header.size() + at + begin);
    }));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Make(const Gpu& gpu, const Model& model,
                                                       const std::string& path) {
  std::unique_ptr<Trainer> trainer(new Trainer(gpu, model));
  ASSIGN_OR_RETURN(trainer->weights_, gpu.Allocate(model.size_bytes));
  RETURN_IF_ERROR(FillRandom(trainer->weights_.get(), model.size_bytes, 1, gpu.stream()));
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return absl::UnavailableError(absl::StrCat("cannot make ", path));
  const absl::Status written = WriteModel(gpu, model, trainer->weights_.get(), file);
  close(file);
  RETURN_IF_ERROR(written);
  return trainer;
}

absl::Status Trainer::Connect(const Served& served, const TensorSource& base, uint64_t patch_bytes,
                              uint32_t parts) {
  CudaPublisherOptions options;
  options.parts = parts;
  options.stream = gpu_.stream();
  options.memory = gpu_.memory();
  options.patch_bytes = patch_bytes;
  ASSIGN_OR_RETURN(publisher_, CudaPublisher::Start(served.client(), served.connect(), options,
                                                    Deadline::After(300'000'000), &base));
  return absl::OkStatus();
}

absl::Status Trainer::Change(uint64_t elements, double density) {
  RETURN_IF_ERROR(
      CopyAndChange(weights_.get(), weights_.get(), elements, 2, density, ++seed_, gpu_.stream()));
  return cuda::Synchronize(gpu_.stream());
}

absl::StatusOr<Decision> Trainer::Publish(PublishDurability durability) {
  PublishOptions options;
  options.durability = durability;
  return publisher_->Publish(model_.At(weights_.get()), options, Soon());
}

absl::Status Trainer::Reset() {
  const absl::Span<const void* const> shadow = publisher_->shadow();
  for (TensorIndex i = 0; i < model_.manifest.size(); ++i) {
    RETURN_IF_ERROR(cuda::CopyAsync(static_cast<const uint8_t*>(shadow[i]),
                                    weights_.get() + model_.offsets[i],
                                    model_.manifest.tensor(i).size_bytes(), gpu_.stream()));
  }
  return cuda::Synchronize(gpu_.stream());
}

namespace {

bool HasSuffix(const std::string& name, std::initializer_list<const char*> suffixes) {
  return std::any_of(suffixes.begin(), suffixes.end(),
                     [&](const char* suffix) { return absl::EndsWith(name, suffix); });
}

// The expert that a tensor is of.
std::optional<uint32_t> ExpertOf(const std::string& name) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t at = name.find(kExperts);
  if (at == std::string::npos) return std::nullopt;
  const size_t begin = at + kExperts.size();
  uint32_t expert = 0;
  if (!absl::SimpleAtoi(name.substr(begin, name.find('.', begin) - begin), &expert)) {
    return std::nullopt;
  }
  return expert;
}

// A buffer for each tensor, or part of one, that the rank holds.
absl::StatusOr<Layout> LayoutOf(const Manifest& manifest, uint32_t rank, uint32_t ranks) {
  constexpr uint32_t kExperts = 128;
  LayoutBuilder builder(manifest);
  for (TensorIndex i = 0; i < manifest.size(); ++i) {
    const TensorSpec& spec = manifest.tensor(i).spec;
    const std::optional<uint32_t> expert = ExpertOf(spec.name);
    if (expert && *expert * ranks / kExperts != rank) continue;
    std::optional<size_t> split;
    if (HasSuffix(spec.name, {"q_proj.weight", "k_proj.weight", "v_proj.weight"})) split = 0;
    if (HasSuffix(spec.name, {"o_proj.weight"})) split = 1;
    if (!split || ranks == 1) {
      builder.Place(builder.Tensor(i), builder.Buffer(spec));
      continue;
    }
    TensorSpec part = spec;
    const uint64_t begin = spec.shape[*split] * rank / ranks;
    const uint64_t end = spec.shape[*split] * (rank + 1) / ranks;
    part.shape[*split] = end - begin;
    builder.Place(builder.Tensor(i).Slice(*split, begin, end), builder.Buffer(part));
  }
  return builder.Build(/*generation=*/1);
}

}  // namespace

absl::Status LiveInstance::StartRank(const InstancePlace& place, uint32_t number,
                                     const Model& model, const Served& served,
                                     const DenseSource& base, std::shared_ptr<InstanceGroup> group,
                                     uint64_t undo_bytes,
                                     const std::function<absl::Status(Rank&)>& fill) {
  const int device = place.first_device + static_cast<int>(number);
  RETURN_IF_ERROR(UseCudaDevice(device));
  Rank& rank = *ranks_[number];
  ASSIGN_OR_RETURN(Layout layout, LayoutOf(model.manifest, number, place.ranks));
  std::vector<uint64_t> offsets;
  uint64_t size_bytes = 0;
  for (uint32_t i = 0; i < layout.buffers().size(); ++i) {
    offsets.push_back(size_bytes);
    size_bytes += (layout.buffer_bytes(i) + 255) / 256 * 256;
  }
  rank.memory = MakeCudaPoolMemory();
  ASSIGN_OR_RETURN(rank.stream, OwnedCudaStream::Create(CudaPriority::kHigh));
  ASSIGN_OR_RETURN(rank.weights, cuda::DeviceBuffer<uint8_t>::Create(size_bytes, rank.memory.get(),
                                                                     rank.stream->get()));
  RETURN_IF_ERROR(cuda::Synchronize(rank.stream->get()));
  std::vector<LocalBuffer> buffers;
  for (uint32_t i = 0; i < layout.buffers().size(); ++i) {
    buffers.push_back({rank.weights.get() + offsets[i], layout.buffer_bytes(i)});
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<const WorkerBase> worker_base,
                   ReadWorkerBase(served.connect(), Soon()));
  WorkerOptions options;
  options.connect = served.connect();
  options.instance = "bench";
  options.group = std::move(group);
  options.base = &base;
  options.holds_base = place.ranks == 1;
  if (options.holds_base) RETURN_IF_ERROR(fill(rank));
  options.subscribes = place.subscribes;
  options.replica.undo_budget_bytes = undo_bytes;
  CudaBackendOptions backend{rank.stream->get(), rank.memory.get()};
  ASSIGN_OR_RETURN(options.replica.backend, MakeCudaBackend(backend));
  ASSIGN_OR_RETURN(options.transfer, MakeCudaTransferPort(rank.memory.get()));
  options.on_thread = [device] { UseCudaDevice(device).IgnoreError(); };
  ASSIGN_OR_RETURN(rank.worker,
                   Worker::Start(worker_base, std::make_shared<const Layout>(std::move(layout)),
                                 buffers, options, Soon()));
  rank.engine = std::thread([this, worker = rank.worker.get()] {
    while (worker->AtSafePoint() != SafePoint::kClosed) {
      std::this_thread::sleep_for(kEngineStep);
      step_.arrive_and_wait();
    }
    step_.arrive_and_drop();
  });
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<LiveInstance>> LiveInstance::Start(
    const Gpu& gpu, const InstancePlace& place, const Model& model, const Served& served,
    const DenseSource& base, const uint8_t* weights, uint64_t undo_bytes) {
  std::unique_ptr<LiveInstance> instance(new LiveInstance(place.ranks));
  const auto fill = [&](Rank& rank) {
    return WSTORE_CUDA(cudaMemcpyPeer(rank.weights.get(), place.first_device, weights, gpu.device(),
                                      model.size_bytes));
  };
  std::vector<std::shared_ptr<InstanceGroup>> groups(place.ranks);
  if (place.ranks > 1) {
    auto made = MakeThreadGroups(place.ranks);
    std::move(made.begin(), made.end(), groups.begin());
  }
  for (uint32_t i = 0; i < place.ranks; ++i) instance->ranks_.push_back(std::make_unique<Rank>());
  // They wait for each other.
  std::vector<std::future<absl::Status>> starting;
  for (uint32_t i = 0; i < place.ranks; ++i) {
    starting.push_back(std::async(std::launch::async, [&, i] {
      return instance->StartRank(place, i, model, served, base, groups[i], undo_bytes, fill);
    }));
  }
  // One that cannot start is the reason why others waited in vain.
  absl::Status started;
  for (std::future<absl::Status>& rank : starting) {
    const absl::Status status = rank.get();
    if (started.ok() || (absl::IsDeadlineExceeded(started) && !status.ok())) started = status;
  }
  RETURN_IF_ERROR(started);
  for (const auto& rank : instance->ranks_) RETURN_IF_ERROR(rank->worker->AwaitServing(Soon()));
  return instance;
}

LiveInstance::~LiveInstance() {
  // Ranks that were not started take no steps.
  for (const auto& rank : ranks_) {
    if (!rank->engine.joinable()) step_.arrive_and_drop();
  }
  for (const auto& rank : ranks_) {
    if (rank->worker != nullptr) rank->worker->Leave(Soon());
  }
  for (const auto& rank : ranks_) {
    if (rank->engine.joinable()) rank->engine.join();
  }
}

double LiveInstance::pause() const {
  int64_t longest = 0;
  for (const auto& rank : ranks_) {
    longest = std::max(longest, rank->worker->status().last_pause_micros);
  }
  return static_cast<double>(longest) / 1e6;
}

uint64_t LiveInstance::received_bytes(uint32_t rank) const {
  const WorkerStatus status = ranks_[rank]->worker->status();
  return status.carried_bytes + status.served_bytes;
}

absl::Status LiveInstance::Await(VersionId version) const {
  const auto serves = [version](const auto& rank) {
    const WorkerStatus status = rank->worker->status();
    return status.may_serve && status.version && status.version->version == version;
  };
  for (const Deadline deadline = Soon(); !deadline.has_passed();) {
    if (std::all_of(ranks_.begin(), ranks_.end(), serves)) return absl::OkStatus();
    std::this_thread::sleep_for(kPoll);
  }
  std::vector<std::string> details;
  for (const auto& rank : ranks_) details.push_back(rank->worker->status().detail);
  return absl::DeadlineExceededError(
      absl::StrCat("not all ranks serve ", ToString(version), ": ", absl::StrJoin(details, "; ")));
}

}  // namespace wstore::bench
