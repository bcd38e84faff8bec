// Store::Materialise: versions made of the base and the patch sets in the journal.
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "store/store_impl.h"
#include "store/version/sums.h"

namespace wstore {

BaseState StoreImpl::base() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return state_.base();
}

absl::StatusOr<std::shared_ptr<const Checkpoint>> StoreImpl::OpenBase() const {
  std::shared_ptr<const Checkpoint> opened;
  {
    const std::lock_guard<std::mutex> lock(base_mutex_);
    opened = opened_base_;
  }
  if (opened != nullptr) {
    bool is_recorded = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_recorded = state_.base().files == opened->files();
    }
    if (is_recorded && opened->CheckUnchanged().ok()) return opened;
  }
  ASSIGN_OR_RETURN(opened, OpenRecordedBase(base()));
  const std::lock_guard<std::mutex> lock(base_mutex_);
  opened_base_ = opened;
  return opened;
}

std::vector<const PatchSource*> StoreImpl::PathPatches::patches() const {
  std::vector<const PatchSource*> patches;
  for (const auto& patch : owned) patches.push_back(patch.get());
  return patches;
}

absl::StatusOr<StoreImpl::PathPatches> StoreImpl::PatchesBetween(VersionId from,
                                                                 VersionId to) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  RETURN_IF_ERROR(state_.Find(from).status());
  RETURN_IF_ERROR(state_.Find(to).status());
  PathPatches path;
  for (const VersionId version : state_.Path(from, to)) {
    path.owned.push_back(std::make_unique<JournalPatch>(
        *journal_, manifest_, state_.versions().at(version).info.transaction));
  }
  return path;
}

namespace {

// A version with the base and patch sets that it refers to.
template <typename Path>
class OwningDense final : public DenseSource {
 public:
  OwningDense(const Manifest& manifest, std::shared_ptr<const Checkpoint> base, Path path)
      : base_(std::move(base)),
        path_(std::move(path)),
        dense_base_(MakeDense(manifest, *base_)),
        patched_(MakePatched(manifest, *dense_base_, path_.patches())) {}
  absl::StatusOr<std::unique_ptr<SpanTiles>> OpenSpan(uint32_t span) const override {
    return patched_->OpenSpan(span);
  }

 private:
  const std::shared_ptr<const Checkpoint> base_;
  Path path_;
  std::unique_ptr<DenseSource> dense_base_;
  std::unique_ptr<DenseSource> patched_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DenseSource>> StoreImpl::Patched(PathPatches path) const {
  ASSIGN_OR_RETURN(std::shared_ptr<const Checkpoint> base, OpenBase());
  return std::make_unique<OwningDense<PathPatches>>(manifest_, std::move(base), std::move(path));
}

absl::StatusOr<std::unique_ptr<DenseSource>> StoreImpl::Materialise(VersionId version) const {
  ASSIGN_OR_RETURN(PathPatches path, PatchesBetween(VersionId(0), version));
  return Patched(std::move(path));
}

absl::StatusOr<std::unique_ptr<DenseSource>> StoreImpl::Bits(
    VersionId version, const std::shared_ptr<const TileList>& wanted) const {
  std::unique_ptr<DenseSource> image = image_ == nullptr ? nullptr : image_->Read(version);
  if (image == nullptr && wanted == nullptr) return Materialise(version);
  if (image == nullptr) {
    ASSIGN_OR_RETURN(PathPatches path, PatchesTouching(version, wanted));
    return Patched(std::move(path));
  }
  RETURN_IF_ERROR(OpenBase().status());  // a version that only memory has is not to be built on
  return image;
}

absl::Status StoreImpl::KeepImage() {
  ImageSources sources;
  sources.materialise = [this](VersionId version) { return Materialise(version); };
  sources.difference = [this](VersionId from, VersionId to) { return Difference(from, to); };
  sources.check = [this](VersionId version, const DenseSource& bits) -> absl::Status {
    ASSIGN_OR_RETURN(const std::vector<Fingerprint> recorded, TensorFingerprints(version));
    ASSIGN_OR_RETURN(const std::vector<Fingerprint> sums,
                     SumVersion(manifest_, fingerprint_key_, bits, 1, {}));
    return sums == recorded ? absl::OkStatus() : absl::DataLossError("other sums than recorded");
  };
  try {
    image_ = std::make_unique<HeadImage>(manifest_, std::move(sources));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start a thread for the bits of head: ", error.what()));
  }
  image_->Follow(head().version);
  return absl::OkStatus();
}

}  // namespace wstore
