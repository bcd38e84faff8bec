#include "store/version/publish.h"

#include <optional>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/parallel.h"
#include "common/status_macros.h"
#include "store/version/sums.h"
#include "wstore/patch_digest.h"

namespace wstore {
namespace {

// What the work on one span leaves for its delivery.
struct SpanOutcome {
  struct Tile {
    TilePlace place;
    TileForm form;
    uint32_t changed;
    Digest digest;
  };
  struct Tensor {
    TensorIndex tensor;
    bool touched = false;
    TouchedSums sums;
    Fingerprint target_sum;
  };
  std::vector<std::pair<ChunkKey, std::string>> chunks;
  std::vector<Tile> tiles;
  std::vector<Tensor> tensors;
};

// Encodes one span. Lives in one thread; its buffers serve one span after another.
class SpanEncoder {
 public:
  SpanEncoder(const PublishInput& input, uint32_t span)
      : input_(input), manifest_(*input.manifest), span_(span), builder_(manifest_) {}

  absl::Status Run(ProgressCounter* progress) {
    RETURN_IF_ERROR(input_.target != nullptr ? DiffTiles(progress) : TakePatches(progress));
    CloseChunk();
    return absl::OkStatus();
  }

  SpanOutcome TakeOutcome() { return std::move(outcome_); }

 private:
  // Two tiles and their differences: all of a publish's hot data, sized to stay in the L2 cache.
  struct Buffers {
    std::vector<uint8_t> old_tile;
    std::vector<uint8_t> new_tile;
    TileChanges changes;
  };
  static Buffers& ThreadBuffers() {
    thread_local Buffers buffers;
    return buffers;
  }

  absl::Status DiffTiles(ProgressCounter* progress) {
    ASSIGN_OR_RETURN(parent_, input_.parent->OpenSpan(span_));
    ASSIGN_OR_RETURN(const std::unique_ptr<SpanTiles> target, input_.target->OpenSpan(span_));
    Buffers& buffers = ThreadBuffers();
    const uint64_t first = span_ * kSpanTiles;
    const uint64_t end = std::min(first + kSpanTiles, manifest_.tiles());
    for (uint64_t tile = first; tile < end; ++tile) {
      const TilePlace place = manifest_.PlaceOf(tile);
      const uint32_t elements = manifest_.TileElements(place);
      const uint32_t width = manifest_.tensor(place.tensor).element_bytes;
      const size_t bytes = uint64_t{elements} * width;
      if (buffers.old_tile.size() < bytes) buffers.old_tile.resize(bytes);
      if (buffers.new_tile.size() < bytes) buffers.new_tile.resize(bytes);
      if (buffers.changes.values.size() < bytes) buffers.changes.values.resize(bytes);
      if (buffers.changes.offsets.size() < elements) buffers.changes.offsets.resize(elements);
      RETURN_IF_ERROR(parent_->ReadTile(place, buffers.old_tile.data()));
      RETURN_IF_ERROR(target->ReadTile(place, buffers.new_tile.data()));
      SpanOutcome::Tensor& tensor = TensorOf(place);
      tensor.target_sum += fingerprinter_->Sum(place.tile * kTileElements * width,
                                               absl::MakeConstSpan(buffers.new_tile.data(), bytes));
      const uint32_t changed =
          DiffTile(buffers.old_tile.data(), buffers.new_tile.data(), elements, width,
                   buffers.changes.offsets.data(), buffers.changes.values.data());
      progress->Add(bytes);
      if (changed == 0) continue;
      const auto offsets = absl::MakeConstSpan(buffers.changes.offsets.data(), changed);
      AddChange(&tensor, place, width, offsets, buffers.old_tile.data(),
                buffers.changes.values.data());
      builder_.AddTile(place, offsets, buffers.changes.values.data());
      CloseChunkIfFull();
    }
    return absl::OkStatus();
  }

  absl::Status TakePatches(ProgressCounter* progress) {
    Buffers& buffers = ThreadBuffers();
    return input_.patches->ReadSpan(span_, [&](const ChunkView& chunk) -> absl::Status {
      // Not before something is touched: opening a span of a version reads its patches.
      if (input_.parent != nullptr && parent_ == nullptr) {
        ASSIGN_OR_RETURN(parent_, input_.parent->OpenSpan(span_));
      }
      for (const EncodedTile& tile : chunk.tiles()) {
        const size_t bytes = uint64_t{tile.elements} * tile.element_bytes;
        SpanOutcome::Tensor& tensor = TensorOf(tile.place);
        tensor.touched = true;
        if (parent_ != nullptr) {
          if (buffers.old_tile.size() < bytes) buffers.old_tile.resize(bytes);
          RETURN_IF_ERROR(parent_->ReadTile(tile.place, buffers.old_tile.data()));
          DecodeTile(tile, &buffers.changes);
          AddChange(&tensor, tile.place, tile.element_bytes, buffers.changes.offsets,
                    buffers.old_tile.data(), buffers.changes.values.data());
        }
        builder_.AddTile(tile);
        CloseChunkIfFull();
        progress->Add(bytes);
      }
      return absl::OkStatus();
    });
  }

  // The sums of a tile's tensor within this span; tiles come tensor by tensor.
  SpanOutcome::Tensor& TensorOf(TilePlace place) {
    if (outcome_.tensors.empty() || outcome_.tensors.back().tensor != place.tensor) {
      outcome_.tensors.push_back({place.tensor, false, {}, {}});
      fingerprinter_.emplace(*input_.key, manifest_.tensor(place.tensor).spec.name);
    }
    return outcome_.tensors.back();
  }

  void AddChange(SpanOutcome::Tensor* tensor, TilePlace place, uint32_t width,
                 absl::Span<const uint16_t> offsets, const uint8_t* old_tile,
                 const uint8_t* values) {
    tensor->touched = true;
    tensor->sums +=
        fingerprinter_->Touched(place.tile * kTileElements, width, offsets, old_tile, values);
  }

  void CloseChunkIfFull() {
    if (builder_.size_bytes() >= kChunkTargetBytes) CloseChunk();
  }

  // Digests are taken from the finished bytes: what is hashed is what is stored.
  void CloseChunk() {
    if (builder_.empty()) return;
    const ChunkKey key{0, span_, next_part_++};
    std::string bytes = builder_.Finish({input_.transaction, key});
    const absl::StatusOr<ChunkView> chunk = ChunkView::Parse(bytes, manifest_);
    WSTORE_CHECK(chunk.ok());
    for (const EncodedTile& tile : chunk->tiles()) {
      outcome_.tiles.push_back({tile.place, tile.form, tile.changed, TileDigest(tile)});
    }
    outcome_.chunks.emplace_back(key,
                                 input_.packed ? PackChunk(bytes, manifest_) : std::move(bytes));
  }

  const PublishInput& input_;
  const Manifest& manifest_;
  const uint32_t span_;
  ChunkBuilder builder_;
  uint16_t next_part_ = 0;
  std::unique_ptr<SpanTiles> parent_;
  std::optional<TensorFingerprinter> fingerprinter_;
  SpanOutcome outcome_;
};

}  // namespace

absl::StatusOr<PublishOutcome> EncodePublish(
    const PublishInput& input,
    const std::function<absl::Status(const ChunkKey&, std::string_view)>& write) {
  const Manifest& manifest = *input.manifest;
  const uint64_t window = 2 * static_cast<uint64_t>(input.threads);
  std::vector<SpanOutcome> waiting(window);  // by span modulo window
  ProgressCounter progress(input.progress, input.target != nullptr ? manifest.size_bytes() : 0);
  PublishOutcome outcome;
  outcome.target_sums.resize(input.target != nullptr ? manifest.size() : 0);
  PatchDigester digester(manifest);

  const auto work = [&](uint64_t span) -> absl::Status {
    SpanEncoder encoder(input, static_cast<uint32_t>(span));
    RETURN_IF_ERROR(encoder.Run(&progress));
    waiting[span % window] = encoder.TakeOutcome();
    return absl::OkStatus();
  };
  const auto deliver = [&](uint64_t span) -> absl::Status {
    const SpanOutcome done = std::exchange(waiting[span % window], {});
    for (const auto& [key, chunk] : done.chunks) RETURN_IF_ERROR(write(key, chunk));
    for (const SpanOutcome::Tile& tile : done.tiles) {
      digester.Add(tile.place, tile.form, tile.changed, tile.digest);
      outcome.elements += tile.changed;
    }
    for (const SpanOutcome::Tensor& tensor : done.tensors) {
      if (tensor.touched) {
        // A tensor may go on in the next span.
        TouchedByTensor& all = outcome.touched;
        if (all.empty() || all.back().tensor != tensor.tensor) all.push_back({tensor.tensor, {}});
        all.back().sums += tensor.sums;
      }
      if (input.target != nullptr) outcome.target_sums[tensor.tensor] += tensor.target_sum;
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ParallelOrdered(manifest.spans(), input.threads, window, work, deliver));
  outcome.patch_digest = digester.Finish();
  return outcome;
}

}  // namespace wstore
