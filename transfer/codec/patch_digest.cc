#include "wstore/patch_digest.h"

#include <algorithm>
#include <array>
#include <utility>
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

// Records are hashed some at a time: a call for each field would cost more than the hashing.
class Records {
 public:
  explicit Records(Sha256* sha) : sha_(sha) {}
  ~Records() { Flush(); }
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;

  void AddTile(uint32_t tile, TileForm form, uint32_t changed, const Digest& digest) {
    Add(tile);
    Add(PackedTile{changed, form, 0}.Encode());
    AddBytes(digest.bytes);
  }
  void AddTensor(const TensorSpec& spec, uint64_t changed, const Digest& digest) {
    Add(static_cast<uint32_t>(spec.name.size()));
    AddBytes({reinterpret_cast<const uint8_t*>(spec.name.data()), spec.name.size()});
    Add(static_cast<uint8_t>(spec.dtype));
    Add(static_cast<uint32_t>(spec.shape.size()));
    for (const uint64_t dimension : spec.shape) Add(dimension);
    Add(changed);
    AddBytes(digest.bytes);
  }
  void Flush() { sha_->Update(absl::MakeConstSpan(bytes_).first(std::exchange(used_, 0))); }

 private:
  template <typename T>
  void Add(T value) {
    uint8_t bytes[sizeof(T)];
    StoreLe(value, bytes);
    AddBytes(bytes);
  }
  void AddBytes(absl::Span<const uint8_t> bytes) {
    if (bytes.size() > bytes_.size() - used_) Flush();
    if (bytes.size() > bytes_.size()) {
      sha_->Update(bytes);
      return;
    }
    std::copy(bytes.begin(), bytes.end(), bytes_.begin() + used_);
    used_ += bytes.size();
  }

  Sha256* const sha_;
  size_t used_ = 0;
  std::array<uint8_t, 4096> bytes_;
};

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
  Records(&open_).AddTile(place.tile, form, changed, tile_digest);
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
    Records records(&sha);
    for (size_t at = tensor.first; at < end; ++at) {
      const DigestedTile tile = tile_at(at);
      tensor.changed += tile.changed;
      records.AddTile(tile.place.tile, tile.form, tile.changed, *tile.digest);
    }
    records.Flush();
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
  Records records(&set_);
  for (size_t i = 0; i < back; ++i) {
    records.AddTensor(manifest_.tensor(tensors[i].tensor).spec, tensors[i].changed,
                      tensors[i].digest);
  }
  records.Flush();
  tensors_ += back;
  if (back > 0 || !goes_on) open_ = std::move(last);
  open_changed_ = tensors.back().changed;
  last_ = tile_at(count - 1).place;
}

void PatchDigester::CloseTensor() {
  Records(&set_).AddTensor(manifest_.tensor(last_->tensor).spec, open_changed_, open_.Finish());
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
