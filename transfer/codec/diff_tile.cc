#include "transfer/codec/diff_tile.h"

#include "common/bytes.h"
#include "wstore/chunk.h"

namespace wstore {
namespace {

template <typename Element>
uint32_t Diff(const DiffArguments& arguments) {
  uint32_t changed = 0;
  for (uint32_t i = 0; i < arguments.elements; ++i) {
    const size_t at = size_t{i} * sizeof(Element);
    const Element bits =
        LoadLe<Element>(arguments.old_tile + at) ^ LoadLe<Element>(arguments.new_tile + at);
    if (bits == 0) continue;
    arguments.offsets[changed] = static_cast<uint16_t>(i);
    StoreLe(bits, arguments.values + size_t{changed} * sizeof(Element));
    ++changed;
  }
  return changed;
}

}  // namespace

uint32_t DiffTileScalar(const DiffArguments& arguments) {
  uint32_t changed = 0;
  WithElementType(arguments.element_bytes,
                  [&](auto zero) { changed = Diff<decltype(zero)>(arguments); });
  return changed;
}

uint32_t DiffTile(const uint8_t* old_tile, const uint8_t* new_tile, uint32_t elements,
                  uint32_t element_bytes, uint16_t* offsets, uint8_t* values) {
  static const bool has_avx2 = HasAvx2();
  const DiffArguments arguments{old_tile, new_tile, elements, element_bytes, offsets, values};
  return has_avx2 ? DiffTileAvx2(arguments) : DiffTileScalar(arguments);
}

}  // namespace wstore
