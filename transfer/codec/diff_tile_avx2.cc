// Elements are compared 64 at a time into a mask. Each eight of them that hold a change are then
// moved together by one shuffle. So unchanged memory costs its reading, and no branch depends on a
// single element.
#include "common/bytes.h"
#include "common/check.h"
#include "transfer/codec/bit_table.h"
#include "transfer/codec/diff_tile.h"

#if defined(__x86_64__)
#include <immintrin.h>

// For these functions alone: the rest of the program must run on any x86-64.
#define WSTORE_AVX2 __attribute__((target("avx2,bmi,popcnt")))

namespace wstore {
namespace {

constexpr uint32_t kGroupElements = 64;

WSTORE_AVX2 inline __m256i Load(const uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

template <typename Element>
WSTORE_AVX2 inline __m256i Equal(const uint8_t* a, const uint8_t* b) {
  if constexpr (sizeof(Element) == 1) return _mm256_cmpeq_epi8(Load(a), Load(b));
  if constexpr (sizeof(Element) == 2) return _mm256_cmpeq_epi16(Load(a), Load(b));
  if constexpr (sizeof(Element) == 4) return _mm256_cmpeq_epi32(Load(a), Load(b));
  return _mm256_cmpeq_epi64(Load(a), Load(b));
}

// A bit for each of 64 elements, set where they are equal.
template <typename Element>
WSTORE_AVX2 inline uint64_t EqualMask(const uint8_t* a, const uint8_t* b) {
  uint64_t mask = 0;
  if constexpr (sizeof(Element) == 1) {
    for (uint32_t i = 0; i < 64; i += 32) {
      const auto bits = static_cast<uint32_t>(_mm256_movemask_epi8(Equal<Element>(a + i, b + i)));
      mask |= uint64_t{bits} << i;
    }
  } else if constexpr (sizeof(Element) == 2) {
    for (uint32_t i = 0; i < 64; i += 32) {
      const __m256i low = Equal<Element>(a + 2 * i, b + 2 * i);
      const __m256i high = Equal<Element>(a + 2 * i + 32, b + 2 * i + 32);
      // Packing works within each half of a register; the permutation puts the quarters in order.
      const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
      mask |= uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(packed))} << i;
    }
  } else if constexpr (sizeof(Element) == 4) {
    for (uint32_t i = 0; i < 64; i += 8) {
      const __m256 equal = _mm256_castsi256_ps(Equal<Element>(a + 4 * i, b + 4 * i));
      mask |= uint64_t{static_cast<uint32_t>(_mm256_movemask_ps(equal))} << i;
    }
  } else {
    for (uint32_t i = 0; i < 64; i += 4) {
      const __m256d equal = _mm256_castsi256_pd(Equal<Element>(a + 8 * i, b + 8 * i));
      mask |= uint64_t{static_cast<uint32_t>(_mm256_movemask_pd(equal))} << i;
    }
  }
  return mask;
}

// Writes the XOR of those of eight elements whose bits are set in `mask`, one after the other. Room
// for eight is needed whatever the mask.
template <typename Element>
WSTORE_AVX2 inline void Compress(const uint8_t* a, const uint8_t* b, uint32_t mask, uint8_t* out) {
  const __m128i row =
      _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kBitTable.bits[mask].data()));
  if constexpr (sizeof(Element) == 1) {
    const __m128i bits = _mm_cvtsi64_si128(LoadLe<int64_t>(a) ^ LoadLe<int64_t>(b));
    StoreLe<int64_t>(_mm_cvtsi128_si64(_mm_shuffle_epi8(bits, row)), out);
  } else if constexpr (sizeof(Element) == 2) {
    const __m128i bits = _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a)),
                                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)));
    const __m128i low = _mm_add_epi8(row, row);
    const __m128i high = _mm_add_epi8(low, _mm_set1_epi8(1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                     _mm_shuffle_epi8(bits, _mm_unpacklo_epi8(low, high)));
  } else if constexpr (sizeof(Element) == 4) {
    const __m256i bits = _mm256_xor_si256(Load(a), Load(b));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                        _mm256_permutevar8x32_epi32(bits, _mm256_cvtepu8_epi32(row)));
  } else {
    // Four elements at a time, each as two 32-bit words.
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t nibble = mask >> (4 * half) & 15;
      const auto words = LoadLe<int32_t>(kBitTable.bits[nibble].data());
      const __m256i low = _mm256_slli_epi64(_mm256_cvtepu8_epi64(_mm_cvtsi32_si128(words)), 1);
      const __m256i high = _mm256_slli_epi64(_mm256_add_epi64(low, _mm256_set1_epi64x(1)), 32);
      const __m256i bits = _mm256_xor_si256(Load(a + 32 * half), Load(b + 32 * half));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                          _mm256_permutevar8x32_epi32(bits, _mm256_or_si256(low, high)));
      out += 8 * kBitTable.count[nibble];
    }
  }
}

template <typename Element>
WSTORE_AVX2 uint32_t Diff(const DiffArguments& arguments) {
  constexpr size_t kWidth = sizeof(Element);
  uint32_t changed = 0;
  uint32_t group = 0;
  for (; group + kGroupElements <= arguments.elements; group += kGroupElements) {
    const uint8_t* const a = arguments.old_tile + group * kWidth;
    const uint8_t* const b = arguments.new_tile + group * kWidth;
    uint64_t mask = ~EqualMask<Element>(a, b);
    while (mask != 0) {
      const auto shift = static_cast<uint32_t>(_tzcnt_u64(mask)) & 56;
      const auto byte = static_cast<uint32_t>(mask >> shift & 0xff);
      // No more than `group + shift` changes lie before, so eight always fit.
      Compress<Element>(a + shift * kWidth, b + shift * kWidth, byte,
                        arguments.values + changed * kWidth);
      const __m128i row =
          _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kBitTable.bits[byte].data()));
      const __m128i base = _mm_set1_epi16(static_cast<int16_t>(group + shift));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(arguments.offsets + changed),
                       _mm_add_epi16(_mm_cvtepu8_epi16(row), base));
      changed += static_cast<uint32_t>(_mm_popcnt_u32(byte));
      mask &= ~(uint64_t{0xff} << shift);
    }
  }
  for (uint32_t i = group; i < arguments.elements; ++i) {
    const auto bits = static_cast<Element>(LoadLe<Element>(arguments.old_tile + i * kWidth) ^
                                           LoadLe<Element>(arguments.new_tile + i * kWidth));
    if (bits == 0) continue;
    arguments.offsets[changed] = static_cast<uint16_t>(i);
    StoreLe(bits, arguments.values + changed * kWidth);
    ++changed;
  }
  return changed;
}

}  // namespace

bool HasAvx2() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("bmi") != 0 &&
         __builtin_cpu_supports("popcnt") != 0;
}

uint32_t DiffTileAvx2(const DiffArguments& arguments) {
  switch (arguments.element_bytes) {
    case 1:
      return Diff<uint8_t>(arguments);
    case 2:
      return Diff<uint16_t>(arguments);
    case 4:
      return Diff<uint32_t>(arguments);
    default:
      return Diff<uint64_t>(arguments);
  }
}

}  // namespace wstore

#else

namespace wstore {

bool HasAvx2() { return false; }
uint32_t DiffTileAvx2(const DiffArguments&) {
  WSTORE_CHECK(false);
  return 0;
}

}  // namespace wstore

#endif
