#include "wstore/digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "common/check.h"

namespace wstore {
namespace {

// Fetched once: looking the algorithm up costs more than hashing a small leaf.
const EVP_MD* Sha256Algorithm() {
  static const EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return algorithm;
}

EVP_MD_CTX* AsContext(void* context) { return static_cast<EVP_MD_CTX*>(context); }

void Start(void* context) {
  WSTORE_CHECK(EVP_DigestInit_ex2(AsContext(context), Sha256Algorithm(), nullptr) == 1);
}

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string ToHex(const Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(2 * digest.bytes.size());
  for (const uint8_t byte : digest.bytes) {
    out.push_back(kDigits[byte >> 4]);
    out.push_back(kDigits[byte & 15]);
  }
  return out;
}

std::optional<Digest> DigestFromHex(std::string_view hex) {
  Digest digest;
  if (hex.size() != 2 * digest.bytes.size()) return std::nullopt;
  for (size_t i = 0; i < digest.bytes.size(); ++i) {
    const int high = HexValue(hex[2 * i]);
    const int low = HexValue(hex[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    digest.bytes[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return digest;
}

std::string ToBytes(const Digest& digest) {
  return std::string(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
}

std::optional<Digest> DigestFromBytes(std::string_view bytes) {
  Digest digest;
  if (bytes.size() != digest.bytes.size()) return std::nullopt;
  std::copy(bytes.begin(), bytes.end(), digest.bytes.begin());
  return digest;
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  WSTORE_CHECK(context_ != nullptr);
  Start(context_);
}

Sha256::~Sha256() { EVP_MD_CTX_free(AsContext(context_)); }

Sha256::Sha256(Sha256&& other) noexcept : context_(std::exchange(other.context_, nullptr)) {}

Sha256& Sha256::operator=(Sha256&& other) noexcept {
  std::swap(context_, other.context_);
  return *this;
}

Sha256& Sha256::Update(absl::Span<const uint8_t> data) {
  WSTORE_CHECK(EVP_DigestUpdate(AsContext(context_), data.data(), data.size()) == 1);
  return *this;
}

Sha256& Sha256::Update(std::string_view data) {
  return Update(absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(data.data()), data.size()));
}

Sha256& Sha256::UpdateU32(uint32_t value) {
  uint8_t bytes[4];
  for (int i = 0; i < 4; ++i) bytes[i] = static_cast<uint8_t>(value >> (8 * i));
  return Update(absl::MakeConstSpan(bytes));
}

Sha256& Sha256::UpdateU64(uint64_t value) {
  return UpdateU32(static_cast<uint32_t>(value)).UpdateU32(static_cast<uint32_t>(value >> 32));
}

Digest Sha256::Finish() {
  Digest digest;
  WSTORE_CHECK(EVP_DigestFinal_ex(AsContext(context_), digest.bytes.data(), nullptr) == 1);
  Start(context_);
  return digest;
}

Digest LeafDigest(absl::Span<const uint8_t> leaf) {
  thread_local Sha256 sha;
  constexpr uint8_t kLeaf = 0;
  return sha.Update(leaf).Update(absl::MakeConstSpan(&kLeaf, 1)).Finish();
}

Digest RootDigest(absl::Span<const Digest> leaves, uint64_t size_bytes) {
  thread_local Sha256 sha;
  constexpr uint8_t kRoot = 1;
  for (const Digest& leaf : leaves) sha.Update(leaf.bytes);
  return sha.UpdateU64(size_bytes).Update(absl::MakeConstSpan(&kRoot, 1)).Finish();
}

Digest TreeDigest(absl::Span<const uint8_t> data, uint64_t leaf_bytes) {
  std::vector<Digest> leaves;
  leaves.reserve((data.size() + leaf_bytes - 1) / leaf_bytes);
  for (uint64_t at = 0; at < data.size(); at += leaf_bytes) {
    leaves.push_back(LeafDigest(data.subspan(at, leaf_bytes)));
  }
  return RootDigest(leaves, data.size());
}

}  // namespace wstore
