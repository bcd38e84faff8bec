// How a tile's positions are written at rest: as distances, mostly of one byte.
//
// The distance of a change is the number of unchanged elements before it, back to the change before
// it or to the start of the tile. Below 192 it is one byte. Up to 16,319 it is a byte of 192 to 254
// and an extra byte; above, a byte of 255 and two extra bytes. Extra bytes lie in a column of their
// own: they are close to noise, which would spoil the statistics of the first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"

namespace wstore {

void AppendGaps(absl::Span<const uint16_t> offsets, std::vector<uint8_t>* gaps,
                std::vector<uint8_t>* extras);

// Bytes that must be readable, whatever they are, behind the extras given to DecodeGaps.
inline constexpr size_t kGapSlackBytes = 2;

// Reads gaps.size() offsets. Returns how many of `extras` they used; nothing if there are too few
// of them, or if an offset is not below `elements`.
std::optional<size_t> DecodeGaps(absl::Span<const uint8_t> gaps, absl::Span<const uint8_t> extras,
                                 uint32_t elements, uint16_t* offsets);

}  // namespace wstore
