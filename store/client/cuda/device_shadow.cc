#include "store/client/cuda/device_shadow.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/parallel.h"
#include "common/status_macros.h"
#include "store/version/sums.h"

namespace wstore::client {
namespace {

constexpr uint64_t kAlignment = 256;
// Bytes on their way between host and device.
constexpr uint64_t kWindowBytes = 512 << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceShadow>> DeviceShadow::Make(const Manifest& manifest,
                                                                 const FingerprintKey& key,
                                                                 const Share& share,
                                                                 CudaMemory* memory,
                                                                 CudaStream stream) {
  ASSIGN_OR_RETURN(std::vector<ElementRange> held, HeldRanges(manifest, share));
  std::unique_ptr<DeviceShadow> shadow(new DeviceShadow(manifest, key, std::move(held), stream));
  uint64_t end = 0;
  uint64_t tile_bytes = 0;  // of tiles with held elements, all of each
  std::vector<uint64_t> starts;
  for (TensorIndex i = 0; i < manifest.size(); ++i) {
    const ElementRange& range = shadow->held_[i];
    const Manifest::Tensor& tensor = manifest.tensor(i);
    const uint64_t size_bytes = range.size() * tensor.element_bytes;
    starts.push_back(end);
    end += (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
    shadow->size_bytes_ += size_bytes;
    const uint64_t tiles_end = (range.end + kTileElements - 1) / kTileElements * kTileElements;
    tile_bytes +=
        (std::min(tiles_end, tensor.elements) - range.first / kTileElements * kTileElements) *
        tensor.element_bytes;
  }
  ASSIGN_OR_RETURN(shadow->bytes_, cuda::DeviceBuffer<uint8_t>::Create(end, memory, stream));
  for (TensorIndex i = 0; i < manifest.size(); ++i) {
    const bool is_empty = shadow->held_[i].empty();
    shadow->tensors_.push_back(is_empty ? nullptr : shadow->bytes_.get() + starts[i]);
  }
  ASSIGN_OR_RETURN(shadow->window_, cuda::PinnedBuffer<uint8_t>::Create(
                                        std::clamp(tile_bytes, uint64_t{1}, kWindowBytes)));
  ASSIGN_OR_RETURN(shadow->auditor_, CudaAuditor::Create(manifest, key, stream, memory, share));
  return shadow;
}

DeviceShadow::HeldTile DeviceShadow::Find(TilePlace place) const {
  const ElementRange& held = held_[place.tensor];
  if (!held.has_tile(place.tile)) return {};
  const uint64_t width = manifest_.tensor(place.tensor).element_bytes;
  const uint64_t start = place.tile * kTileElements;
  const uint64_t first = std::max(start, held.first);
  const uint64_t end = std::min(start + kTileElements, held.end);
  const auto* const tensor = static_cast<const uint8_t*>(tensors_[place.tensor]);
  return {const_cast<uint8_t*>(tensor) + (first - held.first) * width, (first - start) * width,
          (end - first) * width};
}

absl::Status DeviceShadow::Fill(const DenseSource& dense, int streams) {
  for (uint32_t first = 0; first < manifest_.spans();) {
    RETURN_IF_ERROR(FillStretch(dense, streams, &first));
  }
  return absl::OkStatus();
}

// As many spans as the window has room for.
absl::Status DeviceShadow::FillStretch(const DenseSource& dense, int streams,
                                       uint32_t* first_span) {
  struct Tile {
    TilePlace place;
    uint64_t at = 0;  // in the window
  };
  struct Span {
    uint32_t number = 0;
    std::vector<Tile> tiles;
  };
  std::vector<Span> spans;
  uint64_t used = 0;
  for (; *first_span < manifest_.spans(); ++*first_span) {
    Span span{*first_span, {}};
    uint64_t end = used;
    for (const TilePlace place : manifest_.SpanPlaces(*first_span)) {
      if (!held_[place.tensor].has_tile(place.tile)) continue;
      span.tiles.push_back({place, end});
      end += manifest_.TileBytes(place);
    }
    if (end > window_.count()) break;
    used = end;
    if (!span.tiles.empty()) spans.push_back(std::move(span));
  }
  const auto read = [&](uint64_t i) -> absl::Status {
    ASSIGN_OR_RETURN(const std::unique_ptr<SpanTiles> tiles, dense.OpenSpan(spans[i].number));
    for (const Tile& tile : spans[i].tiles) {
      RETURN_IF_ERROR(tiles->ReadTile(tile.place, window_.get() + tile.at));
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ParallelFor(spans.size(), streams, read));
  for (const Span& span : spans) {
    for (const Tile& tile : span.tiles) {
      const HeldTile held = Find(tile.place);
      RETURN_IF_ERROR(cuda::CopyAsync(window_.get() + tile.at + held.offset_bytes, held.at,
                                      held.size_bytes, stream_));
    }
  }
  return cuda::Synchronize(stream_);
}

Fingerprint DeviceShadow::SumOnHost(TilePlace place, const HeldTile& tile,
                                    const uint8_t* bytes) const {
  const Manifest::Tensor& tensor = manifest_.tensor(place.tensor);
  const uint64_t start = place.tile * kTileElements * tensor.element_bytes;
  return TensorFingerprinter(key_, tensor.spec.name)
      .Sum(start + tile.offset_bytes,
           absl::MakeConstSpan(bytes + tile.offset_bytes, tile.size_bytes));
}

// Tiles are changed on the host: a way between versions is gone once in a while. What is not held
// of a tile is changed there, too, and left there.
absl::StatusOr<Fingerprint> DeviceShadow::Apply(const EncodedSet& set) {
  Fingerprint change;
  for (const std::string& bytes : set.chunks) {
    ASSIGN_OR_RETURN(const ChunkView chunk, ChunkView::Parse(bytes, manifest_));
    uint64_t used = 0;
    for (const EncodedTile& tile : chunk.tiles()) {
      const HeldTile held = Find(tile.place);
      if (held.size_bytes == 0) continue;
      const uint64_t tile_bytes = manifest_.TileBytes(tile.place);
      WSTORE_CHECK(used + tile_bytes <= window_.count());  // it has room for a span
      RETURN_IF_ERROR(cuda::CopyAsync(held.at, window_.get() + used + held.offset_bytes,
                                      held.size_bytes, stream_));
      used += tile_bytes;
    }
    RETURN_IF_ERROR(cuda::Synchronize(stream_));
    used = 0;
    for (const EncodedTile& tile : chunk.tiles()) {
      const HeldTile held = Find(tile.place);
      if (held.size_bytes == 0) continue;
      uint8_t* const window = window_.get() + used;
      const Fingerprint before = SumOnHost(tile.place, held, window);
      XorTile(tile, window);
      change += SumOnHost(tile.place, held, window) - before;
      RETURN_IF_ERROR(
          cuda::CopyAsync(window + held.offset_bytes, held.at, held.size_bytes, stream_));
      used += manifest_.TileBytes(tile.place);
    }
    RETURN_IF_ERROR(cuda::Synchronize(stream_));
  }
  return change;
}

absl::StatusOr<Fingerprint> DeviceShadow::Sum() {
  RETURN_IF_ERROR(auditor_->Start(tensors_));
  ASSIGN_OR_RETURN(const std::vector<Fingerprint> sums, auditor_->Finish());
  return Total(sums);
}

}  // namespace wstore::client
