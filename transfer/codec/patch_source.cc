#include "wstore/patch_source.h"

#include "common/status_macros.h"
#include "transfer/codec/span_writer.h"

namespace wstore {
namespace {

class TensorTiles final : public SpanTiles {
 public:
  TensorTiles(const Manifest& manifest, const TensorSource& source)
      : manifest_(manifest), source_(source) {}

  absl::Status ReadTile(TilePlace place, uint8_t* out) override {
    const uint64_t tile_bytes = kTileElements * manifest_.tensor(place.tensor).element_bytes;
    return source_.Read(place.tensor, place.tile * tile_bytes,
                        absl::MakeSpan(out, manifest_.TileBytes(place)));
  }

 private:
  const Manifest& manifest_;
  const TensorSource& source_;
};

class Dense final : public DenseSource {
 public:
  Dense(const Manifest& manifest, const TensorSource& source)
      : manifest_(manifest), source_(source) {}

  absl::StatusOr<std::unique_ptr<SpanTiles>> OpenSpan(uint32_t) const override {
    return std::make_unique<TensorTiles>(manifest_, source_);
  }

 private:
  const Manifest& manifest_;
  const TensorSource& source_;
};

class Diff final : public PatchSource {
 public:
  Diff(const Manifest& manifest, const DenseSource& from, const DenseSource& to)
      : manifest_(manifest), from_(from), to_(to) {}

  absl::Status ReadSpan(uint32_t span,
                        const std::function<absl::Status(const ChunkView&)>& visit) const override;

 private:
  const Manifest& manifest_;
  const DenseSource& from_;
  const DenseSource& to_;
};

absl::Status Diff::ReadSpan(uint32_t span,
                            const std::function<absl::Status(const ChunkView&)>& visit) const {
  ASSIGN_OR_RETURN(const std::unique_ptr<SpanTiles> from, from_.OpenSpan(span));
  ASSIGN_OR_RETURN(const std::unique_ptr<SpanTiles> to, to_.OpenSpan(span));
  // Sized for the largest tile, and used for all, so that they stay in the cache.
  constexpr uint64_t kMaxTileBytes = kTileElements * 8;
  const std::unique_ptr<uint8_t[]> old_tile(new uint8_t[kMaxTileBytes]);
  const std::unique_ptr<uint8_t[]> new_tile(new uint8_t[kMaxTileBytes]);
  const std::unique_ptr<uint16_t[]> offsets(new uint16_t[kTileElements]);
  const std::unique_ptr<uint8_t[]> values(new uint8_t[kMaxTileBytes]);
  SpanWriter writer(manifest_, visit);
  for (const TilePlace place : manifest_.SpanPlaces(span)) {
    RETURN_IF_ERROR(from->ReadTile(place, old_tile.get()));
    RETURN_IF_ERROR(to->ReadTile(place, new_tile.get()));
    const uint32_t changed =
        DiffTile(old_tile.get(), new_tile.get(), manifest_.TileElements(place),
                 manifest_.tensor(place.tensor).element_bytes, offsets.get(), values.get());
    if (changed == 0) continue;
    RETURN_IF_ERROR(writer.Add(place, absl::MakeConstSpan(offsets.get(), changed), values.get()));
  }
  return writer.Finish();
}

}  // namespace

std::unique_ptr<DenseSource> MakeDense(const Manifest& manifest, const TensorSource& source) {
  return std::make_unique<Dense>(manifest, source);
}

std::unique_ptr<PatchSource> MakeDiff(const Manifest& manifest, const DenseSource& from,
                                      const DenseSource& to) {
  return std::make_unique<Diff>(manifest, from, to);
}

}  // namespace wstore
