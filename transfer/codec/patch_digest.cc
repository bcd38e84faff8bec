#include "wstore/patch_digest.h"

#include <algorithm>
#include <array>
#include <vector>

#include "common/bytes.h"
#include "common/check.h"
#include "common/parallel.h"
#include "transfer/codec/chunk_layout.h"

namespace wstore {
namespace {

constexpr uint64_t kPatchLeafBytes = 4096;
constexpr char kSetLabel[] = "wstore patch set 1";  // its closing zero is hashed too
// Parts that the tensors are shared out in, for each thread.
constexpr size_t kParts = 4;
// With fewer, another thread takes longer to start than to help.
constexpr size_t kTilesPerThread = 2048;

// In one piece: a call for each field would cost more than the hashing.
void HashTile(uint32_t tile, TileForm form, uint32_t changed, const Digest& digest,
              Sha256* tensor) {
  std::array<uint8_t, 8 + sizeof(digest.bytes)> record;
  StoreLe<uint32_t>(tile, &record[0]);
  StoreLe<uint32_t>(PackedTile{changed, form, 0}.Encode(), &record[4]);
  std::copy(digest.bytes.begin(), digest.bytes.end(), &record[8]);
  tensor->Update(record);
}

void HashTensor(const TensorSpec& spec, uint64_t changed, const Digest& digest, Sha256* set) {
  set->UpdateU32(static_cast<uint32_t>(spec.name.size())).Update(spec.name);
  const auto dtype = static_cast<uint8_t>(spec.dtype);
  set->Update(absl::MakeConstSpan(&dtype, 1));
  set->UpdateU32(static_cast<uint32_t>(spec.shape.size()));
  for (const uint64_t dimension : spec.shape) set->UpdateU64(dimension);
  set->UpdateU64(changed).Update(digest.bytes);
}

// The tiles of one tensor, among all.
struct TensorTiles {
  TensorIndex tensor;
  size_t first;
  uint64_t changed = 0;
  Digest digest;
};

std::vector<TensorTiles> TensorsOf(size_t count, absl::FunctionRef<DigestedTile(size_t)> tile_at) {
  std::vector<TensorTiles> tensors;
  TilePlace last;
  for (size_t i = 0; i < count; ++i) {
    const TilePlace place = tile_at(i).place;
    WSTORE_CHECK(i == 0 || last < place);
    last = place;
    if (tensors.empty() || tensors.back().tensor != place.tensor) {
      tensors.push_back({place.tensor, i, 0, {}});
    }
  }
  return tensors;
}

}  // namespace

Digest TileDigest(const EncodedTile& tile) { return TreeDigest(tile.bytes, kPatchLeafBytes); }

PatchDigester::PatchDigester(const Manifest& manifest) : manifest_(manifest) {
  set_.Update(std::string_view(kSetLabel, sizeof(kSetLabel)));
}

void PatchDigester::Add(TilePlace place, TileForm form, uint32_t changed,
                        const Digest& tile_digest) {
  WSTORE_CHECK(place.tensor < manifest_.size());
  WSTORE_CHECK(!last_.has_value() || *last_ < place);
  if (last_.has_value() && last_->tensor != place.tensor) CloseTensor();
  last_ = place;
  open_changed_ += changed;
  HashTile(place.tile, form, changed, tile_digest, &open_);
}

void PatchDigester::Add(size_t count, absl::FunctionRef<DigestedTile(size_t)> tile_at,
                        int threads) {
  if (count == 0) return;
  threads = static_cast<int>(
      std::clamp<size_t>(count / kTilesPerThread, 1, static_cast<size_t>(threads)));
  std::vector<TensorTiles> tensors = TensorsOf(count, tile_at);
  WSTORE_CHECK(!last_.has_value() || *last_ < tile_at(0).place);
  const bool goes_on = last_.has_value() && last_->tensor == tensors.front().tensor;
  if (last_.has_value() && !goes_on) CloseTensor();
  // The last tensor is left open, in a state of its own; the first may be the one that was.
  Sha256 last;
  const size_t back = tensors.size() - 1;
  const auto hash = [&](size_t i) {
    thread_local Sha256 whole;
    const bool is_open = i == 0 && goes_on;
    Sha256& sha = is_open ? open_ : i == back ? last : whole;
    TensorTiles& tensor = tensors[i];
    const size_t end = i < back ? tensors[i + 1].first : count;
    for (size_t at = tensor.first; at < end; ++at) {
      const DigestedTile tile = tile_at(at);
      tensor.changed += tile.changed;
      HashTile(tile.place.tile, tile.form, tile.changed, *tile.digest, &sha);
    }
    if (i < back) tensor.digest = sha.Finish();
  };
  const size_t parts = std::min(tensors.size(), kParts * static_cast<size_t>(threads));
  const absl::Status status = ParallelFor(parts, threads, [&](uint64_t part) {
    const size_t end = tensors.size() * (part + 1) / parts;
    for (size_t i = tensors.size() * part / parts; i < end; ++i) hash(i);
    return absl::OkStatus();
  });
  WSTORE_CHECK(status.ok());
  if (goes_on) tensors.front().changed += open_changed_;
  for (size_t i = 0; i < back; ++i) {
    HashTensor(manifest_.tensor(tensors[i].tensor).spec, tensors[i].changed, tensors[i].digest,
               &set_);
  }
  tensors_ += back;
  if (back > 0 || !goes_on) open_ = std::move(last);
  open_changed_ = tensors.back().changed;
  last_ = tile_at(count - 1).place;
}

void PatchDigester::CloseTensor() {
  HashTensor(manifest_.tensor(last_->tensor).spec, open_changed_, open_.Finish(), &set_);
  open_changed_ = 0;
  ++tensors_;
}

Digest PatchDigester::Finish() {
  if (last_.has_value()) CloseTensor();
  set_.UpdateU64(tensors_);
  const Digest digest = set_.Finish();
  last_.reset();
  tensors_ = 0;
  set_.Update(std::string_view(kSetLabel, sizeof(kSetLabel)));
  return digest;
}

Digest DigestTiles(const Manifest& manifest, size_t count,
                   absl::FunctionRef<DigestedTile(size_t)> tile_at, int threads) {
  PatchDigester digester(manifest);
  digester.Add(count, tile_at, threads);
  return digester.Finish();
}

}  // namespace wstore
