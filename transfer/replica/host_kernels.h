// The loops that touch scattered weights in host memory.
#pragma once

#include <cstdint>

#include "transfer/replica/staged_patch.h"

namespace wstore {

// Entries [first, first + count) of a group, in memory at `buffer`.
struct GroupSlice {
  const StagedPiece* piece = nullptr;
  const StagedGroup* group = nullptr;
  uint8_t* buffer = nullptr;
  uint32_t element_bytes = 1;
  uint32_t first = 0;
  uint32_t count = 0;

  const uint8_t* values() const { return piece->values_of(*group) + size_t{first} * element_bytes; }
  absl::Span<const uint16_t> offsets() const {
    return piece->offsets_of(*group).subspan(first, count);
  }
};

// Copies the elements, one behind the other, to `packed`.
void Gather(const GroupSlice& slice, uint8_t* packed);

// The same, and XORs the values into the elements in memory.
void GatherAndXor(const GroupSlice& slice, uint8_t* packed);

// Asks for the cache lines of the elements.
void Prefetch(const GroupSlice& slice);

}  // namespace wstore
