// wstore bench diff and audit: what reading both sides, or one, costs on a GPU, beside a copy.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tools/bench/bench.h"
#include "tools/bench/gpu/gpu.h"
#include "tools/bench/gpu/workload.h"
#include "tools/bench/workload.h"
#include "wstore/cuda_differ.h"

namespace wstore::bench {
namespace {

constexpr uint64_t kSideBytes = uint64_t{4} << 30;
// Of the 48 layers: 6,930 tensors and 21 GB a side.
constexpr uint64_t kLayers = 18;
// Of measurements that take turns.
constexpr int kRounds = 5;

struct DiffCase {
  std::string name;
  double density;
  bool with_digest = false;
};

// Memory of both sides, taken once.
struct Sides {
  cuda::DeviceBuffer<uint8_t> before;
  cuda::DeviceBuffer<uint8_t> after;
};

FingerprintKey Key() { return FingerprintKey(Sha256().Update("wstore bench").Finish()); }

absl::Status CheckSums(const Gpu& gpu, const Model& model, const Sides& sides,
                       const CudaDiff& diff) {
  ASSIGN_OR_RETURN(const std::unique_ptr<CudaAuditor> auditor,
                   CudaAuditor::Create(model.manifest, Key(), gpu.stream(), gpu.memory()));
  const bool both = diff.sums[0].before != Fingerprint();
  for (const bool is_after : {false, true}) {
    if (!is_after && !both) continue;
    RETURN_IF_ERROR(auditor->Start(model.At(is_after ? sides.after.get() : sides.before.get())));
    ASSIGN_OR_RETURN(const std::vector<Fingerprint> sums, auditor->Finish());
    for (size_t i = 0; i < sums.size(); ++i) {
      if (sums[i] == (is_after ? diff.sums[i].after : diff.sums[i].before)) continue;
      return absl::DataLossError("the diff's sums are not the audit's");
    }
  }
  return absl::OkStatus();
}

// The time of a pass over prepared sides; checks what it found.
absl::StatusOr<double> TimeDiff(const Gpu& gpu, const Model& model, const Sides& sides,
                                double density, bool with_digest, CudaDiff* found,
                                bool with_touched_sums = false) {
  const uint64_t elements = model.manifest.elements();
  CudaDifferOptions options{gpu.stream(), gpu.memory()};
  // A value and at most two bytes of position for each change, and each tile rounded up.
  options.patch_bytes = static_cast<uint64_t>(static_cast<double>(elements) * density * 1.02 *
                                              (model.manifest.tensor(0).element_bytes + 2)) +
                        model.manifest.tiles() * 512;
  options.patch_bytes =
      std::min(options.patch_bytes, model.manifest.size_bytes() + 16 * model.manifest.tiles());
  options.with_digest = with_digest;
  options.with_touched_sums = with_touched_sums;
  ASSIGN_OR_RETURN(const std::unique_ptr<CudaDiffer> differ,
                   CudaDiffer::Create(model.manifest, Key(), options));
  const std::vector<const void*> before = model.At(sides.before.get());
  const std::vector<const void*> after = model.At(sides.after.get());
  ASSIGN_OR_RETURN(const double seconds,
                   gpu.Time([&] { return differ->Start(before, after, TransactionNumber(1)); }));
  ASSIGN_OR_RETURN(*found, differ->Finish());
  RETURN_IF_ERROR(CheckSums(gpu, model, sides, *found));
  return seconds;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

uint64_t ChunkBytes(const CudaDiff& diff) {
  uint64_t bytes = 0;
  for (const CudaChunk& chunk : diff.chunks) bytes += chunk.size_bytes;
  return bytes;
}

class DiffBench {
 public:
  DiffBench(const Options& options, const Gpu& gpu) : options_(options), gpu_(gpu) {}

  absl::Status Run(const Model& model, const std::string& name, double density,
                   bool with_touched_sums = false) {
    options_.report(absl::StrCat("diff: ", name));
    RETURN_IF_ERROR(Prepare(model, density));
    CudaDiff found;
    ASSIGN_OR_RETURN(const double seconds,
                     TimeDiff(gpu_, model, sides_, density, false, &found, with_touched_sums));
    ASSIGN_OR_RETURN(const double copy,
                     gpu_.TimeCopy(sides_.before.get(), sides_.after.get(), model.size_bytes));
    Add("diff", name, seconds, "a device copy that reads and writes as many bytes", copy,
        2 * static_cast<double>(model.size_bytes));
    return absl::OkStatus();
  }

  // From two differs in turn, with and without: weights so small, and so densely changed, that the
  // rest of the pass takes no longer than the digests.
  absl::Status RunDigest(const Model& model, double density) {
    options_.report("diff: the digest");
    RETURN_IF_ERROR(Prepare(model, density));
    CudaDiff found;
    std::vector<double> differences;
    for (int i = 0; i < kRounds; ++i) {
      ASSIGN_OR_RETURN(const double without, TimeDiff(gpu_, model, sides_, density, false, &found));
      ASSIGN_OR_RETURN(const double with, TimeDiff(gpu_, model, sides_, density, true, &found));
      differences.push_back(with - without);
    }
    const auto bytes = static_cast<double>(ChunkBytes(found));
    Add("digest", absl::StrCat("tree digests of ", ChunkBytes(found) >> 20, " MiB of chunks"),
        Median(differences), "500 GB/s", bytes / 500e9, bytes);
    return absl::OkStatus();
  }

  // Many tensors, beside one of the same size: in turn, since a GPU under load grows slower.
  absl::Status RunMany(const Model& many, double density) {
    options_.report("diff: many tensors");
    const Model one = Model::Equal(many.manifest.elements(), Dtype::kBF16, 1);
    std::vector<double> of_one;
    std::vector<double> of_many;
    RETURN_IF_ERROR(Prepare(many, density));
    CudaDiff found;
    for (int i = 0; i < kRounds; ++i) {
      ASSIGN_OR_RETURN(const double single, TimeDiff(gpu_, one, sides_, density, false, &found));
      ASSIGN_OR_RETURN(const double each, TimeDiff(gpu_, many, sides_, density, false, &found));
      of_one.push_back(single);
      of_many.push_back(each);
    }
    Add("diff",
        absl::StrCat(many.manifest.size(), " tensors of Qwen3-30B-A3B, bf16 ",
                     DensityName(density)),
        Median(of_many), "the same in one tensor", Median(of_one),
        2 * static_cast<double>(many.size_bytes));
    return absl::OkStatus();
  }

  std::vector<Measurement> Take() { return std::move(results_); }

 private:
  absl::Status Prepare(const Model& model, double density) {
    if (sides_.before.size_bytes() < model.size_bytes) {
      sides_ = Sides();
      ASSIGN_OR_RETURN(sides_.before, gpu_.Allocate(model.size_bytes));
      ASSIGN_OR_RETURN(sides_.after, gpu_.Allocate(model.size_bytes));
    }
    const uint32_t width = model.manifest.tensor(0).element_bytes;
    RETURN_IF_ERROR(FillRandom(sides_.before.get(), model.size_bytes, ++seed_, gpu_.stream()));
    return CopyAndChange(sides_.before.get(), sides_.after.get(), model.size_bytes / width, width,
                         density, ++seed_, gpu_.stream());
  }

  void Add(std::string bench, std::string name, double seconds, std::string rival,
           double rival_seconds, double bytes) {
    results_.push_back(
        {std::move(bench), std::move(name), seconds, "s", std::move(rival), rival_seconds, bytes});
  }

  const Options& options_;
  const Gpu& gpu_;
  Sides sides_;
  uint64_t seed_ = 0;
  std::vector<Measurement> results_;
};

}  // namespace

absl::StatusOr<std::vector<Measurement>> RunGpuDiff(const Options& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Gpu> gpu, Gpu::Open(options.device));
  DiffBench bench(options, *gpu);
  const Model bf16 = Model::Equal(kSideBytes / 2, Dtype::kBF16, 1);
  for (const double density : {0.0002, 0.001, 0.01, 0.075, 0.2}) {
    RETURN_IF_ERROR(bench.Run(bf16, absl::StrCat("bf16 ", DensityName(density)), density));
  }
  RETURN_IF_ERROR(bench.Run(bf16, "changes summed too, bf16 1%", 0.01, true));
  RETURN_IF_ERROR(bench.Run(Model::Equal(kSideBytes, Dtype::kU8, 1), "u8 1%", 0.01));
  RETURN_IF_ERROR(bench.Run(Model::Equal(kSideBytes / 4, Dtype::kF32, 1), "f32 1%", 0.01));
  RETURN_IF_ERROR(bench.Run(Model::Equal(kSideBytes / 4, Dtype::kF32, 1), "f32 20%", 0.2));
  RETURN_IF_ERROR(bench.RunDigest(Model::Equal(kSideBytes / 16, Dtype::kBF16, 1), 0.2));
  RETURN_IF_ERROR(bench.RunMany(Model::Qwen3Moe(options.full ? 46 : kLayers), 0.01));
  return bench.Take();
}

absl::StatusOr<std::vector<Measurement>> RunGpuAudit(const Options& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Gpu> gpu, Gpu::Open(options.device));
  options.report("audit");
  std::vector<Measurement> results;
  const Model one = Model::Equal(kSideBytes, Dtype::kBF16, 1);
  ASSIGN_OR_RETURN(const cuda::DeviceBuffer<uint8_t> weights, gpu->Allocate(one.size_bytes));
  RETURN_IF_ERROR(FillRandom(weights.get(), one.size_bytes, 1, gpu->stream()));
  // Half of it is read, and as much is written.
  ASSIGN_OR_RETURN(
      const double copy,
      gpu->TimeCopy(weights.get(), weights.get() + one.size_bytes / 2, one.size_bytes / 2));
  for (const Model& model : {one, Model::Qwen3Moe(6)}) {
    ASSIGN_OR_RETURN(const std::unique_ptr<CudaAuditor> auditor,
                     CudaAuditor::Create(model.manifest, Key(), gpu->stream(), gpu->memory()));
    const std::vector<const void*> addresses = model.At(weights.get());
    ASSIGN_OR_RETURN(const double seconds, gpu->Time([&] { return auditor->Start(addresses); }));
    RETURN_IF_ERROR(auditor->Finish().status());
    const double share = static_cast<double>(model.size_bytes) / one.size_bytes;
    results.push_back({"audit",
                       model.manifest.size() == 1
                           ? std::string("bf16, one tensor")
                           : absl::StrCat("bf16, ", model.manifest.size(), " tensors"),
                       seconds, "s", "a device copy that reads and writes as many bytes",
                       copy * share, static_cast<double>(model.size_bytes)});
  }
  return results;
}

}  // namespace wstore::bench
