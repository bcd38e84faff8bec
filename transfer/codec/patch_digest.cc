#include "common/check.h"
#include "transfer/codec/chunk_layout.h"
#include "wstore/chunk.h"

namespace wstore {
namespace {

constexpr uint64_t kPatchLeafBytes = 4096;
constexpr char kSetLabel[] = "wstore patch set 1";  // its closing zero is hashed too

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
  tensor_.UpdateU32(place.tile)
      .UpdateU32(PackedTile{changed, form, 0}.Encode())
      .Update(tile_digest.bytes);
}

void PatchDigester::CloseTensor() {
  const TensorSpec& spec = manifest_.tensor(last_->tensor).spec;
  set_.UpdateU32(static_cast<uint32_t>(spec.name.size())).Update(spec.name);
  const auto dtype = static_cast<uint8_t>(spec.dtype);
  set_.Update(absl::MakeConstSpan(&dtype, 1));
  set_.UpdateU32(static_cast<uint32_t>(spec.shape.size()));
  for (const uint64_t dimension : spec.shape) set_.UpdateU64(dimension);
  set_.UpdateU64(open_changed_).Update(tensor_.Finish().bytes);
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

}  // namespace wstore
