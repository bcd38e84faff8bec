#include "transfer/codec/composed.h"

#include "common/status_macros.h"
#include "transfer/codec/span_overlay.h"
#include "transfer/codec/span_writer.h"
#include "transfer/codec/tile_sum.h"

namespace wstore {
namespace {

absl::Status AddAll(const std::vector<const PatchSource*>& patches, SpanOverlay* overlay) {
  for (const PatchSource* const source : patches) RETURN_IF_ERROR(overlay->Add(*source));
  return absl::OkStatus();
}

class PatchedTiles final : public SpanTiles {
 public:
  PatchedTiles(std::unique_ptr<SpanTiles> base, std::unique_ptr<SpanOverlay> overlay)
      : base_(std::move(base)), overlay_(std::move(overlay)) {}

  absl::Status ReadTile(TilePlace place, uint8_t* out) override {
    RETURN_IF_ERROR(base_->ReadTile(place, out));
    overlay_->XorInto(overlay_->IndexOf(place), out);
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<SpanTiles> base_;
  const std::unique_ptr<SpanOverlay> overlay_;
};

class Patched final : public DenseSource {
 public:
  Patched(const Manifest& manifest, const DenseSource& base,
          std::vector<const PatchSource*> patches, uint64_t budget_bytes)
      : manifest_(manifest),
        base_(base),
        patches_(std::move(patches)),
        budget_bytes_(budget_bytes) {}

  absl::StatusOr<std::unique_ptr<SpanTiles>> OpenSpan(uint32_t span) const override {
    ASSIGN_OR_RETURN(std::unique_ptr<SpanTiles> base, base_.OpenSpan(span));
    auto overlay = std::make_unique<SpanOverlay>(manifest_, span, budget_bytes_);
    RETURN_IF_ERROR(AddAll(patches_, overlay.get()));
    if (overlay->empty()) return base;
    return std::make_unique<PatchedTiles>(std::move(base), std::move(overlay));
  }

 private:
  const Manifest& manifest_;
  const DenseSource& base_;
  const std::vector<const PatchSource*> patches_;
  const uint64_t budget_bytes_;
};

class Composed final : public PatchSource {
 public:
  Composed(const Manifest& manifest, std::vector<const PatchSource*> patches, uint64_t budget_bytes)
      : manifest_(manifest), patches_(std::move(patches)), budget_bytes_(budget_bytes) {}

  absl::Status ReadSpan(uint32_t span,
                        const std::function<absl::Status(const ChunkView&)>& visit) const override;

 private:
  const Manifest& manifest_;
  const std::vector<const PatchSource*> patches_;
  const uint64_t budget_bytes_;
};

absl::Status Composed::ReadSpan(uint32_t span,
                                const std::function<absl::Status(const ChunkView&)>& visit) const {
  if (patches_.size() == 1) return patches_.front()->ReadSpan(span, visit);
  SpanOverlay overlay(manifest_, span, budget_bytes_);
  RETURN_IF_ERROR(AddAll(patches_, &overlay));
  if (overlay.empty()) return absl::OkStatus();
  TileSum sum;
  SpanWriter writer(manifest_, span, visit);
  for (size_t i = 0; i < overlay.places().size(); ++i) {
    SpanOverlay::Tile& tile = overlay.tile(i);
    if (tile.empty()) continue;
    if (tile.dense == nullptr && tile.held.size() == 1) {
      // The encoding of given changes is unique: as it came is as it would be written.
      RETURN_IF_ERROR(writer.Add(tile.held.front()));
      continue;
    }
    const TilePlace place = overlay.places()[i];
    const uint32_t changed = sum.Compute(tile, manifest_.TileElements(place),
                                         manifest_.tensor(place.tensor).element_bytes);
    tile.dense.reset();
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
