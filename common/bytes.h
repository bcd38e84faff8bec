// Little-endian numbers in unaligned bytes.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace wstore {

// Columns of offsets and values are used where they lie, so the host must have the order of the
// disk.
static_assert(std::endian::native == std::endian::little);

template <typename T>
inline T LoadLe(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <typename T>
inline void StoreLe(T value, void* to) {
  std::memcpy(to, &value, sizeof(value));
}

inline constexpr uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// Calls `function` with a zero of the unsigned type that is `element_bytes` wide, which makes the
// loop inside it a tight one. Any other width is a broken invariant and does nothing.
template <typename Function>
inline void WithElementType(uint32_t element_bytes, Function&& function) {
  switch (element_bytes) {
    case 1:
      return function(uint8_t{0});
    case 2:
      return function(uint16_t{0});
    case 4:
      return function(uint32_t{0});
    case 8:
      return function(uint64_t{0});
  }
}

}  // namespace wstore
