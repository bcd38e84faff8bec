// wstore bench apply: a staged update into weights on a GPU and back, beside a plain scatter.
#include <algorithm>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/parallel.h"
#include "common/status_macros.h"
#include "tools/bench/bench.h"
#include "tools/bench/gpu/floor.h"
#include "tools/bench/gpu/gpu.h"
#include "tools/bench/gpu/stage_bench.h"
#include "tools/bench/gpu/workload.h"
#include "tools/bench/harness.h"
#include "tools/bench/workload.h"
#include "transfer/replica/backend.h"
#include "wstore/cuda_differ.h"
#include "wstore/cuda_replica.h"
#include "wstore/layout_builder.h"

namespace wstore::bench {
namespace {

constexpr uint64_t kElements = uint64_t{2} << 30;
constexpr int kRepetitions = 15;

FingerprintKey Key() { return FingerprintKey(Sha256().Update("wstore bench").Finish()); }

// One tensor, whole, as one buffer.
absl::StatusOr<std::shared_ptr<const Plan>> MakePlan(const Model& model,
                                                     const FingerprintKey& key) {
  LayoutBuilder builder(model.manifest);
  for (TensorIndex i = 0; i < model.manifest.size(); ++i) {
    builder.Place(builder.Tensor(i), builder.Buffer(model.manifest.tensor(i).spec));
  }
  ASSIGN_OR_RETURN(Layout layout, builder.Build(1));
  return Plan::Create(model.manifest, key,
                      {std::make_shared<const Layout>(std::move(layout)), nullptr, 0});
}

// The difference of the two sides, as chunks on the host.
absl::StatusOr<std::vector<std::string>> MakeChunks(const Gpu& gpu, const Model& model,
                                                    const void* before, const void* after,
                                                    double density) {
  CudaDifferOptions options{gpu.stream(), gpu.memory()};
  options.patch_bytes =
      static_cast<uint64_t>(kElements * density * 4.2) + model.manifest.tiles() * 512;
  options.with_digest = false;
  ASSIGN_OR_RETURN(const std::unique_ptr<CudaDiffer> differ,
                   CudaDiffer::Create(model.manifest, Key(), options));
  RETURN_IF_ERROR(differ->Start(model.At(before), model.At(after), TransactionNumber(1)));
  ASSIGN_OR_RETURN(const CudaDiff diff, differ->Finish());
  std::vector<std::string> chunks;
  for (const CudaChunk& chunk : diff.chunks) {
    std::string& bytes = chunks.emplace_back(chunk.size_bytes, '\0');
    RETURN_IF_ERROR(differ->ReadChunk(chunk, absl::MakeSpan(bytes.data(), bytes.size())));
  }
  return chunks;
}

absl::StatusOr<StagedPatch> Stage(const std::vector<std::string>& chunks, const Plan& plan,
                                  MemoryBackend& backend) {
  std::vector<std::unique_ptr<StagedPiece>> pieces(chunks.size());
  RETURN_IF_ERROR(ParallelFor(chunks.size(), DefaultParallelism(), [&](uint64_t i) -> absl::Status {
    ASSIGN_OR_RETURN(const ChunkView chunk, ChunkView::Parse(chunks[i], plan.manifest()));
    PieceBuilder builder(plan, /*allow_dense=*/true);
    for (const EncodedTile& tile : chunk.tiles()) builder.AddTile(tile);
    pieces[i] = builder.Finish();
    return backend.AcceptPiece(pieces[i].get());
  }));
  StagedPatch patch;
  for (auto& piece : pieces) patch.Add(std::move(piece));
  return patch;
}

class ApplyBench {
 public:
  ApplyBench(const Options& options, const Gpu& gpu)
      : options_(options), gpu_(gpu), model_(Model::Equal(kElements, Dtype::kBF16, 1)) {}

  absl::Status Prepare() {
    ASSIGN_OR_RETURN(weights_, gpu_.Allocate(model_.size_bytes));
    ASSIGN_OR_RETURN(other_, gpu_.Allocate(model_.size_bytes));
    return FillRandom(weights_.get(), model_.size_bytes, 1, gpu_.stream());
  }

  absl::Status Run(double density) {
    options_.report(absl::StrCat("apply: bf16 ", DensityName(density)));
    const FingerprintKey key = Key();
    RETURN_IF_ERROR(
        CopyAndChange(weights_.get(), other_.get(), kElements, 2, density, 7, gpu_.stream()));
    ASSIGN_OR_RETURN(const std::vector<std::string> chunks,
                     MakeChunks(gpu_, model_, weights_.get(), other_.get(), density));
    ASSIGN_OR_RETURN(const double scatter, TimeScatter(gpu_, density, kElements,
                                                       reinterpret_cast<uint16_t*>(other_.get())));
    for (const bool is_checked : {true, false}) {
      CudaBackendOptions options{gpu_.stream(), gpu_.memory()};
      options.verify_writes = is_checked;
      ASSIGN_OR_RETURN(const std::shared_ptr<MemoryBackend> backend, MakeCudaBackend(options));
      ASSIGN_OR_RETURN(const std::shared_ptr<const Plan> plan, MakePlan(model_, key));
      const LocalBuffer buffer{weights_.get(), model_.size_bytes};
      RETURN_IF_ERROR(backend->Bind(plan, {&buffer, 1}));
      ASSIGN_OR_RETURN(StagedPatch patch, Stage(chunks, *plan, *backend));
      RETURN_IF_ERROR(Measure(*backend, &patch, density, is_checked, scatter));
    }
    return absl::OkStatus();
  }

  std::vector<Measurement> Take() { return std::move(results_); }

 private:
  // Forward and back in turn: each exchange is checked against what the read found.
  absl::Status Measure(MemoryBackend& backend, StagedPatch* patch, double density, bool is_checked,
                       double scatter) {
    MemoryGate gate;
    const MemoryPass pass(&gate);
    uint64_t groups = 0;
    for (const Unit& unit : patch->units) groups += unit.group_count;
    std::vector<TouchedSums> group_sums(groups);
    double read = 0;
    ASSIGN_OR_RETURN(read, Seconds([&] {
                       return backend.Read(pass, absl::MakeSpan(patch->units),
                                           absl::MakeSpan(group_sums));
                     }));
    RETURN_IF_ERROR(backend.Prepare(patch->units));
    std::vector<UnitOutcome> outcomes(patch->units.size());
    std::vector<double> times[2];
    for (int i = 0; i < 2 * kRepetitions; ++i) {
      ASSIGN_OR_RETURN(const double seconds, Seconds([&] {
                         return backend.Exchange(patch->units, absl::MakeSpan(outcomes));
                       }));
      times[i % 2].push_back(seconds);
      for (size_t k = 0; k < outcomes.size(); ++k) {
        const TouchedSums& expected = patch->units[k].expected;
        const TouchedSums wanted =
            i % 2 == 0 ? expected : TouchedSums{expected.after, expected.before};
        if (outcomes[k].found == wanted) continue;
        return absl::DataLossError("an exchange found other bits than the read");
      }
    }
    for (std::vector<double>& each : times) {
      std::nth_element(each.begin(), each.begin() + kRepetitions / 2, each.end());
    }
    const double apply = times[0][kRepetitions / 2];
    const double back = times[1][kRepetitions / 2];
    const std::string name = absl::StrCat(is_checked ? "apply, re-read" : "apply, not re-read",
                                          ", bf16 ", DensityName(density));
    const std::string rival = "a plain scatter by ready flat indices";
    results_.push_back({"apply", name, apply, "s", rival, scatter, 0});
    if (!is_checked) return absl::OkStatus();
    results_.push_back({"apply", absl::StrCat("going back, bf16 ", DensityName(density)), back, "s",
                        "the apply", apply, 0});
    results_.push_back({"apply", absl::StrCat("reading for the vote, bf16 ", DensityName(density)),
                        read, "s", rival, scatter, 0});
    return absl::OkStatus();
  }

  const Options& options_;
  const Gpu& gpu_;
  const Model model_;
  cuda::DeviceBuffer<uint8_t> weights_;
  cuda::DeviceBuffer<uint8_t> other_;
  std::vector<Measurement> results_;
};

}  // namespace

absl::StatusOr<std::vector<Measurement>> RunGpuApply(const Options& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Gpu> gpu, Gpu::Open(options.device));
  std::vector<Measurement> results;
  {
    ApplyBench bench(options, *gpu);
    RETURN_IF_ERROR(bench.Prepare());
    for (const double density : {0.001, 0.01, 0.075}) RETURN_IF_ERROR(bench.Run(density));
    results = bench.Take();
  }
  options.report("apply: chunks in device memory");
  ASSIGN_OR_RETURN(std::vector<Measurement> staging, MeasureStaging(*gpu));
  std::move(staging.begin(), staging.end(), std::back_inserter(results));
  return results;
}

}  // namespace wstore::bench
