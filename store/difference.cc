// Store::Difference, and what is known of one: its digest and sums.
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "store/records.h"
#include "store/store_impl.h"
#include "store/version/publish.h"

namespace wstore {
namespace {

constexpr uint64_t kMostListedBytes = 4 << 20;

// A composed difference with the patch sets that it refers to.
template <typename Path>
class OwningPatch final : public PatchSource {
 public:
  OwningPatch(const Manifest& manifest, Path path)
      : path_(std::move(path)), composed_(MakeComposed(manifest, path_.patches())) {}
  absl::Status ReadSpan(uint32_t span,
                        const std::function<absl::Status(const ChunkView&)>& visit) const override {
    return composed_->ReadSpan(span, visit);
  }

 private:
  Path path_;
  std::unique_ptr<PatchSource> composed_;
};

// From a version to its parent what was before is after.
DifferenceInfo Recorded(const VersionInfo& version, const v1::TouchedTable& table, bool forward) {
  DifferenceInfo info{version.patch_digest, version.elements, {}};
  for (const v1::TouchedTensor& entry : table.tensors()) {
    TouchedSums sums{FromProto(entry.touched_before()), FromProto(entry.touched_after())};
    if (!forward) std::swap(sums.before, sums.after);
    info.touched.push_back({entry.tensor(), sums});
  }
  return info;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PatchSource>> StoreImpl::Difference(VersionId from,
                                                                   VersionId to) const {
  ASSIGN_OR_RETURN(PathPatches path, PatchesBetween(from, to));
  return std::make_unique<OwningPatch<PathPatches>>(manifest_, std::move(path));
}

absl::StatusOr<DifferenceInfo> StoreImpl::DescribeDifference(VersionId from, VersionId to) const {
  ASSIGN_OR_RETURN(const VersionInfo from_info, version(from));
  ASSIGN_OR_RETURN(const VersionInfo to_info, version(to));
  const bool forward = to_info.parent == from;
  if (forward || from_info.parent == to) {
    const VersionInfo& child = forward ? to_info : from_info;
    ASSIGN_OR_RETURN(const v1::TouchedTable table, ReadTouched(child.transaction));
    return Recorded(child, table, forward);
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<PatchSource> difference, Difference(from, to));
  // Of few changes no more is read than the tiles that they touch. Not far from head, where the
  // next publish is: the way to there and back is gone too.
  std::shared_ptr<const TileList> touched;
  if (PathBytes(from, to) + PathBytes(from, head().version) <= kMostListedBytes) {
    ASSIGN_OR_RETURN(TileList tiles, TilesOf(manifest_, *difference));
    touched = std::make_shared<const TileList>(std::move(tiles));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<DenseSource> parent, Bits(from, touched));
  PublishInput input;
  input.manifest = &manifest_;
  input.key = &fingerprint_key_;
  input.parent = parent.get();
  input.patches = difference.get();
  input.threads = threads_;
  ASSIGN_OR_RETURN(PublishOutcome outcome,
                   EncodePublish(input, [](const ChunkKey&, std::string_view) -> absl::Status {
                     return absl::OkStatus();
                   }));
  DifferenceInfo info{outcome.patch_digest, outcome.elements, std::move(outcome.touched)};
  Fingerprint sum = from_info.fingerprint;
  for (const TensorSums& tensor : info.touched) sum += tensor.sums.change();
  if (sum != to_info.fingerprint) {
    return absl::DataLossError(absl::StrCat(
        "the patch sets and the base's bits do not lead from ", ToString(from), " to the recorded ",
        "fingerprint of ", ToString(to), "; 'wstore verify --all --base' tells which is damaged"));
  }
  return info;
}

uint64_t StoreImpl::PathBytes(VersionId from, VersionId to) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t size_bytes = 0;
  for (const VersionId version : state_.Path(from, to)) {
    size_bytes += state_.versions().at(version).info.payload_bytes;
  }
  return size_bytes;
}

absl::StatusOr<std::vector<Fingerprint>> StoreImpl::TensorFingerprints(VersionId version) const {
  std::vector<Fingerprint> fingerprints;
  std::vector<TransactionNumber> newest_first;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    RETURN_IF_ERROR(state_.Find(version).status());
    fingerprints = state_.base().tensor_fingerprints;
    for (const VersionId id : state_.Path(VersionId(0), version)) {
      newest_first.push_back(state_.versions().at(id).info.transaction);
    }
  }
  for (auto it = newest_first.rbegin(); it != newest_first.rend(); ++it) {
    ASSIGN_OR_RETURN(const v1::TouchedTable table, ReadTouched(*it));
    for (const v1::TouchedTensor& entry : table.tensors()) {
      fingerprints[entry.tensor()] = FromProto(entry.fingerprint());
    }
  }
  return fingerprints;
}

}  // namespace wstore
