#include "transfer/codec/gap_code.h"

#include <algorithm>

#include "common/bytes.h"

namespace wstore {
namespace {

constexpr uint32_t kOneExtra = 192;  // from here on the first byte has one extra byte
constexpr uint32_t kTwoExtras = 255;
constexpr uint32_t kTwoExtrasFrom = kOneExtra + (kTwoExtras - kOneExtra) * 256;

}  // namespace

void AppendGaps(absl::Span<const uint16_t> offsets, std::vector<uint8_t>* gaps,
                std::vector<uint8_t>* extras) {
  size_t used = extras->size();
  gaps->resize(gaps->size() + offsets.size());
  extras->resize(used + 2 * offsets.size());
  uint8_t* const gap = gaps->data() + gaps->size() - offsets.size();
  uint8_t* const extra = extras->data();
  uint32_t next = 0;
  for (size_t i = 0; i < offsets.size(); ++i) {
    const uint32_t distance = offsets[i] - next;
    next = offsets[i] + 1u;
    if (distance >= kTwoExtrasFrom) {
      gap[i] = kTwoExtras;
      StoreLe(static_cast<uint16_t>(distance), extra + used);
      used += 2;
      continue;
    }
    // Without a branch on the common cases, whose order is random. There is room for the extra byte
    // even where it is not kept.
    const bool has_extra = distance >= kOneExtra;
    const uint32_t rest = distance - kOneExtra;
    gap[i] = static_cast<uint8_t>(has_extra ? kOneExtra + rest / 256 : distance);
    extra[used] = static_cast<uint8_t>(rest);
    used += has_extra;
  }
  extras->resize(used);
}

std::optional<size_t> DecodeGaps(absl::Span<const uint8_t> gaps, absl::Span<const uint8_t> extras,
                                 uint32_t elements, uint16_t* offsets) {
  size_t used = 0;
  uint32_t next = 0;
  bool is_past_end = false;
  for (size_t i = 0; i < gaps.size(); ++i) {
    const uint8_t* const extra = extras.data() + std::min(used, extras.size());
    const uint32_t gap = gaps[i];
    uint32_t distance;
    if (gap == kTwoExtras) {
      distance = LoadLe<uint16_t>(extra);
      used += 2;
    } else {
      const bool has_extra = gap >= kOneExtra;
      distance = has_extra ? kOneExtra + ((gap - kOneExtra) << 8 | extra[0]) : gap;
      used += has_extra;
    }
    next += distance;
    is_past_end |= next >= elements;
    offsets[i] = static_cast<uint16_t>(next++);
  }
  if (is_past_end || used > extras.size()) return std::nullopt;
  return used;
}

}  // namespace wstore
