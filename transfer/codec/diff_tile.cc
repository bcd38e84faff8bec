#include "transfer/codec/bytes.h"
#include "wstore/chunk.h"

namespace wstore {

uint32_t DiffTile(const uint8_t* old_tile, const uint8_t* new_tile, uint32_t elements,
                  uint32_t element_bytes, uint16_t* offsets, uint8_t* values) {
  uint32_t changed = 0;
  WithElementType(element_bytes, [&](auto zero) {
    using Element = decltype(zero);
    for (uint32_t i = 0; i < elements; ++i) {
      const size_t at = size_t{i} * sizeof(Element);
      const Element bits = LoadLe<Element>(old_tile + at) ^ LoadLe<Element>(new_tile + at);
      if (bits == 0) continue;
      offsets[changed] = static_cast<uint16_t>(i);
      StoreLe(bits, values + size_t{changed} * sizeof(Element));
      ++changed;
    }
  });
  return changed;
}

}  // namespace wstore
