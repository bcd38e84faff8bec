#include "common/fingerprint_kernels.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace wstore::internal {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are read as they lie in memory");

void DotsPortable(const BlockMultipliers& b, const uint8_t* data, size_t blocks,
                  std::array<uint64_t, 2>* dots) {
  for (size_t block = 0; block < blocks; ++block, data += kBlockBytes) {
    std::array<uint64_t, 2> dot{};
    for (size_t i = 0; i < kBlockWords; ++i) {
      uint32_t word;
      std::memcpy(&word, data + 4 * i, sizeof(word));
      dot[0] += b[0][i] * word;
      dot[1] += b[1][i] * word;
    }
    dots[block] = dot;
  }
}

#if defined(__x86_64__)

// AVX2 multiplies 32 x 32 bits. So B is split: word x B = word x low half + (word x high half) x
// 2^32. The first product needs 64 bits, four to a register. Of the second only the low 32 bits
// count, so eight go into a register and their sum is shifted once per block.
namespace {

using HighHalves = uint32_t[2][kBlockWords];

struct Sums {
  __m256i low;   // four of 64 bits
  __m256i high;  // eight of 32 bits
};

[[gnu::target("avx2"), gnu::always_inline]] inline __m256i Load(const void* data) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(data));
}

// Four words, each widened to 64 bits.
[[gnu::target("avx2"), gnu::always_inline]] inline __m256i LoadWide(const uint8_t* data) {
  return _mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data)));
}

[[gnu::target("avx2"), gnu::always_inline]] inline uint64_t Total(const Sums& sums) {
  const __m256i even = _mm256_slli_epi64(sums.high, 32);
  const __m256i odd = _mm256_slli_epi64(_mm256_srli_epi64(sums.high, 32), 32);
  const __m256i four = _mm256_add_epi64(sums.low, _mm256_add_epi64(even, odd));
  const __m128i two =
      _mm_add_epi64(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(two)) +
         static_cast<uint64_t>(_mm_extract_epi64(two, 1));
}

// The same without high halves at hand: they are picked out of B, which pays for a few blocks.
[[gnu::target("avx2")]] std::array<uint64_t, 2> DotOfFewAvx2(const BlockMultipliers& b,
                                                             const uint8_t* block) {
  const __m256i zero = _mm256_setzero_si256();
  Sums sums[2] = {{zero, zero}, {zero, zero}};
  for (size_t i = 0; i < kBlockWords; i += 8) {
    // In the order in which the shuffle below gives the high halves: 0, 1, 4, 5, 2, 3, 6, 7.
    const __m256i words = _mm256_permute4x64_epi64(Load(block + 4 * i), 0xD8);
    const __m256i wide0 = LoadWide(block + 4 * i);
    const __m256i wide1 = LoadWide(block + 4 * i + 16);
    for (int lane = 0; lane < 2; ++lane) {
      const __m256i b0 = Load(&b[lane][i]);
      const __m256i b1 = Load(&b[lane][i + 4]);
      __m256i& low = sums[lane].low;
      low = _mm256_add_epi64(low, _mm256_mul_epu32(wide0, b0));
      low = _mm256_add_epi64(low, _mm256_mul_epu32(wide1, b1));
      const __m256i high = _mm256_castps_si256(
          _mm256_shuffle_ps(_mm256_castsi256_ps(b0), _mm256_castsi256_ps(b1), 0xDD));
      sums[lane].high = _mm256_add_epi32(sums[lane].high, _mm256_mullo_epi32(words, high));
    }
  }
  return {Total(sums[0]), Total(sums[1])};
}

[[gnu::target("avx2")]] std::array<uint64_t, 2> DotAvx2(const BlockMultipliers& b,
                                                        const HighHalves& high,
                                                        const uint8_t* block) {
  const __m256i zero = _mm256_setzero_si256();
  Sums sums[2] = {{zero, zero}, {zero, zero}};
  for (size_t i = 0; i < kBlockWords; i += 8) {
    const __m256i words = Load(block + 4 * i);
    const __m256i wide0 = LoadWide(block + 4 * i);
    const __m256i wide1 = LoadWide(block + 4 * i + 16);
    for (int lane = 0; lane < 2; ++lane) {
      __m256i& low = sums[lane].low;
      low = _mm256_add_epi64(low, _mm256_mul_epu32(wide0, Load(&b[lane][i])));
      low = _mm256_add_epi64(low, _mm256_mul_epu32(wide1, Load(&b[lane][i + 4])));
      const __m256i product = _mm256_mullo_epi32(words, Load(&high[lane][i]));
      sums[lane].high = _mm256_add_epi32(sums[lane].high, product);
    }
  }
  return {Total(sums[0]), Total(sums[1])};
}

}  // namespace

void DotsAvx2(const BlockMultipliers& b, const uint8_t* data, size_t blocks,
              std::array<uint64_t, 2>* dots) {
  constexpr size_t kFewBlocks = 4;
  if (blocks <= kFewBlocks) {
    for (size_t i = 0; i < blocks; ++i) dots[i] = DotOfFewAvx2(b, data + i * kBlockBytes);
    return;
  }
  alignas(32) HighHalves high;
  for (int lane = 0; lane < 2; ++lane) {
    for (size_t i = 0; i < kBlockWords; ++i)
      high[lane][i] = static_cast<uint32_t>(b[lane][i] >> 32);
  }
  for (size_t i = 0; i < blocks; ++i) dots[i] = DotAvx2(b, high, data + i * kBlockBytes);
}

DotsFunction* Dots() {
  static DotsFunction* const fastest = __builtin_cpu_supports("avx2") ? DotsAvx2 : DotsPortable;
  return fastest;
}

#else

DotsFunction* Dots() { return DotsPortable; }

#endif

}  // namespace wstore::internal
