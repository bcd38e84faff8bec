// Patch sets and dense versions as streams of spans. Everything that is large goes through these
// two interfaces: any span can be asked for at any time and from any thread, so work is spread over
// all cores and memory is bounded by a few spans whatever the size of the model or the length of
// the chain.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "wstore/chunk.h"
#include "wstore/fingerprint.h"
#include "wstore/manifest.h"

namespace wstore {

// The changes of a patch set. Thread-safe.
class PatchSource {
 public:
  virtual ~PatchSource() = default;

  // Calls `visit` for every chunk of one span in order of tiles, each tile once. None: nothing
  // changes there. The chunk's header is unspecified. The view is valid during the call.
  virtual absl::Status ReadSpan(
      uint32_t span, const std::function<absl::Status(const ChunkView&)>& visit) const = 0;
};

// Sums over the changed elements of one tensor.
struct TensorSums {
  TensorIndex tensor = 0;
  TouchedSums sums;

  friend bool operator==(const TensorSums&, const TensorSums&) = default;
};
// Of each tensor with changes, ascending.
using TouchedByTensor = std::vector<TensorSums>;

// The tiles of one span of a dense version. One thread at a time.
class SpanTiles {
 public:
  virtual ~SpanTiles() = default;
  // Copies a tile of the span to `out` (Manifest::TileElements x element_bytes). Any order;
  // ascending is fastest.
  virtual absl::Status ReadTile(TilePlace place, uint8_t* out) = 0;
};

// A dense version: a checkpoint, or a base with patch sets on top. Thread-safe.
class DenseSource {
 public:
  virtual ~DenseSource() = default;
  // What is opened must go before the source does.
  virtual absl::StatusOr<std::unique_ptr<SpanTiles>> OpenSpan(uint32_t span) const = 0;
};

// A tensor source as it is. `source` and `manifest` must outlive the result.
std::unique_ptr<DenseSource> MakeDense(const Manifest& manifest, const TensorSource& source);

// `base` with all of `patches` applied (their order does not matter: XOR commutes). `base`,
// `manifest` and what `patches` point to must outlive the result. Memory of one open span:
// kMergeBudgetBytes plus at most one dense span; it is kept for the next until the result goes.
std::unique_ptr<DenseSource> MakePatched(const Manifest& manifest, const DenseSource& base,
                                         std::vector<const PatchSource*> patches);

// The composed difference: the XOR of all of `patches`, each element once; elements that cancel
// drop out. Tiles that only one of them changes pass through as they are encoded. Lifetimes and
// memory as for MakePatched.
std::unique_ptr<PatchSource> MakeComposed(const Manifest& manifest,
                                          std::vector<const PatchSource*> patches);

// The difference of two dense versions, bits only. Lifetimes as above; memory: two tiles and a
// chunk a thread.
std::unique_ptr<PatchSource> MakeDiff(const Manifest& manifest, const DenseSource& from,
                                      const DenseSource& to);

// Bytes of encoded tiles that a span's composition holds before it XORs them into dense ones. With
// fewer, the dense tiles are gone through too often; with more, what is held leaves the last cache.
inline constexpr uint64_t kMergeBudgetBytes = 32 << 20;

}  // namespace wstore
