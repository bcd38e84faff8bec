#include "transfer/replica/host_kernels.h"

#include <cstring>

#include "common/bytes.h"

namespace wstore {
namespace {

template <typename Element>
Element Load(const uint8_t* from) {
  return LoadLe<Element>(from);
}

// The address of place 0, which may lie before the buffer: places count modulo 2^64.
uint8_t* Base(const GroupSlice& slice) {
  return reinterpret_cast<uint8_t*>(reinterpret_cast<uintptr_t>(slice.buffer) +
                                    slice.group->local_base * slice.element_bytes);
}

template <typename Element, typename Place>
void GatherAt(const uint8_t* base, const Place* places, uint32_t count, uint8_t* packed) {
  for (uint32_t i = 0; i < count; ++i) {
    StoreLe(Load<Element>(base + size_t{places[i]} * sizeof(Element)),
            packed + i * sizeof(Element));
  }
}

template <typename Element, typename Place>
void GatherAndXorAt(uint8_t* base, const Place* places, const uint8_t* values, uint32_t count,
                    uint8_t* packed) {
  for (uint32_t i = 0; i < count; ++i) {
    uint8_t* const at = base + size_t{places[i]} * sizeof(Element);
    const Element old = Load<Element>(at);
    StoreLe(old, packed + i * sizeof(Element));
    StoreLe(static_cast<Element>(old ^ Load<Element>(values + i * sizeof(Element))), at);
  }
}

void XorInto(const uint8_t* __restrict values, size_t size, uint8_t* __restrict to) {
  for (size_t i = 0; i < size; ++i) to[i] ^= values[i];
}

// Calls function(zero of the element type, base, first place) for groups with a column of places.
template <typename Function>
void WithPlaces(const GroupSlice& slice, Function&& function) {
  const StagedGroup& group = *slice.group;
  WithElementType(slice.element_bytes, [&](auto zero) {
    uint8_t* const base = Base(slice);
    switch (group.form) {
      case PlaceForm::kSame:
        return function(zero, base, slice.piece->offsets.data() + group.offsets_at + slice.first);
      case PlaceForm::kNear:
        return function(zero, base, slice.piece->near.data() + group.places_at + slice.first);
      case PlaceForm::kFar:
        return function(zero, base, slice.piece->far.data() + group.places_at + slice.first);
      case PlaceForm::kDense:
        return;
    }
  });
}

}  // namespace

void Gather(const GroupSlice& slice, uint8_t* packed) {
  if (slice.group->form == PlaceForm::kDense) {
    const size_t width = slice.element_bytes;
    std::memcpy(packed, Base(slice) + slice.first * width, slice.count * width);
    return;
  }
  WithPlaces(slice, [&](auto zero, const uint8_t* base, const auto* places) {
    GatherAt<decltype(zero)>(base, places, slice.count, packed);
  });
}

void GatherAndXor(const GroupSlice& slice, uint8_t* packed) {
  const uint8_t* const values = slice.values();
  if (slice.group->form == PlaceForm::kDense) {
    const size_t size = size_t{slice.count} * slice.element_bytes;
    uint8_t* const base = Base(slice) + size_t{slice.first} * slice.element_bytes;
    std::memcpy(packed, base, size);
    XorInto(values, size, base);
    return;
  }
  WithPlaces(slice, [&](auto zero, uint8_t* base, const auto* places) {
    GatherAndXorAt<decltype(zero)>(base, places, values, slice.count, packed);
  });
}

void Prefetch(const GroupSlice& slice) {
  // Dense stretches are read in order, which the hardware sees.
  WithPlaces(slice, [&](auto zero, const uint8_t* base, const auto* places) {
    for (uint32_t i = 0; i < slice.count; ++i) {
      __builtin_prefetch(base + size_t{places[i]} * sizeof(zero), 1, 3);
    }
  });
}

}  // namespace wstore
