// Fuzzes the readers of chunks, raw and packed. Checksums are put right before reading, since no
// fuzzer would guess them.
//
//   cmake --preset fuzz && cmake --build --preset fuzz --target chunk_fuzz
//   build/fuzz/fuzz/chunk_fuzz -max_total_time=60
#include <cstdint>
#include <string>
#include <vector>

#include "common/check.h"
#include "tests/unit/codec/chunk_reference.h"
#include "wstore/chunk.h"

namespace wstore {
namespace {

using testing::Changes;

struct Sample {
  Manifest manifest;
  std::string chunk;
  std::string packed;
};

// One tile in each form, with escaped blocks.
const Sample& GetSample() {
  static const Sample* const sample = [] {
    Manifest manifest = *Manifest::Create({{"blocks", Dtype::kBF16, {600}},
                                           {"dense", Dtype::kF32, {3}},
                                           {"map", Dtype::kU8, {100}},
                                           {"offsets", Dtype::kI64, {kTileElements + 2000}}});
    Changes blocks{{599, 0x8000}};
    Changes map;
    for (uint32_t i = 0; i < 20; ++i) blocks[3 * i] = 1 + i;
    for (uint32_t i = 0; i < 40; ++i) map[2 * i + 1] = 0xff - i;
    const std::string chunk =
        testing::ReferenceChunk(manifest, {},
                                {{{0, 0}, blocks},
                                 {{1, 0}, {{0, 1}, {1, 0xffffffff}, {2, 0x80000000}}},
                                 {{2, 0}, map},
                                 {{3, 0}, {{0, 1}, {32768, 2}, {65535, 3}}},
                                 {{3, 1}, {{1999, 0x7fff}}}});
    std::string packed = PackChunk(chunk, manifest);
    return new Sample{std::move(manifest), chunk, std::move(packed)};
  }();
  return *sample;
}

// What can be read means exactly its bytes: its changes, encoded once more, are the same.
void CheckChunk(const std::string& chunk) {
  const Manifest& manifest = GetSample().manifest;
  const absl::StatusOr<ChunkView> view = ChunkView::Parse(chunk, manifest);
  if (!view.ok()) return;
  ChunkBuilder builder(manifest);
  TileChanges changes;
  for (const EncodedTile& tile : view->tiles()) {
    DecodeTile(tile, &changes);
    builder.AddTile(tile.place, changes.offsets, changes.values.data());
    std::vector<uint8_t> dense(size_t{tile.elements} * tile.element_bytes);
    XorTile(tile, dense.data());
  }
  WSTORE_CHECK(builder.Finish(view->header()) == chunk);
  const absl::StatusOr<std::string> unpacked = UnpackChunk(PackChunk(chunk, manifest), manifest);
  WSTORE_CHECK(unpacked.ok() && *unpacked == chunk);
}

void CheckPacked(const std::string& packed) {
  const Manifest& manifest = GetSample().manifest;
  const absl::StatusOr<std::string> chunk = UnpackChunk(packed, manifest);
  WSTORE_CHECK(chunk.ok() ? ChunkView::Parse(*chunk, manifest).ok()
                          : chunk.status().code() == absl::StatusCode::kDataLoss);
}

// `sample` with bytes replaced: each edit is a u16 place and a byte.
std::string Edit(std::string sample, const std::string& edits) {
  for (size_t i = 0; i + 3 <= edits.size(); i += 3) {
    const auto low = static_cast<uint8_t>(edits[i]);
    const auto high = static_cast<uint8_t>(edits[i + 1]);
    sample[(low | high << 8) % sample.size()] = edits[i + 2];
  }
  return sample;
}

std::string Sealed(std::string bytes) {
  if (bytes.size() >= 64) testing::Seal(&bytes);
  return bytes;
}

}  // namespace
}  // namespace wstore

// The first byte says whether the rest is a chunk or packed, and whether it is all of it or edits
// of the sample.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const wstore::Sample& sample = wstore::GetSample();
  switch (data[0] % 4) {
    case 0:
      wstore::CheckChunk(wstore::Sealed(input));
      break;
    case 1:
      wstore::CheckPacked(wstore::Sealed(input));
      break;
    case 2:
      wstore::CheckChunk(wstore::Sealed(wstore::Edit(sample.chunk, input)));
      break;
    default:
      wstore::CheckPacked(wstore::Sealed(wstore::Edit(sample.packed, input)));
  }
  return 0;
}
