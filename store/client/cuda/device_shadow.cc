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
                                                                 CudaMemory* memory,
                                                                 CudaStream stream) {
  std::unique_ptr<DeviceShadow> shadow(new DeviceShadow(manifest, stream));
  uint64_t size_bytes = 0;
  std::vector<uint64_t> starts;
  for (const Manifest::Tensor& tensor : manifest.tensors()) {
    starts.push_back(size_bytes);
    size_bytes += (tensor.size_bytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
  ASSIGN_OR_RETURN(shadow->bytes_, cuda::DeviceBuffer<uint8_t>::Create(size_bytes, memory, stream));
  for (TensorIndex i = 0; i < manifest.size(); ++i) {
    const bool is_empty = manifest.tensor(i).size_bytes() == 0;
    shadow->tensors_.push_back(is_empty ? nullptr : shadow->bytes_.get() + starts[i]);
  }
  ASSIGN_OR_RETURN(shadow->window_, cuda::PinnedBuffer<uint8_t>::Create(
                                        std::clamp(size_bytes, uint64_t{1}, kWindowBytes)));
  ASSIGN_OR_RETURN(shadow->auditor_, CudaAuditor::Create(manifest, key, stream, memory));
  return shadow;
}

uint8_t* DeviceShadow::At(TilePlace place) const {
  const uint64_t width = manifest_.tensor(place.tensor).element_bytes;
  const auto* const start = static_cast<const uint8_t*>(tensors_[place.tensor]);
  return const_cast<uint8_t*>(start) + uint64_t{place.tile} * kTileElements * width;
}

absl::Status DeviceShadow::Fill(const DenseSource& dense, int streams) {
  struct Tile {
    TilePlace place;
    uint64_t at = 0;  // in the window
  };
  for (uint32_t first = 0; first < manifest_.spans();) {
    // As many spans as the window has room for.
    std::vector<std::vector<Tile>> spans;
    uint64_t used = 0;
    for (; first < manifest_.spans(); ++first) {
      std::vector<Tile> tiles;
      uint64_t end = used;
      for (const TilePlace place : manifest_.SpanPlaces(first)) {
        tiles.push_back({place, end});
        end += manifest_.TileBytes(place);
      }
      if (end > window_.count()) break;
      used = end;
      spans.push_back(std::move(tiles));
    }
    const uint32_t begin = first - static_cast<uint32_t>(spans.size());
    const auto read = [&](uint64_t i) -> absl::Status {
      ASSIGN_OR_RETURN(const std::unique_ptr<SpanTiles> tiles,
                       dense.OpenSpan(begin + static_cast<uint32_t>(i)));
      for (const Tile& tile : spans[i]) {
        RETURN_IF_ERROR(tiles->ReadTile(tile.place, window_.get() + tile.at));
      }
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(ParallelFor(spans.size(), streams, read));
    for (const std::vector<Tile>& tiles : spans) {
      for (const Tile& tile : tiles) {
        RETURN_IF_ERROR(cuda::CopyAsync(window_.get() + tile.at, At(tile.place),
                                        manifest_.TileBytes(tile.place), stream_));
      }
    }
    RETURN_IF_ERROR(cuda::Synchronize(stream_));
  }
  return absl::OkStatus();
}

// Tiles are changed on the host: a way between versions is gone once in a while.
absl::Status DeviceShadow::Apply(const EncodedSet& set) {
  for (const std::string& bytes : set.chunks) {
    ASSIGN_OR_RETURN(const ChunkView chunk, ChunkView::Parse(bytes, manifest_));
    uint64_t used = 0;
    for (const EncodedTile& tile : chunk.tiles()) {
      const uint64_t size_bytes = manifest_.TileBytes(tile.place);
      WSTORE_CHECK(used + size_bytes <= window_.count());  // it has room for a span
      RETURN_IF_ERROR(cuda::CopyAsync(At(tile.place), window_.get() + used, size_bytes, stream_));
      used += size_bytes;
    }
    RETURN_IF_ERROR(cuda::Synchronize(stream_));
    used = 0;
    for (const EncodedTile& tile : chunk.tiles()) {
      const uint64_t size_bytes = manifest_.TileBytes(tile.place);
      XorTile(tile, window_.get() + used);
      RETURN_IF_ERROR(cuda::CopyAsync(window_.get() + used, At(tile.place), size_bytes, stream_));
      used += size_bytes;
    }
    RETURN_IF_ERROR(cuda::Synchronize(stream_));
  }
  return absl::OkStatus();
}

absl::StatusOr<Fingerprint> DeviceShadow::Sum() {
  RETURN_IF_ERROR(auditor_->Start(tensors_));
  ASSIGN_OR_RETURN(const std::vector<Fingerprint> sums, auditor_->Finish());
  return Total(sums);
}

}  // namespace wstore::client
