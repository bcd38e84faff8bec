#include "tests/conformance/replica/publisher.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "tests/support/catch.h"
#include "wstore/chunk.h"
#include "wstore/patch_digest.h"

namespace wstore::testing {
namespace {

uint64_t Load(const std::vector<uint8_t>& bytes, uint64_t element, uint32_t width) {
  uint64_t bits = 0;
  std::memcpy(&bits, bytes.data() + element * width, width);
  return bits;
}

void Xor(uint64_t value, uint64_t element, uint32_t width, std::vector<uint8_t>* bytes) {
  const uint64_t bits = Load(*bytes, element, width) ^ value;
  std::memcpy(bytes->data() + element * width, &bits, width);
}

Digest DigestOf(const std::string& text) { return Sha256().Update(text).Finish(); }

}  // namespace

Model RandomModel(const Manifest& manifest, std::mt19937_64& random) {
  Model model;
  for (const Manifest::Tensor& tensor : manifest.tensors()) {
    std::vector<uint8_t> bytes(tensor.size_bytes());
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    model.push_back(std::move(bytes));
  }
  return model;
}

Changes RandomChanges(const Manifest& manifest, uint64_t count, std::mt19937_64& random) {
  Changes changes;
  for (TensorIndex tensor = 0; tensor < manifest.size(); ++tensor) {
    const Manifest::Tensor& described = manifest.tensor(tensor);
    if (described.elements == 0) continue;
    for (uint64_t i = 0; i < std::min(count, described.elements); ++i) {
      const uint64_t bits = random() >> (64 - 8 * described.element_bytes);
      changes[{tensor, Below(random, described.elements)}] = bits | 1;
    }
  }
  return changes;
}

Model Changed(const Manifest& manifest, Model model, const Changes& changes) {
  for (const auto& [at, value] : changes) {
    Xor(value, at.second, manifest.tensor(at.first).element_bytes, &model[at.first]);
  }
  return model;
}

Changes Difference(const Manifest& manifest, const Model& from, const Model& to) {
  Changes changes;
  for (TensorIndex tensor = 0; tensor < manifest.size(); ++tensor) {
    const uint32_t width = manifest.tensor(tensor).element_bytes;
    for (uint64_t element = 0; element < manifest.tensor(tensor).elements; ++element) {
      const uint64_t value = Load(from[tensor], element, width) ^ Load(to[tensor], element, width);
      if (value != 0) changes[{tensor, element}] = value;
    }
  }
  return changes;
}

std::vector<Fingerprint> SumsOf(const Manifest& manifest, const FingerprintKey& key,
                                const Model& model) {
  std::vector<Fingerprint> sums;
  for (TensorIndex tensor = 0; tensor < manifest.size(); ++tensor) {
    sums.push_back(
        TensorFingerprinter(key, manifest.tensor(tensor).spec.name).Sum(0, model[tensor]));
  }
  return sums;
}

std::vector<TensorSums> TouchedSumsOf(const Manifest& manifest, const FingerprintKey& key,
                                      const Model& model, const Changes& changes) {
  // The tensor with all but its changed elements zero, before and after.
  std::map<TensorIndex, std::pair<std::vector<uint8_t>, std::vector<uint8_t>>> touched;
  for (const auto& [at, value] : changes) {
    const auto& [tensor, element] = at;
    const uint32_t width = manifest.tensor(tensor).element_bytes;
    auto& [before, after] = touched[tensor];
    before.resize(model[tensor].size());
    after.resize(model[tensor].size());
    const uint64_t old_bits = Load(model[tensor], element, width);
    Xor(old_bits, element, width, &before);
    Xor(old_bits ^ value, element, width, &after);
  }
  std::vector<TensorSums> sums;
  for (const auto& [tensor, bytes] : touched) {
    const TensorFingerprinter fingerprinter(key, manifest.tensor(tensor).spec.name);
    sums.push_back(
        {tensor, {fingerprinter.Sum(0, bytes.first), fingerprinter.Sum(0, bytes.second)}});
  }
  return sums;
}

std::vector<std::string> EncodeChanges(const Manifest& manifest, const Changes& changes,
                                       const EncodeOptions& options,
                                       std::vector<ContributorContent>* contents) {
  using TileKey = std::tuple<uint16_t, uint32_t, TilePlace>;  // contributor, span
  std::map<TileKey, std::vector<std::pair<uint16_t, uint64_t>>> tiles;
  for (const auto& [at, value] : changes) {
    const TilePlace place{at.first, static_cast<uint32_t>(at.second / kTileElements)};
    const auto span = static_cast<uint32_t>(manifest.GlobalTile(place) / kSpanTiles);
    const auto contributor = static_cast<uint16_t>(at.second / 256 % options.contributors);
    tiles[{contributor, span, place}].emplace_back(static_cast<uint16_t>(at.second % kTileElements),
                                                   value);
  }
  std::vector<std::string> chunks;
  std::vector<PatchDigester> digesters;
  for (uint16_t i = 0; i < options.contributors; ++i) digesters.emplace_back(manifest);
  contents->assign(options.contributors, {});
  ChunkBuilder builder(manifest);
  uint64_t in_chunk = 0;
  ChunkKey key;
  const auto close = [&] {
    if (builder.empty()) return;
    chunks.push_back(builder.Finish({options.transaction, key}));
    const auto view = ChunkView::Parse(chunks.back(), manifest);
    REQUIRE_OK(view);
    for (const EncodedTile& tile : view->tiles()) {
      digesters[key.contributor].Add(tile.place, tile.form, tile.changed, TileDigest(tile));
    }
    ++(*contents)[key.contributor].chunks;
    ++key.part;
    in_chunk = 0;
  };
  for (const auto& [tile, elements] : tiles) {
    const auto& [contributor, span, place] = tile;
    if (contributor != key.contributor || span != key.span) {
      close();
      key = {contributor, span, 0};
    }
    const uint32_t width = manifest.tensor(place.tensor).element_bytes;
    std::vector<uint16_t> offsets;
    std::vector<uint8_t> values;
    for (const auto& [offset, value] : elements) {
      offsets.push_back(offset);
      const auto* const bytes = reinterpret_cast<const uint8_t*>(&value);
      values.insert(values.end(), bytes, bytes + width);
    }
    builder.AddTile(place, offsets, values.data());
    if (++in_chunk == options.tiles_per_chunk) close();
  }
  close();
  for (uint16_t i = 0; i < options.contributors; ++i) (*contents)[i].digest = digesters[i].Finish();
  return chunks;
}

Publisher::Publisher(const Manifest& manifest, Model base)
    : manifest_(manifest), key_(DigestOf("base")) {
  models_.push_back(std::move(base));
  names_.push_back({VersionId(0), DigestOf("v0")});
}

Update Publisher::Make(const Model& from, const Changes& changes, uint16_t contributors) {
  Update update;
  update.header.transaction = TransactionNumber(++transaction_);
  update.header.parent_move = move_;
  update.header.move = MoveNumber(move_.value() + 1 + transaction_ % 3);
  update.header.base_digest = key_.base_digest();
  update.header.layout_generation = 1;
  update.header.contributors = contributors;
  update.summary.declared = TouchedSumsOf(manifest_, key_, from, changes);
  update.chunks = EncodeChanges(
      manifest_, changes, {.transaction = update.header.transaction, .contributors = contributors},
      &update.summary.contents);
  update.result = Changed(manifest_, from, changes);
  return update;
}

Update Publisher::Publish(const Changes& changes, uint16_t contributors) {
  Update update = Make(model(), changes, contributors);
  update.header.from = head();
  update.header.to = VersionId(models_.size());
  update.summary.to_chain_digest = DigestOf(ToString(update.header.to) + ToString(head()));
  return update;
}

Update Publisher::Between(VersionId from, VersionId to, ChangeReason reason) {
  Update update = Make(model(from), Difference(manifest_, model(from), model(to)), 1);
  update.header.from = name(from);
  update.header.to = to;
  update.header.reason = reason;
  update.summary.to_chain_digest = name(to).chain_digest;
  return update;
}

void Publisher::Commit(const Update& update) {
  const uint64_t version = update.header.to.value();
  if (version == models_.size()) {
    models_.push_back(update.result);
    names_.push_back({update.header.to, update.summary.to_chain_digest});
  }
  WSTORE_CHECK(models_[version] == update.result);
  head_ = version;
  move_ = update.header.move;
}

}  // namespace wstore::testing
