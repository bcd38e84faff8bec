// The kernels behind DiffTile, each alone so that a test can compare them.
#pragma once

#include <cstdint>

namespace wstore {

// Arguments of DiffTile. Pointers need no alignment.
struct DiffArguments {
  const uint8_t* old_tile;
  const uint8_t* new_tile;
  uint32_t elements;
  uint32_t element_bytes;
  uint16_t* offsets;
  uint8_t* values;
};

// Runs everywhere.
uint32_t DiffTileScalar(const DiffArguments& arguments);

// Whether this CPU can run DiffTileAvx2.
bool HasAvx2();
uint32_t DiffTileAvx2(const DiffArguments& arguments);

}  // namespace wstore
