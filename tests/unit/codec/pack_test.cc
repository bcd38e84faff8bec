#include <cmath>

#include "tests/support/random.h"
#include "tests/unit/codec/chunk_support.h"
#include "transfer/codec/gap_code.h"
#include "wstore/chunk.h"
#include "wstore/packed_places.h"

namespace wstore {
namespace {

using namespace testing;  // NOLINT

// Round trips of all widths, lengths and forms are in chunk_test.cc.

TEST_CASE("distances of every class survive the gap code") {
  const std::vector<uint16_t> offsets{0, 1, 193, 386, 16706, 33026, 33027, 65535};
  // Distances: 0, 0, 191, 192, 16319, 16319, 0, 32507.
  std::vector<uint8_t> gaps;
  std::vector<uint8_t> extras;
  AppendGaps(offsets, &gaps, &extras);
  REQUIRE(gaps == std::vector<uint8_t>{0, 0, 191, 192, 254, 254, 0, 255});
  REQUIRE(extras == std::vector<uint8_t>{0, 255, 255, 0xfb, 0x7e});
  const size_t size = extras.size();
  extras.resize(size + kGapSlackBytes);
  std::vector<uint16_t> decoded(offsets.size());
  const auto decode = [&](size_t extra_bytes, uint32_t elements) {
    return DecodeGaps(gaps, absl::MakeConstSpan(extras.data(), extra_bytes), elements,
                      decoded.data());
  };
  REQUIRE(decode(size, kTileElements) == size);
  REQUIRE(decoded == offsets);
  REQUIRE_FALSE(decode(size - 1, kTileElements).has_value());
  REQUIRE_FALSE(decode(0, kTileElements).has_value());
  REQUIRE_FALSE(decode(size, 65535).has_value());
}

TEST_CASE("every pair of offsets survives the gap code") {
  std::vector<uint8_t> gaps;
  std::vector<uint8_t> extras;
  for (uint32_t distance = 0; distance < kTileElements; ++distance) {
    const std::vector<uint16_t> offsets{static_cast<uint16_t>(distance)};
    gaps.clear();
    extras.clear();
    AppendGaps(offsets, &gaps, &extras);
    REQUIRE(extras.size() == (distance < 192 ? 0 : distance < 16320 ? 1 : 2));
    const size_t size = extras.size();
    extras.resize(size + kGapSlackBytes);
    uint16_t decoded;
    REQUIRE(DecodeGaps(gaps, absl::MakeConstSpan(extras.data(), size), kTileElements, &decoded) ==
            size);
    REQUIRE(decoded == distance);
  }
}

// The bits of a float as bf16.
uint16_t Bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x8000) >> 16);
}

TEST_CASE("one percent of bf16 moved by one unit packs to 1.45 bytes a change") {
  std::mt19937_64 random(TestSeed("packed bytes per change"));
  constexpr uint32_t kTiles = 60;
  const Manifest manifest = ManifestOf({{"t", Dtype::kBF16, {kTileElements * kTiles}}});
  std::normal_distribution<float> weight(0, 0.02f);
  std::geometric_distribution<uint32_t> distance(0.01);
  ChunkBuilder builder(manifest);
  uint64_t changed = 0;
  for (uint32_t tile = 0; tile < kTiles; ++tile) {
    Changes changes;
    for (uint32_t at = distance(random); at < kTileElements; at += 1 + distance(random)) {
      const uint16_t bits = Bf16(weight(random));
      changes[at] = bits ^ static_cast<uint16_t>(random() % 2 == 0 ? bits + 1 : bits - 1);
    }
    AddChanges(manifest, {{0, tile}, changes}, &builder);
    changed += changes.size();
  }
  const std::string chunk = builder.Finish(kTestHeader);
  const std::string packed = PackChunk(chunk, manifest);
  REQUIRE(static_cast<double>(packed.size()) <= 1.45 * static_cast<double>(changed));
  REQUIRE(2 * packed.size() < chunk.size());
  const absl::StatusOr<std::string> unpacked = UnpackChunk(packed, manifest);
  REQUIRE_OK(unpacked);
  REQUIRE(*unpacked == chunk);
}

TEST_CASE("any damage to a packed chunk is data loss") {
  const Sample sample;
  const std::string packed = PackChunk(sample.chunk, sample.manifest);
  REQUIRE(*UnpackChunk(packed, sample.manifest) == sample.chunk);
  std::vector<TilePlace> places;
  const absl::StatusOr<ChunkView> view = ChunkView::Parse(sample.chunk, sample.manifest);
  REQUIRE_OK(view);
  for (const EncodedTile& tile : view->tiles()) places.push_back(tile.place);
  REQUIRE(*PackedTilePlaces(packed, sample.manifest) == places);
  for (size_t at = 0; at < packed.size(); ++at) {
    CAPTURE(at);
    for (const int bit : {0, 4, 7}) {
      std::string flipped = packed;
      flipped[at] = static_cast<char>(flipped[at] ^ 1 << bit);
      REQUIRE_ERROR(UnpackChunk(flipped, sample.manifest), absl::StatusCode::kDataLoss, "checksum");
      REQUIRE_ERROR(PackedTilePlaces(flipped, sample.manifest), absl::StatusCode::kDataLoss,
                    "checksum");
    }
    REQUIRE_ERROR(UnpackChunk(packed.substr(0, at), sample.manifest), absl::StatusCode::kDataLoss,
                  "packed chunk");
  }
  REQUIRE_ERROR(UnpackChunk(packed + '\0', sample.manifest), absl::StatusCode::kDataLoss,
                "checksum");
  REQUIRE_ERROR(UnpackChunk(sample.chunk, sample.manifest), absl::StatusCode::kDataLoss, "magic");
  REQUIRE_ERROR(UnpackChunk(packed, ManifestOf({{"blocks", Dtype::kBF16, {600}}})),
                absl::StatusCode::kDataLoss, "out of range");
}

// Data loss, or the chunk that was packed; the checksum of that chunk is carried along.
void RequireLostOrSame(const Sample& sample, std::string packed) {
  if (packed.size() >= 64) Seal(&packed);
  const std::vector<char> bytes(packed.begin(), packed.end());
  const absl::StatusOr<std::string> chunk =
      UnpackChunk(std::string_view(bytes.data(), bytes.size()), sample.manifest);
  if (chunk.ok()) {
    REQUIRE(*chunk == sample.chunk);
  } else {
    REQUIRE(chunk.status().code() == absl::StatusCode::kDataLoss);
  }
}

TEST_CASE("no byte of a packed chunk under a valid checksum is misread") {
  const Sample sample;
  const std::string packed = PackChunk(sample.chunk, sample.manifest);
  for (size_t at = 0; at < packed.size(); ++at) {
    CAPTURE(at);
    for (const int byte : {0x00, 0x01, 0x0f, 0x7f, 0x80, 0xff}) {
      std::string changed = packed;
      changed[at] = static_cast<char>(byte);
      RequireLostOrSame(sample, changed);
    }
    RequireLostOrSame(sample, packed.substr(0, at));
    std::string longer = packed;
    longer.insert(at, 1, '\0');
    RequireLostOrSame(sample, longer);
  }
}

TEST_CASE("no handful of bytes of a packed chunk under a valid checksum is misread") {
  std::mt19937_64 random(TestSeed("damaged packed chunks"));
  const Sample sample;
  const std::string packed = PackChunk(sample.chunk, sample.manifest);
  for (int round = 0; round < 5000; ++round) {
    std::string changed = packed;
    for (uint64_t i = random() % 4 + 1; i > 0; --i) {
      changed[24 + random() % (changed.size() - 24)] =
          static_cast<char>(random() % 2 == 0 ? random() : random() % 4);
    }
    RequireLostOrSame(sample, changed);
  }
}

}  // namespace
}  // namespace wstore
