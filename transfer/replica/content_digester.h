// The digest of what one contributor sends, taken as its chunks come.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/reserve.h"
#include "transfer/replica/staged_chunk.h"
#include "wstore/chunk.h"
#include "wstore/patch_digest.h"

namespace wstore {

// A digest is over tiles that ascend, and chunks come in other orders: frames have them as they lie
// in memory. So chunks wait until those of the spans before them are there, or many wait. If one
// comes for which that was too soon, the digest has to be taken anew once all are there.
//
// One thread at a time, but for Hash, beside which Add may be called.
class ContentDigester {
 public:
  // `manifest` must outlive it.
  explicit ContentDigester(const Manifest& manifest, uint64_t most_waiting = kMostTilesWaiting)
      : most_waiting_(most_waiting), digester_(manifest) {}

  void Reserve() { ReserveOneMore(&waiting_); }
  // The chunk must stay where it is. Its tiles ascend. Fails not, after Reserve.
  void Add(const ChunkKey& key, const StagedChunk* chunk);

  // Chunks whose turn it is, if they have `least_tiles`; with kAll all that have not been taken.
  // They are to be hashed before the next call. Nothing once it is not sound.
  static constexpr uint64_t kAll = 0;
  std::vector<const StagedChunk*> Take(uint64_t least_tiles);
  // False: there is no room for that; give it up.
  bool Hash(absl::Span<const StagedChunk* const> chunks, int threads);

  // False: the digest has to be taken in another way.
  bool is_sound() const { return is_sound_; }
  void GiveUp() { is_sound_ = false; }
  // Of all that was hashed, once.
  Digest Finish() { return digester_.Finish(); }

 private:
  // Spans may be without changes, and then nothing comes of them; so what is behind a gap is taken
  // once so many tiles wait behind it. They are more than the frames that are staged at a time
  // have: those end in any order.
  static constexpr uint64_t kMostTilesWaiting = 262'144;

  using Waiting = std::pair<ChunkKey, const StagedChunk*>;

  const uint64_t most_waiting_;
  PatchDigester digester_;
  bool is_sound_ = true;
  std::vector<Waiting> waiting_;
  uint64_t next_span_ = 0;  // that nothing was taken of
  std::optional<TilePlace> last_;
};

}  // namespace wstore
