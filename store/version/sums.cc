#include "store/version/sums.h"

#include <optional>

#include "common/parallel.h"
#include "common/status_macros.h"

namespace wstore {

void ProgressCounter::Add(uint64_t bytes) {
  if (!report_) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  done_bytes_ += bytes;
  report_(done_bytes_, total_bytes_);
}

absl::StatusOr<std::vector<Fingerprint>> SumVersion(
    const Manifest& manifest, const FingerprintKey& key, const DenseSource& version, int threads,
    const ProgressFn& progress,
    const std::function<absl::Status(TilePlace, absl::Span<const uint8_t>)>& visit) {
  std::vector<Fingerprint> sums(manifest.size());
  std::mutex sums_mutex;
  ProgressCounter counter(progress, manifest.size_bytes());
  const auto sum_span = [&](uint64_t span) -> absl::Status {
    ASSIGN_OR_RETURN(const std::unique_ptr<SpanTiles> tiles,
                     version.OpenSpan(static_cast<uint32_t>(span)));
    const uint64_t first = span * kSpanTiles;
    const uint64_t end = std::min(first + kSpanTiles, manifest.tiles());
    std::vector<uint8_t> buffer;
    std::optional<TensorFingerprinter> fingerprinter;
    TensorIndex tensor = 0;
    Fingerprint sum;
    const auto close_tensor = [&] {
      const std::lock_guard<std::mutex> lock(sums_mutex);
      sums[tensor] += sum;
      sum = Fingerprint();
    };
    for (uint64_t tile = first; tile < end; ++tile) {
      const TilePlace place = manifest.PlaceOf(tile);
      const Manifest::Tensor& info = manifest.tensor(place.tensor);
      if (!fingerprinter.has_value() || place.tensor != tensor) {
        if (fingerprinter.has_value()) close_tensor();
        tensor = place.tensor;
        fingerprinter.emplace(key, info.spec.name);
      }
      buffer.resize(uint64_t{manifest.TileElements(place)} * info.element_bytes);
      RETURN_IF_ERROR(tiles->ReadTile(place, buffer.data()));
      sum += fingerprinter->Sum(place.tile * kTileElements * info.element_bytes, buffer);
      if (visit) RETURN_IF_ERROR(visit(place, buffer));
      counter.Add(buffer.size());
    }
    if (fingerprinter.has_value()) close_tensor();
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ParallelFor(manifest.spans(), threads, sum_span));
  return sums;
}

Fingerprint Total(const std::vector<Fingerprint>& fingerprints) {
  Fingerprint total;
  for (const Fingerprint& fingerprint : fingerprints) total += fingerprint;
  return total;
}

}  // namespace wstore
