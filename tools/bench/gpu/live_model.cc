#include "tools/bench/gpu/live_model.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

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
  if (parts != 0) options.parts = parts;
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

absl::StatusOr<std::unique_ptr<LiveRank>> LiveRank::Start(const Gpu& gpu, int device,
                                                          const Model& model, const Served& served,
                                                          const DenseSource& base,
                                                          const uint8_t* weights,
                                                          uint64_t undo_bytes) {
  auto rank = std::make_unique<LiveRank>();
  rank->memory_ = MakeCudaPoolMemory();
  ASSIGN_OR_RETURN(rank->stream_, OwnedCudaStream::Create(CudaPriority::kHigh));
  ASSIGN_OR_RETURN(rank->weights_,
                   cuda::DeviceBuffer<uint8_t>::Create(model.size_bytes, rank->memory_.get(),
                                                       rank->stream_->get()));
  RETURN_IF_ERROR(cuda::Synchronize(rank->stream_->get()));
  RETURN_IF_ERROR(WSTORE_CUDA(
      cudaMemcpyPeer(rank->weights_.get(), device, weights, gpu.device(), model.size_bytes)));
  ASSIGN_OR_RETURN(const std::shared_ptr<const WorkerBase> worker_base,
                   ReadWorkerBase(served.connect(), Soon()));
  LayoutBuilder builder(worker_base->manifest);
  std::vector<LocalBuffer> buffers;
  for (TensorIndex i = 0; i < model.manifest.size(); ++i) {
    const Manifest::Tensor& tensor = model.manifest.tensor(i);
    builder.Place(builder.Tensor(i), builder.Buffer(tensor.spec));
    buffers.push_back({rank->weights_.get() + model.offsets[i], tensor.size_bytes()});
  }
  ASSIGN_OR_RETURN(Layout layout, builder.Build(/*generation=*/1));
  WorkerOptions options;
  options.connect = served.connect();
  options.instance = "bench";
  options.base = &base;
  options.holds_base = true;
  options.replica.undo_budget_bytes = undo_bytes;
  CudaBackendOptions backend{rank->stream_->get(), rank->memory_.get()};
  ASSIGN_OR_RETURN(options.replica.backend, MakeCudaBackend(backend));
  ASSIGN_OR_RETURN(options.transfer, MakeCudaTransferPort(rank->memory_.get()));
  options.on_thread = [device] { UseCudaDevice(device).IgnoreError(); };
  ASSIGN_OR_RETURN(rank->worker_,
                   Worker::Start(worker_base, std::make_shared<const Layout>(std::move(layout)),
                                 buffers, options, Soon()));
  rank->engine_ = std::thread([worker = rank->worker_.get()] {
    while (worker->AtSafePoint() != SafePoint::kClosed) std::this_thread::sleep_for(kEngineStep);
  });
  RETURN_IF_ERROR(rank->worker_->AwaitServing(Soon()));
  return rank;
}

LiveRank::~LiveRank() {
  if (worker_ != nullptr) worker_->Leave(Soon());
  if (engine_.joinable()) engine_.join();
}

absl::Status LiveRank::Await(VersionId version) const {
  for (const Deadline deadline = Soon(); !deadline.has_passed();) {
    const WorkerStatus status = worker_->status();
    if (status.may_serve && status.version && status.version->version == version) {
      return absl::OkStatus();
    }
    std::this_thread::sleep_for(kPoll);
  }
  return absl::DeadlineExceededError(
      absl::StrCat("the rank does not serve ", ToString(version), ": ", worker_->status().detail));
}

}  // namespace wstore::bench
