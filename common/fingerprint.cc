#include "wstore/fingerprint.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/fingerprint_kernels.h"
#include "common/philox.h"

namespace wstore {
namespace {

using internal::kBlockBytes;
using Lanes = std::array<uint64_t, 2>;

// The labels carry a version: a different definition would be a different label. The NUL belongs to
// them, so that no label is the beginning of another.
constexpr std::string_view kBlockLabel("wstore fingerprint block 1\0", 27);
constexpr std::string_view kTensorLabel("wstore fingerprint tensor 1\0", 28);
// Blocks whose dot products are held at a time.
constexpr size_t kBatchBlocks = 128;

// The Philox key, and the upper half of every counter under it.
Lanes DeriveKey(std::string_view label, const Digest& base_digest, std::string_view name) {
  const Digest digest = Sha256().Update(label).Update(base_digest.bytes).Update(name).Finish();
  Lanes key;
  std::memcpy(key.data(), digest.bytes.data(), sizeof(key));
  return key;
}

// One evaluation serves both lanes: the outputs of a pseudo-random function are independent.
Lanes OddPair(const Lanes& key, uint64_t counter) {
  Lanes pair = internal::Philox2x64({counter, key[1]}, key[0]);
  for (uint64_t& word : pair) word |= 1;
  return pair;
}

void AddProduct(Fingerprint& sum, const Lanes& a, const Lanes& dot) {
  for (int lane = 0; lane < 2; ++lane) sum.lanes[lane] += a[lane] * dot[lane];
}

// Adds the words of one element; an element of 8 bytes covers two words, others one, where they
// count from their byte's place up.
template <typename Element>
void AddElement(const internal::BlockMultipliers& b, uint32_t byte_in_block, Element bits,
                Lanes& dot) {
  const uint32_t word = byte_in_block / 4;
  for (int lane = 0; lane < 2; ++lane) {
    if constexpr (sizeof(Element) == 8) {
      dot[lane] += b[lane][word] * (bits & UINT32_MAX) + b[lane][word + 1] * (bits >> 32);
    } else {
      dot[lane] += b[lane][word] * (uint64_t{bits} << (8 * (byte_in_block % 4)));
    }
  }
}

// `a(block)` gives A of the tile's block `block`.
template <typename Element, typename BlockMultiplier>
TouchedSums TouchedOf(const internal::BlockMultipliers& b, const BlockMultiplier& a,
                      absl::Span<const uint16_t> offsets, const uint8_t* old_tile,
                      const uint8_t* values) {
  TouchedSums sums;
  Lanes before{};
  Lanes after{};
  uint32_t open_block = 0;
  const auto close_block = [&] {
    const Lanes multiplier = a(open_block);
    AddProduct(sums.before, multiplier, before);
    AddProduct(sums.after, multiplier, after);
  };
  for (size_t i = 0; i < offsets.size(); ++i) {
    const uint32_t byte = offsets[i] * uint32_t{sizeof(Element)};
    const uint32_t block = byte / kBlockBytes;
    if (block != open_block) {
      close_block();
      before = {};
      after = {};
      open_block = block;
    }
    Element bits;
    Element value;
    std::memcpy(&bits, old_tile + byte, sizeof(Element));
    std::memcpy(&value, values + i * sizeof(Element), sizeof(Element));
    AddElement<Element>(b, byte % kBlockBytes, bits, before);
    AddElement<Element>(b, byte % kBlockBytes, bits ^ value, after);
  }
  if (!offsets.empty()) close_block();
  return sums;
}

}  // namespace

Fingerprint& Fingerprint::operator+=(const Fingerprint& other) {
  for (int lane = 0; lane < 2; ++lane) lanes[lane] += other.lanes[lane];
  return *this;
}

Fingerprint& Fingerprint::operator-=(const Fingerprint& other) {
  for (int lane = 0; lane < 2; ++lane) lanes[lane] -= other.lanes[lane];
  return *this;
}

TouchedSums& TouchedSums::operator+=(const TouchedSums& other) {
  before += other.before;
  after += other.after;
  return *this;
}

std::string ToHex(const Fingerprint& fingerprint) {
  return absl::StrFormat("%016x%016x", fingerprint.lanes[0], fingerprint.lanes[1]);
}

FingerprintKey::FingerprintKey(const Digest& base_digest) : base_digest_(base_digest) {
  const Lanes key = DeriveKey(kBlockLabel, base_digest, "");
  for (size_t i = 0; i < internal::kBlockWords; ++i) {
    const Lanes pair = OddPair(key, i);
    b_[0][i] = pair[0];
    b_[1][i] = pair[1];
  }
}

TensorFingerprinter::TensorFingerprinter(const FingerprintKey& key, std::string_view tensor_name)
    : key_(&key), philox_key_(DeriveKey(kTensorLabel, key.base_digest(), tensor_name)) {}

std::array<uint64_t, 2> TensorFingerprinter::A(uint64_t block) const {
  return OddPair(philox_key_, block);
}

Fingerprint TensorFingerprinter::Sum(uint64_t offset_bytes, absl::Span<const uint8_t> data) const {
  internal::DotsFunction* const dots_of = internal::Dots();
  const internal::BlockMultipliers& b = key_->b();
  Fingerprint sum;
  while (!data.empty()) {
    const uint64_t block = offset_bytes / kBlockBytes;
    const size_t begin = offset_bytes % kBlockBytes;
    const size_t whole_blocks = begin == 0 ? data.size() / kBlockBytes : 0;
    size_t used;
    if (whole_blocks == 0) {
      // Part of a block: the rest counts as zero.
      used = std::min(kBlockBytes - begin, data.size());
      std::array<uint8_t, kBlockBytes> padded{};
      std::memcpy(padded.data() + begin, data.data(), used);
      Lanes dot;
      dots_of(b, padded.data(), 1, &dot);
      AddProduct(sum, A(block), dot);
    } else {
      const size_t blocks = std::min(whole_blocks, kBatchBlocks);
      used = blocks * kBlockBytes;
      std::array<Lanes, kBatchBlocks> dots;
      dots_of(b, data.data(), blocks, dots.data());
      for (size_t i = 0; i < blocks; ++i) AddProduct(sum, A(block + i), dots[i]);
    }
    offset_bytes += used;
    data.remove_prefix(used);
  }
  return sum;
}

TouchedSums TensorFingerprinter::Touched(uint64_t first_element, uint32_t element_bytes,
                                         absl::Span<const uint16_t> offsets,
                                         const uint8_t* old_tile, const uint8_t* values) const {
  const uint64_t first_block = first_element * element_bytes / kBlockBytes;
  const auto a = [this, first_block](uint64_t block) { return A(first_block + block); };
  const internal::BlockMultipliers& b = key_->b();
  switch (element_bytes) {
    case 1:
      return TouchedOf<uint8_t>(b, a, offsets, old_tile, values);
    case 2:
      return TouchedOf<uint16_t>(b, a, offsets, old_tile, values);
    case 4:
      return TouchedOf<uint32_t>(b, a, offsets, old_tile, values);
    case 8:
      return TouchedOf<uint64_t>(b, a, offsets, old_tile, values);
  }
  WSTORE_CHECK(!"element_bytes is 1, 2, 4 or 8");
}

}  // namespace wstore
