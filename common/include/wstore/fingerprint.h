// The fingerprint: an additive sum over a tensor's bits that detects corruption at memory speed and
// adds up over parts, over tensors and over changes. docs/formats/fingerprint.md has the
// definition, the bound and test vectors.
//
//   F(T) = sum over 32-bit words w of A(T, w / 128) x B(w mod 128) x word     (two lanes, mod 2^64)
//
// A and B are odd and come from Philox2x64-10 under keys derived by SHA-256 from the base digest
// (and for A the tensor's name). Tensor bytes are little-endian words, zero-padded at the end; an
// element within a word counts as bits x 2^(8 x its byte offset), so parts of a tensor may be
// summed apart. It is no defence against an adversary: digests are. It says nothing of a tensor's
// length.
//
// All functions are pure and thread-safe.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "wstore/digest.h"

namespace wstore {

struct Fingerprint {
  std::array<uint64_t, 2> lanes{};

  Fingerprint& operator+=(const Fingerprint& other);
  Fingerprint& operator-=(const Fingerprint& other);
  friend Fingerprint operator+(Fingerprint a, const Fingerprint& b) { return a += b; }
  friend Fingerprint operator-(Fingerprint a, const Fingerprint& b) { return a -= b; }
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

// The parts of a tensor's sum that the elements of a patch make up. F(new) = F(old) + change().
struct TouchedSums {
  Fingerprint before;
  Fingerprint after;

  Fingerprint change() const { return after - before; }
  TouchedSums& operator+=(const TouchedSums& other);
  friend bool operator==(const TouchedSums&, const TouchedSums&) = default;
};

// 32 lower-case hexadecimal digits, lane 0 first.
std::string ToHex(const Fingerprint& fingerprint);

// The multipliers that all tensors of a store share. 2 KiB; make it once per store.
class FingerprintKey {
 public:
  // `base_digest`: the digest of the store's original base, which outlives squashing and mirroring.
  explicit FingerprintKey(const Digest& base_digest);

  const Digest& base_digest() const { return base_digest_; }
  // B: 128 odd numbers for each lane.
  const std::array<std::array<uint64_t, 128>, 2>& b() const { return b_; }

 private:
  Digest base_digest_;
  std::array<std::array<uint64_t, 128>, 2> b_;
};

// Sums one tensor. Holds a pointer to `key`, which must outlive it.
class TensorFingerprinter {
 public:
  TensorFingerprinter(const FingerprintKey& key, std::string_view tensor_name);

  // The sum over bytes [offset_bytes, offset_bytes + data.size()) of the tensor. Any offset, size
  // and alignment are right; ranges of many whole blocks of 512 bytes are fast. The sums of the
  // parts of a tensor add up to that of the whole however it is cut, even inside a word.
  Fingerprint Sum(uint64_t offset_bytes, absl::Span<const uint8_t> data) const;

  // The sums over scattered storage elements of one tile, before and after they change: over
  // e_i = first_element + offsets[i], old bits are read at old_tile[offsets[i] * element_bytes] and
  // new bits are the old ones XOR values[i]. element_bytes is 1, 2, 4 or 8; `values` holds
  // offsets.size() elements; offsets are ascending. first_element is a multiple of 65,536.
  TouchedSums Touched(uint64_t first_element, uint32_t element_bytes,
                      absl::Span<const uint16_t> offsets, const uint8_t* old_tile,
                      const uint8_t* values) const;

  // For sums computed elsewhere: the key of A's Philox, and the upper half of its counters.
  const std::array<uint64_t, 2>& philox_key() const { return philox_key_; }

 private:
  std::array<uint64_t, 2> A(uint64_t block) const;

  const FingerprintKey* key_;
  std::array<uint64_t, 2> philox_key_;  // the Philox key, and the counter's upper half
};

}  // namespace wstore
