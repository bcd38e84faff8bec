// Cuts the changes of one span into pieces of chunk size and hands them on.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "wstore/chunk.h"
#include "wstore/manifest.h"

namespace wstore {

// Tiles come in ascending order. After an error of `visit` the writer is of no more use. Not
// thread-safe.
class SpanWriter {
 public:
  using Visit = std::function<absl::Status(const ChunkView&)>;

  // `manifest` and `visit` must outlive the writer.
  SpanWriter(const Manifest& manifest, const Visit& visit) : visit_(visit), builder_(manifest) {}

  // As ChunkBuilder::AddTile; visits what there is once it would fill a chunk.
  absl::Status Add(TilePlace place, absl::Span<const uint16_t> offsets, const uint8_t* values) {
    builder_.AddTile(place, offsets, values);
    return builder_.size_bytes() < kChunkTargetBytes ? absl::OkStatus() : Finish();
  }
  absl::Status Add(const EncodedTile& tile) {
    builder_.AddTile(tile);
    return builder_.size_bytes() < kChunkTargetBytes ? absl::OkStatus() : Finish();
  }

  // Visits what is left.
  absl::Status Finish() {
    if (builder_.empty()) return absl::OkStatus();
    absl::Status status = visit_(builder_.View());
    builder_.Clear();
    return status;
  }

 private:
  const Visit& visit_;
  ChunkBuilder builder_;
};

}  // namespace wstore
