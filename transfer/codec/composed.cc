#include "transfer/codec/composed.h"

#include "common/status_macros.h"
#include "transfer/codec/pool.h"
#include "transfer/codec/span_overlay.h"
#include "transfer/codec/span_writer.h"
#include "transfer/codec/tile_sum.h"

namespace wstore {
namespace {

class PatchedTiles final : public SpanTiles {
 public:
  PatchedTiles(std::unique_ptr<SpanTiles> base, Pool<SpanOverlay>::Lease overlay)
      : base_(std::move(base)), overlay_(std::move(overlay)) {}

  absl::Status ReadTile(TilePlace place, uint8_t* out) override {
    RETURN_IF_ERROR(base_->ReadTile(place, out));
    overlay_->XorInto(place, out);
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<SpanTiles> base_;
  const Pool<SpanOverlay>::Lease overlay_;
};

class Patched final : public DenseSource {
 public:
  Patched(const Manifest& manifest, const DenseSource& base,
          std::vector<const PatchSource*> patches, uint64_t budget_bytes)
      : base_(base), patches_(std::move(patches)), overlays_([&manifest, budget_bytes] {
          return std::make_unique<SpanOverlay>(manifest, budget_bytes);
        }) {}

  absl::StatusOr<std::unique_ptr<SpanTiles>> OpenSpan(uint32_t span) const override {
    ASSIGN_OR_RETURN(std::unique_ptr<SpanTiles> base, base_.OpenSpan(span));
    Pool<SpanOverlay>::Lease overlay = overlays_.Take();
    RETURN_IF_ERROR(overlay->Open(span, patches_));
    if (overlay->empty()) return base;
    return std::make_unique<PatchedTiles>(std::move(base), std::move(overlay));
  }

 private:
  const DenseSource& base_;
  const std::vector<const PatchSource*> patches_;
  mutable Pool<SpanOverlay> overlays_;
};

// What composing one span needs.
struct Workspace {
  SpanOverlay overlay;
  TileSum sum;
};

class Composed final : public PatchSource {
 public:
  Composed(const Manifest& manifest, std::vector<const PatchSource*> patches, uint64_t budget_bytes)
      : manifest_(manifest), patches_(std::move(patches)), workspaces_([&manifest, budget_bytes] {
          return std::unique_ptr<Workspace>(new Workspace{SpanOverlay(manifest, budget_bytes), {}});
        }) {}

  absl::Status ReadSpan(uint32_t span,
                        const std::function<absl::Status(const ChunkView&)>& visit) const override;

 private:
  const Manifest& manifest_;
  const std::vector<const PatchSource*> patches_;
  mutable Pool<Workspace> workspaces_;
};

absl::Status Composed::ReadSpan(uint32_t span,
                                const std::function<absl::Status(const ChunkView&)>& visit) const {
  if (patches_.size() == 1) return patches_.front()->ReadSpan(span, visit);
  const Pool<Workspace>::Lease workspace = workspaces_.Take();
  SpanOverlay& overlay = workspace->overlay;
  TileSum& sum = workspace->sum;
  RETURN_IF_ERROR(overlay.Open(span, patches_));
  if (overlay.empty()) return absl::OkStatus();
  SpanWriter writer(manifest_, visit);
  for (size_t i = 0; i < overlay.places().size(); ++i) {
    const SpanOverlay::Tile& tile = overlay.tile(i);
    if (tile.empty()) continue;
    if (tile.dense == nullptr && tile.held.size() == 1) {
      // The encoding of given changes is unique: as it came is as it would be written.
      RETURN_IF_ERROR(writer.Add(tile.held.front()));
      continue;
    }
    const TilePlace place = overlay.places()[i];
    const uint32_t changed = sum.Compute(tile, manifest_.TileElements(place),
                                         manifest_.tensor(place.tensor).element_bytes);
    if (changed == 0) continue;
    RETURN_IF_ERROR(writer.Add(place, sum.offsets(), sum.values()));
  }
  return writer.Finish();
}

}  // namespace

std::unique_ptr<DenseSource> MakePatched(const Manifest& manifest, const DenseSource& base,
                                         std::vector<const PatchSource*> patches,
                                         uint64_t merge_budget_bytes) {
  return std::make_unique<Patched>(manifest, base, std::move(patches), merge_budget_bytes);
}

std::unique_ptr<PatchSource> MakeComposed(const Manifest& manifest,
                                          std::vector<const PatchSource*> patches,
                                          uint64_t merge_budget_bytes) {
  return std::make_unique<Composed>(manifest, std::move(patches), merge_budget_bytes);
}

std::unique_ptr<DenseSource> MakePatched(const Manifest& manifest, const DenseSource& base,
                                         std::vector<const PatchSource*> patches) {
  return MakePatched(manifest, base, std::move(patches), kMergeBudgetBytes);
}

std::unique_ptr<PatchSource> MakeComposed(const Manifest& manifest,
                                          std::vector<const PatchSource*> patches) {
  return MakeComposed(manifest, std::move(patches), kMergeBudgetBytes);
}

}  // namespace wstore
