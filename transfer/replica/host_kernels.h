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

  bool is_dense() const { return group->form == PlaceForm::kDense; }
  size_t size_bytes() const { return size_t{count} * element_bytes; }
  const uint8_t* values() const { return piece->values_of(*group) + size_t{first} * element_bytes; }
  absl::Span<const uint16_t> offsets() const {
    return piece->offsets_of(*group).subspan(first, count);
  }
};

// How far its first element is from its last; 0 for a dense one.
uint64_t SpreadBytes(const GroupSlice& slice);

// Writes the addresses of the elements of a slice that is not dense.
void Locate(const GroupSlice& slice, uint8_t** addresses);

// Copies the elements, one behind the other, to `packed`. With every second element that it
// touches, the cache line of one of `ahead` is asked for, so that memory is not idle while the
// processor works. `ahead` may be null, and the addresses in it anything.
void Gather(const GroupSlice& slice, uint8_t* const* ahead, uint8_t* packed);

// The same, and XORs the values into the elements in memory.
void GatherAndXor(const GroupSlice& slice, uint8_t* const* ahead, uint8_t* packed);

}  // namespace wstore
