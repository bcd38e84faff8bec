// wstore bench apply: an update written into live weights, beside a plain scatter of the same
// values.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/parallel.h"
#include "common/status_macros.h"
#include "tools/bench/bench.h"
#include "tools/bench/harness.h"
#include "tools/bench/plan_bench.h"
#include "tools/bench/workload.h"
#include "transfer/replica/worker_pool.h"
#include "wstore/chunk.h"
#include "wstore/layout_builder.h"
#include "wstore/patch_digest.h"
#include "wstore/replica.h"

namespace wstore::bench {
namespace {

// Short ones more often.
int Repetitions(double density) { return density < 0.05 ? 21 : 7; }
constexpr uint64_t kCacheBytes = 64 << 20;
constexpr uint64_t kAllowanceBytes = 64 << 20;
const VersionName kOld{VersionId(0), {}};
const VersionName kNew{VersionId(1), {}};

struct ApplyCase {
  uint64_t tensors = 1;
  uint64_t tensor_elements = 0;
  double density = 0;

  uint64_t elements() const { return tensors * tensor_elements; }
};

struct ApplyTimes {
  double apply = 0;
  double back = 0;  // the apply of the way back
  double scatter = 0;
  double stage = 0;  // all chunks
  double prove = 0;  // from the last chunk to the vote
  double commit = 0;
  uint64_t changed = 0;
  double extra_bytes = 0;  // that the process grew by
  double staged_bytes = 0;
};

double ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t total = 0;
  uint64_t resident = 0;
  statm >> total >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

// A bf16 model in one buffer, a replica of it, and one update of it.
class ApplyRun {
 public:
  static absl::StatusOr<std::unique_ptr<ApplyRun>> Create(const ApplyCase& of);
  ~ApplyRun() { munmap(weights_, size_bytes()); }

  absl::StatusOr<ApplyTimes> Measure();

 private:
  ApplyRun(const ApplyCase& of, Manifest manifest)
      : case_(of),
        manifest_(std::move(manifest)),
        key_(Sha256().Update("base").Finish()),
        pool_(DefaultParallelism()),
        cache_(kCacheBytes) {}
  uint64_t size_bytes() const { return 2 * case_.elements(); }

  absl::Status Attach();
  void MakeUpdate();
  // Takes the weights out of the processor's caches.
  void Flush() {
    for (size_t i = 0; i < cache_.size(); i += 64) ++cache_[i];
  }
  absl::StatusOr<double> Scatter(const std::vector<uint16_t>& values);
  UpdateHeader NextHeader(bool forward);
  absl::StatusOr<double> ApplyNext(bool forward, ApplyTimes* also);

  const ApplyCase case_;
  const Manifest manifest_;
  const FingerprintKey key_;
  WorkerPool pool_;  // of the rival
  std::vector<uint8_t> cache_;
  uint16_t* weights_ = nullptr;
  std::unique_ptr<Replica> replica_;
  uint64_t move_ = 1;
  uint64_t staged_bytes_ = 0;

  std::vector<std::string> chunks_;
  ContributorContent content_;
  // The same update as flat local indices and new values, and what it overwrites.
  std::vector<int64_t> indices_;
  std::vector<uint16_t> old_values_;
  std::vector<uint16_t> new_values_;
};

absl::StatusOr<std::unique_ptr<ApplyRun>> ApplyRun::Create(const ApplyCase& of) {
  std::vector<TensorSpec> specs;
  for (uint64_t i = 0; i < of.tensors; ++i) {
    specs.push_back({absl::StrCat("t", 1000000 + i), Dtype::kBF16, {of.tensor_elements}});
  }
  ASSIGN_OR_RETURN(Manifest manifest, Manifest::Create(std::move(specs)));
  std::unique_ptr<ApplyRun> run(new ApplyRun(of, std::move(manifest)));
  void* const memory =
      mmap(nullptr, run->size_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory: ", run->size_bytes(), " bytes"));
  }
  run->weights_ = static_cast<uint16_t*>(memory);
  std::mt19937_64 random(1);
  for (uint64_t i = 0; i < of.elements(); ++i) {
    run->weights_[i] = static_cast<uint16_t>(i * 0x9e3779b97f4a7c15 >> 48);
  }
  run->MakeUpdate();
  RETURN_IF_ERROR(run->Attach());
  return run;
}

absl::Status ApplyRun::Attach() {
  LayoutBuilder builder(manifest_);
  const StridedView all = builder.Buffer({"weights", Dtype::kBF16, {case_.elements()}});
  const uint64_t each = case_.tensor_elements;
  for (TensorIndex i = 0; i < manifest_.size(); ++i) {
    builder.Place(builder.Tensor(i), all.Slice(0, i * each, (i + 1) * each));
  }
  ASSIGN_OR_RETURN(Layout layout, builder.Build(1));
  ReplicaPlacement placement;
  placement.layout = std::make_shared<const Layout>(std::move(layout));
  ReplicaOptions options;
  options.undo_budget_bytes = uint64_t{4} << 30;
  const LocalBuffer buffer{weights_, size_bytes()};
  ASSIGN_OR_RETURN(replica_, Replica::Attach(manifest_, key_, std::move(placement), {&buffer, 1},
                                             std::move(options)));
  ASSIGN_OR_RETURN(const AuditReport audit, replica_->Audit());
  return replica_->Adopt(audit, kOld, MoveNumber(move_));
}

void ApplyRun::MakeUpdate() {
  std::mt19937_64 random(2);
  std::geometric_distribution<uint64_t> gap(case_.density);
  ChunkBuilder builder(manifest_);
  PatchDigester digester(manifest_);
  ChunkKey key;
  const auto close = [&] {
    if (builder.empty()) return;
    chunks_.push_back(builder.Finish({TransactionNumber(1), key}));
    ++key.part;
    ++content_.chunks;
    const auto view = ChunkView::Parse(chunks_.back(), manifest_);
    for (const EncodedTile& tile : view->tiles()) {
      digester.Add(tile.place, tile.form, tile.changed, TileDigest(tile));
    }
  };
  std::vector<uint16_t> offsets;
  std::vector<uint16_t> values;
  uint64_t next = gap(random);
  uint64_t begin = 0;  // of the tile, in the buffer
  for (uint64_t i = 0; i < manifest_.tiles(); ++i) {
    const TilePlace place = manifest_.PlaceOf(i);
    const uint64_t end = begin + manifest_.TileElements(place);
    if (i / kSpanTiles != key.span) {
      close();
      key = {0, static_cast<uint32_t>(i / kSpanTiles), 0};
    }
    offsets.clear();
    values.clear();
    for (; next < end; next += 1 + gap(random)) {
      offsets.push_back(static_cast<uint16_t>(next - begin));
      values.push_back(static_cast<uint16_t>(1 + random() % 3));
      indices_.push_back(static_cast<int64_t>(next));
      old_values_.push_back(weights_[next]);
      new_values_.push_back(static_cast<uint16_t>(weights_[next] ^ values.back()));
    }
    begin = end;
    if (offsets.empty()) continue;
    builder.AddTile(place, offsets, reinterpret_cast<const uint8_t*>(values.data()));
    if (builder.size_bytes() >= kChunkTargetBytes) close();
  }
  close();
  content_.digest = digester.Finish();
}

absl::StatusOr<double> ApplyRun::Scatter(const std::vector<uint16_t>& values) {
  Flush();
  const uint64_t parts = pool_.workers();
  return Seconds([&] {
    pool_.Run(parts, [&](int, uint64_t part) {
      const size_t end = indices_.size() * (part + 1) / parts;
      for (size_t i = indices_.size() * part / parts; i < end; ++i) {
        weights_[indices_[i]] = values[i];
      }
    });
    return absl::OkStatus();
  });
}

UpdateHeader ApplyRun::NextHeader(bool forward) {
  UpdateHeader header;
  header.transaction = TransactionNumber(forward ? 1 : 2);
  header.parent_move = MoveNumber(move_);
  header.move = MoveNumber(++move_);
  header.from = forward ? kOld : kNew;
  header.to = forward ? kNew.version : kOld.version;
  header.base_digest = key_.base_digest();
  header.layout_generation = 1;
  header.reason = forward ? ChangeReason::kPublish : ChangeReason::kRollback;
  return header;
}

absl::StatusOr<double> ApplyRun::ApplyNext(bool forward, ApplyTimes* also) {
  const UpdateHeader header = NextHeader(forward);
  RETURN_IF_ERROR(replica_->BeginUpdate(header).status());
  UpdateSummary summary;
  if (forward) {
    ASSIGN_OR_RETURN(also->stage, Seconds([&] {
                       for (const std::string& chunk : chunks_) {
                         RETURN_IF_ERROR(replica_->StageChunk(chunk));
                       }
                       return absl::OkStatus();
                     }));
    summary.contents = {content_};
  } else {
    RETURN_IF_ERROR(replica_->StageFromHistory(header.transaction));
  }
  ASSIGN_OR_RETURN(also->prove, Seconds([&]() -> absl::Status {
                     ASSIGN_OR_RETURN(const StagedReport report, replica_->FinishStaging(summary));
                     staged_bytes_ = report.size_bytes;
                     return absl::OkStatus();
                   }));
  RETURN_IF_ERROR(replica_->Approve(header.transaction));
  Flush();
  ASSIGN_OR_RETURN(const double apply,
                   Seconds([&] { return replica_->Apply(header.transaction); }));
  ASSIGN_OR_RETURN(also->commit, Seconds([&] { return replica_->Commit(header.transaction); }));
  return apply;
}

absl::StatusOr<ApplyTimes> ApplyRun::Measure() {
  std::vector<double> apply, back, scatter, stage, prove, commit;
  const double resident = ResidentBytes();
  ApplyTimes times;
  for (int i = 0; i < Repetitions(case_.density); ++i) {
    ApplyTimes also;
    ASSIGN_OR_RETURN(scatter.emplace_back(), Scatter(new_values_));
    RETURN_IF_ERROR(Scatter(old_values_).status());
    ASSIGN_OR_RETURN(apply.emplace_back(), ApplyNext(/*forward=*/true, &also));
    stage.push_back(also.stage);
    prove.push_back(also.prove);
    times.extra_bytes = std::max(times.extra_bytes, ResidentBytes() - resident);
    for (size_t at = 0; at < indices_.size(); ++at) {
      if (weights_[indices_[at]] != new_values_[at]) {
        return absl::DataLossError(absl::StrCat("element ", indices_[at], " was not applied"));
      }
    }
    // This commit is the dear one: it drops the update out of the history.
    ASSIGN_OR_RETURN(back.emplace_back(), ApplyNext(/*forward=*/false, &also));
    commit.push_back(also.commit);
  }
  const auto median = [](std::vector<double>& of) {
    std::nth_element(of.begin(), of.begin() + of.size() / 2, of.end());
    return of[of.size() / 2];
  };
  times.apply = median(apply);
  times.back = median(back);
  times.scatter = median(scatter);
  times.stage = median(stage);
  times.prove = median(prove);
  times.commit = median(commit);
  times.changed = indices_.size();
  times.staged_bytes = static_cast<double>(staged_bytes_);
  return times;
}

absl::StatusOr<ApplyTimes> MeasureApply(const ApplyCase& of) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ApplyRun> run, ApplyRun::Create(of));
  return run->Measure();
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> RunApply(const Options& options) {
  if (!options.device.empty() && options.device != "cpu") return RunGpuApply(options);
  const std::string rival =
      absl::StrCat("scatter by ready int64 indices, ", DefaultParallelism(), " threads");
  std::vector<Measurement> results;
  std::vector<double> densities = {0.001, 0.01, 0.075};
  if (options.full) densities = {0.0002, 0.001, 0.01, 0.075, 0.2, 0.4};
  for (const double density : densities) {
    const std::string name = absl::StrCat("bf16 ", DensityName(density));
    options.report(absl::StrCat("apply: ", name));
    const uint64_t elements = uint64_t{128} << (options.full ? 21 : 20);
    ASSIGN_OR_RETURN(const ApplyTimes times, MeasureApply({1, elements, density}));
    const double bytes = 2.0 * static_cast<double>(times.changed);
    results.push_back({"apply", name, times.apply, "s", rival, times.scatter, bytes});
    results.push_back({"apply", absl::StrCat("going back, ", name), times.back, "s", "applying it",
                       times.apply, bytes});
    results.push_back({"apply", absl::StrCat("proving, ", name), times.prove, "s",
                       "staging all chunks", times.stage, bytes});
    results.push_back({"apply", absl::StrCat("commit, ", name), times.commit, "s", "applying it",
                       times.apply, 0});
    results.push_back({"apply", absl::StrCat("memory, ", name), times.extra_bytes, "bytes",
                       "the staged update and 64 MiB", times.staged_bytes + kAllowanceBytes, 0});
  }
  constexpr uint64_t kTensors = 50000;
  for (const auto& [each, density] : {std::pair<uint64_t, double>{1024, 0.01}, {64, 0.999}}) {
    const std::string name =
        absl::StrCat(kTensors, " tensors of ", each, ", bf16 ", DensityName(density));
    options.report(absl::StrCat("apply: ", name));
    ASSIGN_OR_RETURN(const ApplyTimes tiny, MeasureApply({kTensors, each, density}));
    ASSIGN_OR_RETURN(const ApplyTimes one, MeasureApply({1, kTensors * each, density}));
    results.push_back({"apply", name, tiny.apply, "s", "one tensor of as many elements", one.apply,
                       2.0 * static_cast<double>(tiny.changed)});
  }
  options.report("apply: plan");
  ASSIGN_OR_RETURN(const std::vector<Measurement> plan, MeasurePlan());
  results.insert(results.end(), plan.begin(), plan.end());
  return results;
}

}  // namespace wstore::bench
