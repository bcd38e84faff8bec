#include "transfer/replica/content_digester.h"

#include <algorithm>
#include <new>

namespace wstore {

void ContentDigester::Add(const ChunkKey& key, const StagedChunk* chunk) {
  if (!is_sound_ || chunk->tiles.empty()) return;
  waiting_.emplace_back(key, chunk);
}

std::vector<const StagedChunk*> ContentDigester::Take(uint64_t least_tiles) {
  std::vector<const StagedChunk*> chunks;
  if (!is_sound_) return chunks;
  std::sort(waiting_.begin(), waiting_.end());
  uint64_t all_tiles = 0;
  for (const auto& [key, chunk] : waiting_) all_tiles += chunk->tiles.size();
  uint64_t tiles = 0;
  size_t count = 0;
  uint64_t next_span = next_span_;
  for (; count < waiting_.size(); ++count) {
    const auto& [key, chunk] = waiting_[count];
    const bool is_next = key.span <= next_span || all_tiles - tiles > most_waiting_;
    if (!is_next && least_tiles != kAll) break;
    next_span = key.span + uint64_t{1};
    tiles += chunk->tiles.size();
  }
  if (tiles < least_tiles) return chunks;
  for (size_t i = 0; i < count; ++i) {
    const StagedChunk* const chunk = waiting_[i].second;
    is_sound_ &= !last_ || *last_ < chunk->tiles.front().place;
    last_ = chunk->tiles.back().place;
    chunks.push_back(chunk);
  }
  next_span_ = next_span;
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(count));
  if (!is_sound_) chunks.clear();
  return chunks;
}

bool ContentDigester::Hash(absl::Span<const StagedChunk* const> chunks, int threads) {
  try {
    std::vector<const TileRecord*> tiles;
    for (const StagedChunk* const chunk : chunks) {
      for (const TileRecord& tile : chunk->tiles) tiles.push_back(&tile);
    }
    const auto tile_at = [&](size_t i) {
      return DigestedTile{tiles[i]->place, tiles[i]->form, tiles[i]->changed, &tiles[i]->digest};
    };
    digester_.Add(tiles.size(), tile_at, threads);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace wstore
