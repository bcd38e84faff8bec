#include "transfer/codec/diff_tile.h"

#include <cstring>

#include "tests/support/random.h"
#include "tests/unit/codec/chunk_support.h"
#include "wstore/chunk.h"

namespace wstore {
namespace {

using namespace testing;  // NOLINT

// What DiffTile should find, element by element and byte by byte.
Changes ReferenceDiff(const uint8_t* a, const uint8_t* b, uint32_t elements, uint32_t width) {
  Changes changes;
  for (uint32_t i = 0; i < elements; ++i) {
    uint64_t bits = 0;
    for (uint32_t j = 0; j < width; ++j) {
      bits |= uint64_t{static_cast<uint8_t>(a[i * width + j] ^ b[i * width + j])} << (8 * j);
    }
    if (bits != 0) changes[i] = bits;
  }
  return changes;
}

using Kernel = uint32_t (*)(const DiffArguments&);

uint32_t Dispatched(const DiffArguments& arguments) {
  return DiffTile(arguments.old_tile, arguments.new_tile, arguments.elements,
                  arguments.element_bytes, arguments.offsets, arguments.values);
}

// Buffers of exactly the promised sizes, so that AddressSanitizer sees a step past them.
TileChanges Run(Kernel kernel, const uint8_t* a, const uint8_t* b, uint32_t elements,
                uint32_t width) {
  TileChanges found;
  found.offsets.resize(elements);
  found.values.resize(size_t{elements} * width);
  found.offsets.shrink_to_fit();
  found.values.shrink_to_fit();
  const uint32_t changed =
      kernel({a, b, elements, width, found.offsets.data(), found.values.data()});
  REQUIRE(changed <= elements);
  found.offsets.resize(changed);
  found.values.resize(size_t{changed} * width);
  return found;
}

std::vector<Kernel> Kernels() {
  std::vector<Kernel> kernels{DiffTileScalar, Dispatched};
  if (HasAvx2()) kernels.push_back(DiffTileAvx2);
  return kernels;
}

void CheckKernels(const uint8_t* a, const uint8_t* b, uint32_t elements, uint32_t width) {
  const TileChanges expected = ToColumns(ReferenceDiff(a, b, elements, width), width);
  for (const Kernel kernel : Kernels()) {
    const TileChanges found = Run(kernel, a, b, elements, width);
    REQUIRE(found.offsets == expected.offsets);
    REQUIRE(found.values == expected.values);
  }
}

TEST_CASE("every kernel finds the changes, whatever the width, length, density and alignment") {
  std::mt19937_64 random(TestSeed("diff kernels"));
  for (const uint32_t width : {1, 2, 4, 8}) {
    for (const uint32_t elements : {1, 7, 63, 64, 65, 127, 200, 1024, 4099}) {
      for (const uint32_t one_in : {1, 2, 9, 100, 100000}) {
        const size_t size = size_t{elements} * width;
        const size_t shift_a = random() % 9;
        const size_t shift_b = random() % 9;
        std::vector<uint8_t> a(size + shift_a);
        for (uint8_t& byte : a) byte = static_cast<uint8_t>(random());
        std::vector<uint8_t> b(size + shift_b);
        std::memcpy(b.data() + shift_b, a.data() + shift_a, size);
        for (uint32_t i = 0; i < elements; ++i) {
          if (random() % one_in == 0)
            b[shift_b + i * width + random() % width] ^= 1 + random() % 255;
        }
        CAPTURE(width, elements, one_in, shift_a, shift_b);
        CheckKernels(a.data() + shift_a, b.data() + shift_b, elements, width);
      }
    }
  }
}

TEST_CASE("a whole tile of changes has offsets up to 65535") {
  for (const uint32_t width : {1, 2, 4, 8}) {
    const std::vector<uint8_t> a(kTileElements * width, 0);
    const std::vector<uint8_t> b(kTileElements * width, 0x81);
    for (const Kernel kernel : Kernels()) {
      const TileChanges found = Run(kernel, a.data(), b.data(), kTileElements, width);
      REQUIRE(found.offsets.size() == kTileElements);
      for (uint32_t i = 0; i < kTileElements; ++i) {
        if (found.offsets[i] != i) FAIL("offset " << found.offsets[i] << " at " << i);
      }
      REQUIRE(found.values == b);
    }
  }
}

// The patch from one pair of bit patterns to another, through a chunk and back, forward and
// backward.
void CheckBits(Dtype dtype, const std::vector<std::pair<uint64_t, uint64_t>>& pairs) {
  const uint32_t width = StorageElementBytes(dtype);
  std::string old_bits;
  std::string new_bits;
  for (const auto& [before, after] : pairs) {
    PutLe(before, width, &old_bits);
    PutLe(after, width, &new_bits);
  }
  const std::vector<uint8_t> a(old_bits.begin(), old_bits.end());
  const std::vector<uint8_t> b(new_bits.begin(), new_bits.end());
  const auto elements = static_cast<uint32_t>(pairs.size());
  CheckKernels(a.data(), b.data(), elements, width);

  const TileChanges changes = Run(Dispatched, a.data(), b.data(), elements, width);
  // Packed types hold two elements in the byte that is their storage element.
  const uint64_t per_byte = DtypeBits(dtype) < 8 ? 8 / DtypeBits(dtype) : 1;
  const Manifest manifest = ManifestOf({{"t", dtype, {elements, per_byte}}});
  ChunkBuilder builder(manifest);
  builder.AddTile({0, 0}, changes.offsets, changes.values.data());
  const std::string chunk = builder.Finish(kTestHeader);
  const absl::StatusOr<ChunkView> view = ChunkView::Parse(chunk, manifest);
  REQUIRE_OK(view);
  REQUIRE(view->changed() == changes.offsets.size());
  std::vector<uint8_t> weights = a;
  XorTile(view->tiles()[0], weights.data());
  REQUIRE(weights == b);
  XorTile(view->tiles()[0], weights.data());
  REQUIRE(weights == a);
}

TEST_CASE("A05 NaN payloads, signed zeros and infinities are bits to the diff") {
  CheckBits(Dtype::kBF16, {{0x7fc0, 0x7fc1},    // NaN to another NaN
                           {0x7fc1, 0x7fc1},    // the same NaN: no change, though NaN != NaN
                           {0x0000, 0x8000},    // +0 to -0: a change, though they compare equal
                           {0x8000, 0x0000},    //
                           {0x3f80, 0x7f80},    // 1 to infinity
                           {0x7f80, 0xff80},    //
                           {0x7f81, 0x7fc1},    // signalling to quiet
                           {0x0001, 0x0000}});  // the smallest denormal to zero
  CheckBits(Dtype::kF16, {{0x7e00, 0x7e01}, {0x0000, 0x8000}, {0x3c00, 0x7c00}});
  CheckBits(Dtype::kF32, {{0x7fc00000, 0x7fc00001},
                          {0x7f800001, 0x7fc00001},
                          {0x7fc00000, 0x7fc00000},
                          {0x00000000, 0x80000000},
                          {0x3f800000, 0x7f800000}});
  CheckBits(Dtype::kF64, {{0x7ff8000000000000, 0x7ff8000000000001},
                          {0x7ff0000000000001, 0x7ff8000000000001},
                          {0x0000000000000000, 0x8000000000000000}});
  CheckBits(Dtype::kI8, {{0x80, 0x7f}, {0x00, 0xff}, {0x7f, 0x80}, {0x55, 0x55}});
  CheckBits(Dtype::kF8E4M3, {{0x7f, 0xff}, {0x00, 0x80}, {0x7e, 0x7f}, {0x7f, 0x7f}});
  CheckBits(Dtype::kF8E5M2, {{0x7d, 0x7e}, {0x00, 0x80}, {0x7c, 0xfc}, {0x7f, 0x7f}});
  CheckBits(Dtype::kF4, {{0x08, 0x80}, {0x0f, 0xf0}, {0x88, 0x00}});
  CheckBits(Dtype::kBool, {{0x00, 0x01}, {0x01, 0x02}, {0xff, 0x01}});
}

}  // namespace
}  // namespace wstore
