// wstore bench apply, on a GPU: an update whose chunks lie in its memory, from the chunks to the
// new weights.
#include "tools/bench/gpu/stage_bench.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/parallel.h"
#include "common/status_macros.h"
#include "tools/bench/gpu/workload.h"
#include "tools/bench/harness.h"
#include "tools/bench/workload.h"
#include "wstore/cuda_differ.h"
#include "wstore/cuda_replica.h"
#include "wstore/layout_builder.h"
#include "wstore/replica.h"
#include "wstore/update.h"

namespace wstore::bench {
namespace {

// Of Qwen3-30B-A3B: 4.98 billion elements in 3,144 tensors.
constexpr uint64_t kLayers = 8;
constexpr double kDensity = 0.01;
constexpr int kWarmUps = 2;
constexpr int kRepetitions = 9;
constexpr int kHostThreads = 8;

class StageBench {
 public:
  explicit StageBench(const Gpu& gpu) : gpu_(gpu), model_(Model::Qwen3Moe(kLayers)) {
    header_.transaction = TransactionNumber(5);
  }

  absl::StatusOr<std::vector<Measurement>> Run() {
    RETURN_IF_ERROR(Diff());
    RETURN_IF_ERROR(Attach());
    for (int i = -kWarmUps; i < kRepetitions; ++i) RETURN_IF_ERROR(Update(i >= 0));
    ASSIGN_OR_RETURN(const double as_bytes, StageBytes());
    ASSIGN_OR_RETURN(const auto from, gpu_.Allocate(chunk_bytes_));
    ASSIGN_OR_RETURN(const auto to, gpu_.Allocate(chunk_bytes_));
    ASSIGN_OR_RETURN(const double copy, gpu_.TimeCopy(from.get(), to.get(), chunk_bytes_));
    const std::string what = absl::StrCat(" ", chunk_bytes_ >> 20, " MiB of chunks, bf16 1%");
    const double staging = MedianOf(staging_);
    return std::vector<Measurement>{
        {"stage", absl::StrCat("staging in place,", what), staging, "s",
         "a device copy of as many bytes", copy, 0},
        {"stage", absl::StrCat("staging from host memory,", what), as_bytes, "s",
         "staging in place", staging, 0},
        {"stage", "proving and reading for the vote, the same", MedianOf(finishing_), "s",
         "staging in place", staging, 0},
        {"stage", "applying, the same", MedianOf(applying_), "s", "staging in place", staging, 0},
    };
  }

 private:
  absl::Status Diff() {
    ASSIGN_OR_RETURN(before_, gpu_.Allocate(model_.size_bytes));
    ASSIGN_OR_RETURN(after_, gpu_.Allocate(model_.size_bytes));
    RETURN_IF_ERROR(FillRandom(before_.get(), model_.size_bytes, 1, gpu_.stream()));
    RETURN_IF_ERROR(CopyAndChange(before_.get(), after_.get(), model_.size_bytes / 2, 2, kDensity,
                                  7, gpu_.stream()));
    CudaDifferOptions options{gpu_.stream(), gpu_.memory()};
    options.patch_bytes = static_cast<uint64_t>(model_.manifest.elements() * kDensity * 4.2) +
                          model_.manifest.tiles() * 512;
    ASSIGN_OR_RETURN(differ_, CudaDiffer::Create(model_.manifest, key_, options));
    RETURN_IF_ERROR(
        differ_->Start(model_.At(before_.get()), model_.At(after_.get()), header_.transaction));
    ASSIGN_OR_RETURN(diff_, differ_->Finish());
    for (const CudaChunk& chunk : diff_.chunks) {
      chunks_.push_back({chunk.data, chunk.size_bytes});
      chunk_bytes_ += chunk.size_bytes;
    }
    return absl::OkStatus();
  }

  // A replica of the side before.
  absl::Status Attach() {
    LayoutBuilder builder(model_.manifest);
    std::vector<LocalBuffer> buffers;
    for (TensorIndex i = 0; i < model_.manifest.size(); ++i) {
      builder.Place(builder.Tensor(i), builder.Buffer(model_.manifest.tensor(i).spec));
      buffers.push_back(
          {before_.get() + model_.offsets[i], model_.manifest.tensor(i).size_bytes()});
    }
    ASSIGN_OR_RETURN(Layout layout, builder.Build(1));
    ReplicaOptions options;
    ASSIGN_OR_RETURN(options.backend, MakeCudaBackend({gpu_.stream(), gpu_.memory()}));
    ASSIGN_OR_RETURN(
        replica_, Replica::Attach(model_.manifest, key_,
                                  {std::make_shared<const Layout>(std::move(layout)), nullptr, 0},
                                  buffers, std::move(options)));
    std::vector<Fingerprint> sums;
    for (const TouchedSums& tensor : diff_.sums) sums.push_back(tensor.before);
    header_.base_digest = key_.base_digest();
    header_.layout_generation = 1;
    header_.parent_move = MoveNumber(1);
    header_.move = MoveNumber(2);
    header_.from = {VersionId(0), Digest()};
    header_.to = VersionId(1);
    header_.contributors = 1;
    return replica_->ProveAlone(header_.from, header_.parent_move, sums);
  }

  // Takes it back in the end.
  absl::Status Update(bool is_measured) {
    UpdateSummary summary;
    summary.contents = {{diff_.chunks.size(), *diff_.digest}};
    RETURN_IF_ERROR(replica_->BeginUpdate(header_).status());
    ASSIGN_OR_RETURN(const double staging,
                     Seconds([&] { return replica_->StageDeviceChunks(chunks_); }));
    ASSIGN_OR_RETURN(const double finishing,
                     Seconds([&] { return replica_->FinishStaging(summary).status(); }));
    RETURN_IF_ERROR(replica_->Approve(header_.transaction));
    ASSIGN_OR_RETURN(const double applying,
                     Seconds([&] { return replica_->Apply(header_.transaction); }));
    RETURN_IF_ERROR(replica_->Abort(header_.transaction));
    if (!is_measured) return absl::OkStatus();
    staging_.push_back(staging);
    finishing_.push_back(finishing);
    applying_.push_back(applying);
    return absl::OkStatus();
  }

  // The way of chunks that come over a network.
  absl::StatusOr<double> StageBytes() {
    std::vector<std::string> bytes;
    for (const CudaChunk& chunk : diff_.chunks) {
      std::string& to = bytes.emplace_back(chunk.size_bytes, '\0');
      RETURN_IF_ERROR(differ_->ReadChunk(chunk, absl::MakeSpan(to.data(), to.size())));
    }
    std::vector<double> times;
    for (int i = 0; i < 3; ++i) {
      RETURN_IF_ERROR(replica_->BeginUpdate(header_).status());
      ASSIGN_OR_RETURN(const double seconds, Seconds([&] {
                         return ParallelFor(bytes.size(), kHostThreads, [&](uint64_t k) {
                           return replica_->StageChunk(bytes[k]);
                         });
                       }));
      times.push_back(seconds);
      RETURN_IF_ERROR(replica_->Abort(header_.transaction));
    }
    return MedianOf(times);
  }

  const Gpu& gpu_;
  const Model model_;
  const FingerprintKey key_{Sha256().Update("wstore bench").Finish()};
  UpdateHeader header_;
  cuda::DeviceBuffer<uint8_t> before_;
  cuda::DeviceBuffer<uint8_t> after_;
  std::unique_ptr<CudaDiffer> differ_;
  CudaDiff diff_;
  std::vector<DeviceChunk> chunks_;
  uint64_t chunk_bytes_ = 0;
  std::unique_ptr<Replica> replica_;
  std::vector<double> staging_;
  std::vector<double> finishing_;
  std::vector<double> applying_;
};

}  // namespace

absl::StatusOr<std::vector<Measurement>> MeasureStaging(const Gpu& gpu) {
  return StageBench(gpu).Run();
}

}  // namespace wstore::bench
