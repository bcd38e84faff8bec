// Store::Verify: digests and sums, computed again.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/parallel.h"
#include "common/status_macros.h"
#include "store/records.h"
#include "store/store_impl.h"
#include "store/version/same_tensors.h"
#include "store/version/sums.h"
#include "wstore/patch_digest.h"

namespace wstore {
namespace {

// Operating errors end a verification; corruption is a finding.
bool IsFinding(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsInvalidArgument(status);
}

// What one span of a version's patch set has.
struct SpanCheck {
  struct Tile {
    TilePlace place;
    TileForm form;
    uint32_t changed;
    Digest digest;
  };
  std::vector<Tile> tiles;
};

}  // namespace

absl::Status StoreImpl::CheckVersionPatch(const VersionState& version, VerifyReport* report) const {
  const VersionInfo& info = version.info;
  if (!info.parent.has_value()) return absl::OkStatus();
  const auto problem = [&](std::string what) {
    report->problems.push_back({info.version, "", std::move(what)});
    return absl::OkStatus();
  };
  const JournalPatch patch(*journal_, manifest_, info.transaction);
  const uint64_t window = 2 * static_cast<uint64_t>(threads_);
  std::vector<SpanCheck> waiting(window);
  PatchDigester digester(manifest_);
  uint64_t elements = 0;
  const absl::Status read = ParallelOrdered(
      manifest_.spans(), threads_, window,
      [&](uint64_t span) {
        SpanCheck& check = waiting[span % window];
        check.tiles.clear();
        return patch.ReadSpan(static_cast<uint32_t>(span), [&](const ChunkView& chunk) {
          for (const EncodedTile& tile : chunk.tiles()) {
            check.tiles.push_back({tile.place, tile.form, tile.changed, TileDigest(tile)});
          }
          return absl::OkStatus();
        });
      },
      [&](uint64_t span) {
        for (const SpanCheck::Tile& tile : waiting[span % window].tiles) {
          digester.Add(tile.place, tile.form, tile.changed, tile.digest);
          elements += tile.changed;
        }
        return absl::OkStatus();
      });
  if (!read.ok()) {
    return IsFinding(read) ? problem(std::string(read.message())) : read;
  }
  if (const Digest digest = digester.Finish();
      digest != info.patch_digest || elements != info.elements) {
    return problem(absl::StrCat("its patch set has ", elements, " elements and digest ",
                                ToHex(digest), "; recorded are ", info.elements, " and ",
                                ToHex(info.patch_digest)));
  }
  const absl::StatusOr<std::string> table = ReadTouchedTable(*journal_, info.transaction);
  if (!table.ok())
    return IsFinding(table.status()) ? problem(std::string(table.status().message()))
                                     : table.status();
  if (Sha256().Update(*table).Finish() != version.touched_digest) {
    return problem("its table of touched tensors does not have the recorded digest");
  }
  return absl::OkStatus();
}

absl::Status StoreImpl::CheckVersionSums(const VersionState& version, const ProgressFn& progress,
                                         VerifyReport* report) const {
  const VersionInfo& info = version.info;
  ASSIGN_OR_RETURN(const std::unique_ptr<DenseSource> dense, Materialise(info.version));
  const absl::StatusOr<std::vector<Fingerprint>> sums =
      SumVersion(manifest_, fingerprint_key_, *dense, threads_, progress);
  if (!sums.ok()) {
    if (!IsFinding(sums.status())) return sums.status();
    report->problems.push_back({info.version, "", std::string(sums.status().message())});
    return absl::OkStatus();
  }
  if (Total(*sums) == info.fingerprint) return absl::OkStatus();
  const absl::StatusOr<std::vector<Fingerprint>> recorded = TensorFingerprints(info.version);
  bool named = false;
  for (TensorIndex i = 0; recorded.ok() && i < manifest_.size(); ++i) {
    if ((*sums)[i] == (*recorded)[i]) continue;
    named = true;
    report->problems.push_back({info.version, manifest_.tensor(i).spec.name,
                                absl::StrCat("its bits have the fingerprint ", ToHex((*sums)[i]),
                                             "; recorded is ", ToHex((*recorded)[i]))});
  }
  if (!named) {
    report->problems.push_back(
        {info.version, "", "the model's fingerprint is not the recorded one"});
  }
  return absl::OkStatus();
}

namespace {

// Walks one span through many versions, so that the base is read and each patch set decoded once.
// Holds the dense bytes of the tiles that any version touches.
class SpanWalk {
 public:
  SpanWalk(const Manifest& manifest, const FingerprintKey& key, SpanTiles* base)
      : manifest_(manifest), key_(key), base_(*base) {}

  // Takes the patch set of one span and returns what the model's sum changes by.
  absl::StatusOr<Fingerprint> Apply(const PatchSource& patch, uint32_t span) {
    Fingerprint change;
    RETURN_IF_ERROR(patch.ReadSpan(span, [&](const ChunkView& chunk) -> absl::Status {
      for (const EncodedTile& tile : chunk.tiles()) {
        ASSIGN_OR_RETURN(std::vector<uint8_t>* const dense, Dense(tile.place));
        DecodeTile(tile, &changes_);
        change += Fingerprinter(tile.place.tensor)
                      .Touched(tile.place.tile * kTileElements, tile.element_bytes,
                               changes_.offsets, dense->data(), changes_.values.data())
                      .change();
        XorTile(tile, dense->data());
      }
      return absl::OkStatus();
    }));
    return change;
  }

 private:
  absl::StatusOr<std::vector<uint8_t>*> Dense(TilePlace place) {
    const auto [it, is_new] = dense_.try_emplace(place);
    if (is_new) {
      it->second.resize(uint64_t{manifest_.TileElements(place)} *
                        manifest_.tensor(place.tensor).element_bytes);
      RETURN_IF_ERROR(base_.ReadTile(place, it->second.data()));
    }
    return &it->second;
  }

  const TensorFingerprinter& Fingerprinter(TensorIndex tensor) {
    return fingerprinters_.try_emplace(tensor, key_, manifest_.tensor(tensor).spec.name)
        .first->second;
  }

  const Manifest& manifest_;
  const FingerprintKey& key_;
  SpanTiles& base_;
  TileChanges changes_;
  std::map<TilePlace, std::vector<uint8_t>> dense_;
  std::map<TensorIndex, TensorFingerprinter> fingerprinters_;
};

}  // namespace

absl::Status StoreImpl::CheckAllSums(const std::vector<VersionId>& versions,
                                     const ProgressFn& progress, VerifyReport* report) const {
  // From each version to the next one in order of numbers; for a chain without rollbacks a single
  // patch.
  struct Step {
    PathPatches path;
    Fingerprint recorded;
  };
  std::vector<Step> steps;
  VersionId at(0);
  for (const VersionId version : versions) {
    ASSIGN_OR_RETURN(PathPatches path, PatchesBetween(at, version));
    ASSIGN_OR_RETURN(const VersionInfo info, this->version(version));
    steps.push_back({std::move(path), info.fingerprint});
    at = version;
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<const Checkpoint> base, OpenBase());
  const std::unique_ptr<DenseSource> dense = MakeDense(manifest_, *base);
  std::vector<Fingerprint> changes(steps.size());
  std::mutex changes_mutex;
  ProgressCounter counter(progress, manifest_.spans());
  RETURN_IF_ERROR(ParallelFor(manifest_.spans(), threads_, [&](uint64_t span) -> absl::Status {
    const auto span_number = static_cast<uint32_t>(span);
    ASSIGN_OR_RETURN(const std::unique_ptr<SpanTiles> tiles, dense->OpenSpan(span_number));
    SpanWalk walk(manifest_, fingerprint_key_, tiles.get());
    std::vector<Fingerprint> in_span(steps.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      for (const PatchSource* const patch : steps[i].path.patches()) {
        ASSIGN_OR_RETURN(const Fingerprint change, walk.Apply(*patch, span_number));
        in_span[i] += change;
      }
    }
    counter.Add(1);
    const std::lock_guard<std::mutex> lock(changes_mutex);
    for (size_t i = 0; i < steps.size(); ++i) changes[i] += in_span[i];
    return absl::OkStatus();
  }));
  ASSIGN_OR_RETURN(const VersionInfo base_info, version(VersionId(0)));
  Fingerprint sum = base_info.fingerprint;
  for (size_t i = 0; i < steps.size(); ++i) {
    sum += changes[i];
    if (sum == steps[i].recorded) continue;
    report->problems.push_back({versions[i], "",
                                "its patch sets do not lead from the base's bits to "
                                "its recorded fingerprint"});
    sum = steps[i].recorded;  // one finding a fault
  }
  return absl::OkStatus();
}

absl::Status StoreImpl::CheckBaseFiles(const ProgressFn& progress, VerifyReport* report) {
  const BaseState recorded = base();
  const auto problem = [&](std::string tensor, std::string what) {
    report->problems.push_back({VersionId(0), std::move(tensor), std::move(what)});
  };
  const absl::StatusOr<std::unique_ptr<Checkpoint>> opened = Checkpoint::Open(recorded.path);
  if (!opened.ok()) {
    problem("", std::string(opened.status().message()));
    return absl::OkStatus();
  }
  const Checkpoint& checkpoint = **opened;
  if (const absl::Status same = CheckSameTensors(recorded.manifest, checkpoint.manifest());
      !same.ok()) {
    problem("", std::string(same.message()));
    return absl::OkStatus();
  }
  const absl::StatusOr<v1::BaseRecord> described = DescribeBase(checkpoint, threads_, progress);
  if (!described.ok()) {
    problem("", std::string(described.status().message()));
    return absl::OkStatus();
  }
  for (TensorIndex i = 0; i < manifest_.size(); ++i) {
    if (described->tensors(i).digest() == ToBytes(recorded.tensor_digests[i])) continue;
    problem(manifest_.tensor(i).spec.name, "its content is not the base's: the digests differ");
  }
  if (described->base_digest() != ToBytes(recorded.digest)) return absl::OkStatus();
  if (checkpoint.files() == recorded.files || read_only_) return absl::OkStatus();

  const std::lock_guard<std::mutex> write_lock(write_mutex_);
  v1::RecordBody body;
  v1::BaseFilesRecord* const files = body.mutable_base_files();
  files->set_path(checkpoint.path());
  ToProto(checkpoint.files(), files->mutable_files());
  *files->mutable_actor() = ActorProto();
  files->set_created_unix_micros(clock_.NowUnixMicros());
  return Append({std::move(body)}, nullptr);
}

absl::StatusOr<VerifyReport> StoreImpl::Verify(const VerifyOptions& options) {
  VerifyReport report;
  if (options.base) {
    RETURN_IF_ERROR(CheckBaseFiles(options.progress, &report));
    report.checked.emplace_back("base");
  }
  std::vector<VersionState> versions;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const VersionId version : options.versions) {
      ASSIGN_OR_RETURN(const VersionState* const found, state_.Find(version));
      versions.push_back(*found);
    }
    if (options.all) {
      versions.clear();
      for (const auto& [id, version] : state_.versions()) versions.push_back(version);
    } else if (versions.empty() && !options.base) {
      versions.push_back(**state_.Find(state_.head().version));
    }
  }
  std::vector<VersionId> readable;
  for (const VersionState& version : versions) {
    const size_t problems = report.problems.size();
    RETURN_IF_ERROR(CheckVersionPatch(version, &report));
    if (report.problems.size() == problems) readable.push_back(version.info.version);
    report.checked.push_back(ToString(version.info.version));
  }
  // A base that is not the recorded one is a finding, and nothing more can be summed.
  const absl::StatusOr<std::shared_ptr<const Checkpoint>> base = OpenBase();
  if (!base.ok()) {
    if (!options.base || report.ok()) {
      report.problems.push_back({VersionId(0), "", std::string(base.status().message())});
    }
    return report;
  }
  const bool whole_chain = readable.size() == versions.size() && versions.size() > 1;
  if (whole_chain) RETURN_IF_ERROR(CheckAllSums(readable, options.progress, &report));
  for (const VersionState& version : versions) {
    // With many versions the walk has summed their changes; the last one is read whole as well.
    if (whole_chain && &version != &versions.back()) continue;
    if (std::find(readable.begin(), readable.end(), version.info.version) == readable.end())
      continue;
    RETURN_IF_ERROR(CheckVersionSums(version, options.progress, &report));
  }
  return report;
}

}  // namespace wstore
