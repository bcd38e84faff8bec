// XXH3-64 with seed 0 and the default secret, as https://xxhash.com/doc/v0.8.2 specifies it, over
// streams of whole 8-byte words: sums of single KiB anywhere in a stream, which many warps can
// compute, and their end, which takes them in order.
#pragma once

#include <cstdint>

#include "transfer/cuda/device_math.cuh"

namespace wstore::cuda {

__device__ constexpr uint64_t kXxhPrime32[3] = {0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D};
__device__ constexpr uint64_t kXxhPrime64[5] = {0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F,
                                                0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
                                                0x27D4EB2F165667C5};
// Words of a KiB, and of one of its stripes.
inline constexpr uint32_t kXxhBlockWords = 128;
inline constexpr uint32_t kXxhStripeWords = 8;

__device__ constexpr uint64_t kXxhSecret[24] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
    0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
    0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
    0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
    0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af};

// Eight bytes of the secret from any place.
__device__ __forceinline__ uint64_t XxhSecretAt(uint32_t byte) {
  const uint32_t bits = byte % 8 * 8;
  const uint64_t low = kXxhSecret[byte / 8] >> bits;
  return bits == 0 ? low : low | kXxhSecret[byte / 8 + 1] << (64 - bits);
}

__device__ __forceinline__ uint64_t XxhFold(uint64_t a, uint64_t b) {
  return a * b ^ __umul64hi(a, b);
}

__device__ __forceinline__ uint64_t XxhAvalanche(uint64_t hash) {
  hash ^= hash >> 37;
  hash *= 0x165667919E3779F9;
  return hash ^ hash >> 32;
}

// What a word at place `word` of its KiB adds to the accumulator of its own number (mod 8); to that
// of number ^ 1 it adds itself.
__device__ __forceinline__ uint64_t XxhProduct(uint64_t value, uint32_t word) {
  const uint64_t keyed = value ^ kXxhSecret[word / kXxhStripeWords + word % kXxhStripeWords];
  return (keyed & UINT32_MAX) * (keyed >> 32);
}

__device__ __forceinline__ uint64_t XxhStart(uint32_t lane) {
  constexpr uint64_t kStart[8] = {kXxhPrime32[2], kXxhPrime64[0], kXxhPrime64[1], kXxhPrime64[2],
                                  kXxhPrime64[3], kXxhPrime32[1], kXxhPrime64[4], kXxhPrime32[0]};
  uint64_t start = 0;
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) start = lane == i ? kStart[i] : start;
  return start;
}

// One step of the chain: the sum is scrambled, (sum ^ sum >> 47 ^ secret) x prime, and the sum of
// the next KiB is added. The chain waits for nothing but itself, so its links are few: two for the
// lower half, and a multiplication that adds everything else.
__device__ __forceinline__ uint64_t XxhStep(uint64_t sum, uint64_t secret, uint64_t next) {
  const uint32_t high = static_cast<uint32_t>(sum >> 32);
  const uint32_t low = static_cast<uint32_t>(sum) ^ high >> 15 ^ static_cast<uint32_t>(secret);
  constexpr auto kPrime = static_cast<uint32_t>(kXxhPrime32[0]);
  const uint32_t upper =
      (high ^ static_cast<uint32_t>(secret >> 32)) * kPrime + static_cast<uint32_t>(next >> 32);
#if defined(__CUDA_ARCH__)
  // Volatile: the compiler would take the sum apart, and loads out of their order.
  uint32_t lower_sum;
  uint32_t upper_sum;
  asm volatile(
      "mad.lo.cc.u32 %0, %2, %3, %4;\n"
      "madc.hi.u32 %1, %2, %3, %5;"
      : "=r"(lower_sum), "=r"(upper_sum)
      : "r"(low), "r"(kPrime), "r"(static_cast<uint32_t>(next)), "r"(upper));
  return uint64_t{upper_sum} << 32 | lower_sum;
#else
  return uint64_t{low} * kPrime + (uint64_t{upper} << 32 | static_cast<uint32_t>(next));
#endif
}

// Words 2i and 2i + 1 of a stream, mixed.
template <typename WordAt>
__device__ uint64_t XxhMix(const WordAt& word_at, uint32_t byte, uint32_t secret_byte) {
  return XxhFold(word_at(byte / 8) ^ XxhSecretAt(secret_byte),
                 word_at(byte / 8 + 1) ^ XxhSecretAt(secret_byte + 8));
}

// The hash of a stream of 24 to 240 bytes, a multiple of 8. word_at(i): its words.
template <typename WordAt>
__device__ uint64_t XxhShort(const WordAt& word_at, uint32_t size) {
  uint64_t sum = size * kXxhPrime64[0];
  if (size <= 128) {
    for (uint32_t i = 0; i < (size + 31) / 32; ++i) {
      sum += XxhMix(word_at, 16 * i, 32 * i) + XxhMix(word_at, size - 16 * (i + 1), 32 * i + 16);
    }
    return XxhAvalanche(sum);
  }
  for (uint32_t i = 0; i < 8; ++i) sum += XxhMix(word_at, 16 * i, 16 * i);
  sum = XxhAvalanche(sum);
  for (uint32_t i = 8; i < size / 16; ++i) sum += XxhMix(word_at, 16 * i, 16 * (i - 8) + 3);
  return XxhAvalanche(sum + XxhMix(word_at, size - 16, 119));
}

}  // namespace wstore::cuda
