// Cuts the changes of one span into chunks and hands them on.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "wstore/chunk.h"
#include "wstore/manifest.h"

namespace wstore {

// Tiles come in ascending order. After an error, its own or one of `visit`, the writer is of no
// more use. Not thread-safe.
class SpanWriter {
 public:
  using Visit = std::function<absl::Status(const ChunkView&)>;

  // `manifest` and `visit` must outlive the writer.
  SpanWriter(const Manifest& manifest, uint32_t span, const Visit& visit)
      : manifest_(manifest), visit_(visit), builder_(manifest), key_{.span = span} {}

  // As ChunkBuilder::AddTile; visits the chunk once it is full.
  absl::Status Add(TilePlace place, absl::Span<const uint16_t> offsets, const uint8_t* values) {
    builder_.AddTile(place, offsets, values);
    return builder_.size_bytes() < kChunkTargetBytes ? absl::OkStatus() : Flush();
  }
  absl::Status Add(const EncodedTile& tile) {
    builder_.AddTile(tile);
    return builder_.size_bytes() < kChunkTargetBytes ? absl::OkStatus() : Flush();
  }

  // Visits what is left.
  absl::Status Finish() { return builder_.empty() ? absl::OkStatus() : Flush(); }

 private:
  absl::Status Flush();

  const Manifest& manifest_;
  const Visit& visit_;
  ChunkBuilder builder_;
  ChunkKey key_;
};

}  // namespace wstore
