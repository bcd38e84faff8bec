// What changed of the sixteen bytes that each lane of a warp reads: as bits, and packed one behind
// the other.
#pragma once

#include <cstdint>

#include "transfer/cuda/device_math.cuh"

namespace wstore::cuda {

// XOR bits that a warp keeps. A tile where more change is read again when its values are written:
// of bf16, more than a quarter in some eighth of the tile.
inline constexpr uint32_t kWarpValueBytes = 3840;

// One bit for each of the lane's elements that is not zero.
template <int kWidth>
__device__ __forceinline__ uint32_t NonZeroMask(const uint4& x) {
  const uint32_t words[4] = {x.x, x.y, x.z, x.w};
  uint32_t mask = 0;
  if constexpr (kWidth <= 2) {
    // The top bit of every element that is not zero.
    constexpr uint32_t kTop = kWidth == 1 ? 0x80808080 : 0x80008000;
    uint32_t tops[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) tops[i] = ((words[i] & ~kTop) + ~kTop) | words[i];
    // Four such bits at bytes' tops, side by side; of a second four, shifted by as many.
    constexpr auto kGather = [](uint32_t bits) { return bits * 0x01020408u >> 24; };
    if constexpr (kWidth == 1) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        mask |= kGather((tops[i] & kTop) >> 7 | (tops[i + 1] & kTop) >> 3) << (4 * i);
      }
    } else {
      const uint32_t low = __byte_perm(tops[0], tops[1], 0x7531) & 0x80808080;
      const uint32_t high = __byte_perm(tops[2], tops[3], 0x7531) & 0x80808080;
      mask = kGather(low >> 7 | high >> 3);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kWidth == 4) {
        mask |= (words[i] != 0 ? 1u : 0u) << i;
      } else if (i % 2 == 0) {
        mask |= ((words[i] | words[i + 1]) != 0 ? 1u : 0u) << (i / 2);
      }
    }
  }
  return mask;
}

// Writes those of the lane's elements that `mask` names to out[0], out[1], ...
template <int kWidth>
__device__ __forceinline__ void PackElements(const uint4& x, uint32_t mask, uint8_t* out) {
  const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 16 / kWidth; ++i) {
    if ((mask >> i & 1) == 0) continue;
    if constexpr (kWidth == 1) {
      *out = static_cast<uint8_t>(words[i / 4] >> (i % 4 * 8));
    } else if constexpr (kWidth == 2) {
      *reinterpret_cast<uint16_t*>(out) = static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16));
    } else if constexpr (kWidth == 4) {
      *reinterpret_cast<uint32_t*>(out) = words[i];
    } else {
      *reinterpret_cast<uint64_t*>(out) = words[2 * i] | uint64_t{words[2 * i + 1]} << 32;
    }
    out += kWidth;
  }
}

// An element of at most four bytes.
template <int kWidth>
__device__ __forceinline__ uint32_t ElementAt(const uint4& x, uint32_t element) {
  const uint32_t byte = element * kWidth;
  const uint32_t low = (byte & 4) != 0 ? x.y : x.x;
  const uint32_t high = (byte & 4) != 0 ? x.w : x.z;
  const uint32_t word = ((byte & 8) != 0 ? high : low) >> (byte % 4 * 8);
  return kWidth == 4 ? word : word & ((1u << (8 * kWidth % 32)) - 1);
}

// Writes one element.
template <int kWidth>
__device__ __forceinline__ void StoreElement(const uint4& x, uint32_t element, uint8_t* out) {
  if constexpr (kWidth == 8) {
    *reinterpret_cast<uint64_t*>(out) =
        element == 0 ? x.x | uint64_t{x.y} << 32 : x.z | uint64_t{x.w} << 32;
  } else {
    const uint32_t bits = ElementAt<kWidth>(x, element);
    if constexpr (kWidth == 1) *out = static_cast<uint8_t>(bits);
    if constexpr (kWidth == 2) *reinterpret_cast<uint16_t*>(out) = static_cast<uint16_t>(bits);
    if constexpr (kWidth == 4) *reinterpret_cast<uint32_t*>(out) = bits;
  }
}

// Puts the lane's bits where they belong in the bitmap. A warp's 512 bytes have 512 / kWidth bits.
template <int kWidth>
__device__ __forceinline__ void StoreMask(uint32_t mask, uint32_t lane, uint8_t* bits) {
  if constexpr (kWidth == 1) {
    reinterpret_cast<uint16_t*>(bits)[lane] = static_cast<uint16_t>(mask);
  } else if constexpr (kWidth == 2) {
    bits[lane] = static_cast<uint8_t>(mask);
  } else if constexpr (kWidth == 4) {
    const uint32_t upper = __shfl_down_sync(kFullWarp, mask, 1);
    if (lane % 2 == 0) bits[lane / 2] = static_cast<uint8_t>(mask | upper << 4);
  } else {
    uint32_t joined = mask | __shfl_down_sync(kFullWarp, mask, 1) << 2;
    joined |= __shfl_down_sync(kFullWarp, joined, 2) << 4;
    if (lane % 4 == 0) bits[lane / 4] = static_cast<uint8_t>(joined);
  }
}

__device__ __forceinline__ uint4 Xor(const uint4& a, const uint4& b) {
  return make_uint4(a.x ^ b.x, a.y ^ b.y, a.z ^ b.z, a.w ^ b.w);
}

// Nobody who wants to know what PackSteps packs.
struct NoWatcher {
  static constexpr uint32_t kValueBytes = kWarpValueBytes;
  __device__ __forceinline__ bool Keeps(uint32_t, uint32_t) const { return false; }
  __device__ __forceinline__ void Keep(int, uint32_t, uint32_t) const {}
};

// Packs the changes of two steps behind the `found` ones before them. Returns their number. If
// the watcher keeps them, it gets each.
template <int kWidth, typename Watcher>
__device__ __forceinline__ uint32_t PackSteps(const uint4 (&change)[2], const uint32_t (&mask)[2],
                                              uint32_t found, uint32_t lane, uint8_t* values,
                                              Watcher watcher) {
  constexpr uint32_t kRoom = Watcher::kValueBytes / kWidth;
  if (!__any_sync(kFullWarp, (mask[0] | mask[1]) != 0)) return 0;
  const uint32_t beyond_first = (mask[0] & (mask[0] - 1)) | (mask[1] & (mask[1] - 1));
  if (!__any_sync(kFullWarp, beyond_first != 0)) {
    // At most one change a lane and step, as nearly always where changes are few.
    const uint32_t lanes[2] = {__ballot_sync(kFullWarp, mask[0] != 0),
                               __ballot_sync(kFullWarp, mask[1] != 0)};
    const uint32_t of_first = __popc(lanes[0]);
    const uint32_t total = of_first + __popc(lanes[1]);
    if (found + total > kRoom) return total;
    const bool is_kept = watcher.Keeps(found, total);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint32_t number =
          found + __popc(lanes[k] & ((1u << lane) - 1)) + (k == 0 ? 0 : of_first);
      if (mask[k] == 0) continue;
      const uint32_t element = __ffs(static_cast<int>(mask[k])) - 1;
      StoreElement<kWidth>(change[k], element, values + number * kWidth);
      if (is_kept) watcher.Keep(k, element, number);
    }
    return total;
  }
  // Both steps in one sum over the warp, sixteen bits each.
  const uint32_t counts = __popc(mask[0]) | __popc(mask[1]) << 16;
  const uint32_t up_to = WarpInclusiveSum(counts, lane);
  const uint32_t totals = __shfl_sync(kFullWarp, up_to, kWarpLanes - 1);
  const uint32_t below = up_to - counts;
  const uint32_t of_first = totals & UINT16_MAX;
  const uint32_t total = of_first + (totals >> 16);
  if (found + total > kRoom) return total;
  const bool is_kept = watcher.Keeps(found, total);
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    uint32_t number = found + (k == 0 ? below & UINT16_MAX : of_first + (below >> 16));
    PackElements<kWidth>(change[k], mask[k], values + number * kWidth);
    if (!is_kept) continue;
    for (uint32_t left = mask[k]; left != 0; left &= left - 1) {
      watcher.Keep(k, __ffs(static_cast<int>(left)) - 1, number++);
    }
  }
  return total;
}

}  // namespace wstore::cuda
