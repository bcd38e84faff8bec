#include "transfer/replica/host_kernels.h"

#include <cstring>

#include "common/bytes.h"

namespace wstore {
namespace {

// The address of place 0, which may lie before the buffer: places count modulo 2^64.
uint8_t* Base(const GroupSlice& slice) {
  return reinterpret_cast<uint8_t*>(reinterpret_cast<uintptr_t>(slice.buffer) +
                                    slice.group->local_base * slice.element_bytes);
}

// Calls touch(i) for each element.
template <typename Touch>
void ForEach(uint32_t count, uint8_t* const* ahead, const Touch& touch) {
  uint32_t i = 0;
  if (ahead != nullptr) {
    for (; i + 2 <= count; i += 2) {
      __builtin_prefetch(ahead[i / 2], 1, 3);
      touch(i);
      touch(i + 1);
    }
  }
  for (; i < count; ++i) touch(i);
}

template <typename Element, typename Place>
void GatherAt(const uint8_t* base, const Place* places, uint32_t count, uint8_t* const* ahead,
              uint8_t* packed) {
  ForEach(count, ahead, [&](uint32_t i) {
    const auto bits = LoadLe<Element>(base + size_t{places[i]} * sizeof(Element));
    StoreLe(bits, packed + i * sizeof(Element));
  });
}

template <typename Element, typename Place>
void GatherAndXorAt(uint8_t* base, const Place* places, const uint8_t* values, uint32_t count,
                    uint8_t* const* ahead, uint8_t* packed) {
  ForEach(count, ahead, [&](uint32_t i) {
    uint8_t* const at = base + size_t{places[i]} * sizeof(Element);
    const auto old = LoadLe<Element>(at);
    StoreLe(old, packed + i * sizeof(Element));
    StoreLe(static_cast<Element>(old ^ LoadLe<Element>(values + i * sizeof(Element))), at);
  });
}

void XorInto(const uint8_t* __restrict values, size_t size, uint8_t* __restrict to) {
  for (size_t i = 0; i < size; ++i) to[i] ^= values[i];
}

// Calls function(first place) for groups with a column of places.
template <typename Function>
void WithPlaces(const GroupSlice& slice, Function&& function) {
  const StagedGroup& group = *slice.group;
  switch (group.form) {
    case PlaceForm::kSame:
      return function(slice.piece->offsets.data() + group.offsets_at + slice.first);
    case PlaceForm::kNear:
      return function(slice.piece->near.data() + group.places_at + slice.first);
    case PlaceForm::kFar:
      return function(slice.piece->far.data() + group.places_at + slice.first);
    case PlaceForm::kDense:
      return;
  }
}

}  // namespace

uint64_t SpreadBytes(const GroupSlice& slice) {
  uint64_t spread = 0;
  WithPlaces(slice, [&](const auto* places) {
    const uint64_t first = places[0];
    const uint64_t last = places[slice.count - 1];
    spread = (last > first ? last - first : first - last) * slice.element_bytes;
  });
  return spread;
}

void Locate(const GroupSlice& slice, uint8_t** addresses) {
  uint8_t* const base = Base(slice);
  WithPlaces(slice, [&](const auto* places) {
    for (uint32_t i = 0; i < slice.count; ++i) {
      addresses[i] = base + size_t{places[i]} * slice.element_bytes;
    }
  });
}

void Gather(const GroupSlice& slice, uint8_t* const* ahead, uint8_t* packed) {
  if (slice.is_dense()) {
    std::memcpy(packed, Base(slice) + size_t{slice.first} * slice.element_bytes,
                slice.size_bytes());
    return;
  }
  WithElementType(slice.element_bytes, [&](auto zero) {
    WithPlaces(slice, [&](const auto* places) {
      GatherAt<decltype(zero)>(Base(slice), places, slice.count, ahead, packed);
    });
  });
}

void GatherAndXor(const GroupSlice& slice, uint8_t* const* ahead, uint8_t* packed) {
  const uint8_t* const values = slice.values();
  if (slice.is_dense()) {
    uint8_t* const at = Base(slice) + size_t{slice.first} * slice.element_bytes;
    std::memcpy(packed, at, slice.size_bytes());
    XorInto(values, slice.size_bytes(), at);
    return;
  }
  WithElementType(slice.element_bytes, [&](auto zero) {
    WithPlaces(slice, [&](const auto* places) {
      GatherAndXorAt<decltype(zero)>(Base(slice), places, values, slice.count, ahead, packed);
    });
  });
}

}  // namespace wstore
