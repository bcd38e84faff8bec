// SHA-256 digests, which name content.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/types/span.h"

namespace wstore {

struct Digest {
  std::array<uint8_t, 32> bytes{};

  friend auto operator<=>(const Digest&, const Digest&) = default;
};

// 64 lower-case hexadecimal digits.
std::string ToHex(const Digest& digest);
std::optional<Digest> DigestFromHex(std::string_view hex);

// The 32 raw bytes, as records and messages carry them.
std::string ToBytes(const Digest& digest);
std::optional<Digest> DigestFromBytes(std::string_view bytes);

// Computes one SHA-256 in pieces. Not thread-safe; move-only.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&& other) noexcept;
  Sha256& operator=(Sha256&& other) noexcept;

  Sha256& Update(absl::Span<const uint8_t> data);
  Sha256& Update(std::string_view data);
  Sha256& UpdateU32(uint32_t value);  // little-endian
  Sha256& UpdateU64(uint64_t value);  // little-endian

  // The digest of all that was given; afterwards the object is as new.
  Digest Finish();

 private:
  void* context_;  // EVP_MD_CTX
};

// A digest tree, with which all cores can work on one piece of data. The data is cut into leaves of
// `leaf_bytes` (the last may be shorter; no data has no leaves):
//   leaf = SHA-256(data, byte 0)
//   root = SHA-256(leaf digests in order, u64 length of the data in bytes, byte 1)
Digest LeafDigest(absl::Span<const uint8_t> leaf);
Digest RootDigest(absl::Span<const Digest> leaves, uint64_t size_bytes);
Digest TreeDigest(absl::Span<const uint8_t> data, uint64_t leaf_bytes);

}  // namespace wstore
