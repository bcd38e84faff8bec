// The tensors of a dense checkpoint in their canonical order, and how their elements are numbered.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/tensor.h"

namespace wstore {

// A tile is 65,536 consecutive storage elements of one tensor (the last of a tensor may be
// shorter); a span is 512 consecutive tiles of the whole checkpoint, tensors in canonical order.
// Tiles and spans depend on the manifest alone, so every version of a store is cut alike.
inline constexpr uint64_t kTileElements = 65536;
inline constexpr uint64_t kSpanTiles = 512;

// Index of a tensor in the manifest.
using TensorIndex = uint32_t;

// A tile as a place: tile `tile` of tensor `tensor`.
struct TilePlace {
  TensorIndex tensor = 0;
  uint32_t tile = 0;

  friend auto operator<=>(const TilePlace&, const TilePlace&) = default;
};

// Immutable once made, so safe to share between threads.
class Manifest {
 public:
  struct Tensor {
    TensorSpec spec;
    uint64_t elements = 0;       // storage elements
    uint32_t element_bytes = 1;  // 1, 2, 4 or 8
    uint64_t first_tile = 0;     // number of its first tile in the whole checkpoint
    uint32_t tiles = 0;

    uint64_t size_bytes() const { return elements * element_bytes; }
  };

  // Sorts `tensors` by name, bytewise.
  //   kInvalidArgument: a name twice, a tensor whose size overflows (see TensorBytes) or that has
  //   more than 2^32 - 1 tiles, more than 2^32 - 1 tensors or spans, more than 2^64 - 1 bytes.
  //   Faults of one kind are listed together, the first hundred by name.
  static absl::StatusOr<Manifest> Create(std::vector<TensorSpec> tensors);

  const std::vector<Tensor>& tensors() const { return tensors_; }
  const Tensor& tensor(TensorIndex index) const { return tensors_[index]; }
  size_t size() const { return tensors_.size(); }

  std::optional<TensorIndex> Find(std::string_view name) const;

  // Up to `limit` names of the manifest that look like `name`, best first: for error messages.
  // Compares with every name (about 40 ms for 100,000), so ask for a few names only.
  std::vector<std::string> NearMatches(std::string_view name, size_t limit) const;

  uint64_t elements() const { return elements_; }      // storage elements of all tensors
  uint64_t size_bytes() const { return size_bytes_; }  // of all tensors
  uint64_t tiles() const { return tiles_; }
  uint64_t spans() const { return (tiles_ + kSpanTiles - 1) / kSpanTiles; }

  // Number of a tile in the whole checkpoint, and back. Tensors without elements have no tile.
  uint64_t GlobalTile(TilePlace place) const;
  TilePlace PlaceOf(uint64_t global_tile) const;

  // The tiles of a span in order: kSpanTiles of them, or fewer in the last. `span` < spans().
  std::vector<TilePlace> SpanPlaces(uint32_t span) const;

  // Storage elements in a tile: kTileElements, or fewer in the last of a tensor.
  uint32_t TileElements(TilePlace place) const;
  uint64_t TileBytes(TilePlace place) const {
    return uint64_t{TileElements(place)} * tensors_[place.tensor].element_bytes;
  }

 private:
  std::vector<Tensor> tensors_;
  absl::flat_hash_map<std::string, TensorIndex> by_name_;
  uint64_t elements_ = 0;
  uint64_t size_bytes_ = 0;
  uint64_t tiles_ = 0;
};

// Where the bytes of a dense checkpoint come from: files, memory, or a version materialised on the
// way.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // Copies bytes [offset_bytes, offset_bytes + size) of a tensor to `out`. The range lies within
  // the tensor. Thread-safe; blocks for I/O. Contents of `out` are unspecified on error.
  //   kDataLoss: the data is no longer there (a file cut or replaced while open), named in the
  //   message
  virtual absl::Status Read(TensorIndex tensor, uint64_t offset_bytes,
                            absl::Span<uint8_t> out) const = 0;
};

}  // namespace wstore
