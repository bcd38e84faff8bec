// Sums over the elements that change, before and after. A multiplication for each lane that has one
// of them would keep the others waiting, so old bits are put into a queue of the warp beside the
// XOR bits, and summed 32 at a time.
#pragma once

#include <cstdint>

#include "transfer/cuda/device_math.cuh"
#include "transfer/cuda/pack.cuh"
#include "transfer/cuda/tables.h"

namespace wstore::cuda {

// Both lanes of the fingerprint: what one lane of a warp has summed, or the whole warp.
struct TouchedSumsPart {
  uint64_t before[2];
  uint64_t after[2];
};

// Of each warp, behind its XOR bits.
inline constexpr uint32_t kTouchedQueueBytes = 512;

// The bits of a 32-bit word that belong to elements that change. bits: the lowest name the word's
// elements, or what it is a part of.
template <int kWidth>
__device__ __forceinline__ uint32_t ChangedBits(uint32_t bits) {
  if constexpr (kWidth == 1) {
    return ((bits & 15) * 0x00204081u & 0x01010101u) * 0xff;
  } else if constexpr (kWidth == 2) {
    return ((bits | bits << 15) & 0x00010001u) * 0xffff;
  } else {
    return (bits & 1) * UINT32_MAX;
  }
}

// Where a warp's sums come from, and where they go.
struct TouchedTables {
  uint8_t* values;                 // XOR bits, and the queue behind them
  const Multipliers* multipliers;  // A of the steps of the open group
  const unsigned long long* b;     // DiffTables::multipliers
  TouchedSumsPart* sums;           // of the warp

  template <typename Entry>
  __device__ __forceinline__ Entry* Queue() const {
    return reinterpret_cast<Entry*>(values + kWarpValueBytes - kTouchedQueueBytes);
  }
};

// Adds B x word, of both sides.
__device__ __forceinline__ void AddWord(const unsigned long long* b, uint32_t word,
                                        uint32_t old_bits, uint32_t new_bits,
                                        TouchedSumsPart* sums) {
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    AddProduct(b[128 * k + word], old_bits, &sums->before[k]);
    AddProduct(b[128 * k + word], new_bits, &sums->after[k]);
  }
}

__device__ __forceinline__ void AddTimes(const Multipliers& a, const TouchedSumsPart& more,
                                         TouchedSumsPart* sums) {
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    sums->before[k] += a.lane[k] * more.before[k];
    sums->after[k] += a.lane[k] * more.after[k];
  }
}

// Adds the parts of all lanes to the warp's sums. In every step half of the lanes give half of what
// they hold for the other half of the rest.
__device__ __forceinline__ void AddLanes(const TouchedSumsPart& part, TouchedSumsPart* sums) {
  const uint32_t lane = threadIdx.x % kWarpLanes;
  const auto exchange = [](uint64_t value, int step) -> uint64_t {
    return __shfl_xor_sync(kFullWarp, static_cast<unsigned long long>(value), step);
  };
  const bool is_after = (lane & 16) != 0;
  uint64_t first = (is_after ? part.after[0] : part.before[0]) +
                   exchange(is_after ? part.before[0] : part.after[0], 16);
  const uint64_t second = (is_after ? part.after[1] : part.before[1]) +
                          exchange(is_after ? part.before[1] : part.after[1], 16);
  const bool is_second = (lane & 8) != 0;
  first = (is_second ? second : first) + exchange(is_second ? first : second, 8);
#pragma unroll
  for (int step = 4; step > 0; step /= 2) first += exchange(first, step);
  if (lane % 8 == 0) (is_after ? sums->after : sums->before)[is_second ? 1 : 0] += first;
}

// Adds the elements that `mask` names, of this lane's sixteen bytes of a step.
template <int kWidth>
__device__ __forceinline__ void SumStep(const TouchedTables& tables, uint32_t step, uint32_t mask,
                                        const uint4& before, const uint4& change) {
  const uint32_t lane = threadIdx.x % kWarpLanes;
  const uint32_t old_words[4] = {before.x, before.y, before.z, before.w};
  const uint32_t changes[4] = {change.x, change.y, change.z, change.w};
  TouchedSumsPart step_sums = {};
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t bits = ChangedBits<kWidth>(mask >> (kWidth == 8 ? i / 2 : i * 4 / kWidth));
    AddWord(tables.b, 4 * lane + i, old_words[i] & bits, (old_words[i] ^ changes[i]) & bits,
            &step_sums);
  }
  TouchedSumsPart part = {};
  AddTimes(tables.multipliers[step], step_sums, &part);
  AddLanes(part, tables.sums);
}

// Elements of eight bytes are not queued: nobody's weights have them.
template <int kWidth>
constexpr uint32_t kTouchedRoom = kWidth <= 2   ? kTouchedQueueBytes / 4
                                  : kWidth == 4 ? kTouchedQueueBytes / 8
                                                : 0;
// Room for XOR bits, of each warp.
template <int kWidth>
constexpr uint32_t kTouchedValueBytes = kWarpValueBytes -
                                        (kTouchedRoom<kWidth> > 0 ? kTouchedQueueBytes : 0);

template <int kWidth>
__device__ __forceinline__ void SumQueued(const TouchedTables& tables, uint32_t number,
                                          TouchedSumsPart* sums) {
  uint32_t old_bits;
  uint32_t change;
  uint32_t position;
  if constexpr (kWidth <= 2) {
    const uint32_t entry = tables.Queue<uint32_t>()[number % kTouchedRoom<kWidth>];
    old_bits = entry & UINT16_MAX;
    position = entry >> 16;
    change = kWidth == 1 ? tables.values[number]
                         : reinterpret_cast<const uint16_t*>(tables.values)[number];
  } else {
    const uint2 entry = tables.Queue<uint2>()[number % kTouchedRoom<kWidth>];
    old_bits = entry.x;
    position = entry.y;
    change = reinterpret_cast<const uint32_t*>(tables.values)[number];
  }
  const uint32_t byte = position * kWidth;
  const uint32_t shift = byte % 4 * 8;
  TouchedSumsPart entry_sums = {};
  AddWord(tables.b, byte % kSumBlockBytes / 4, old_bits << shift, (old_bits ^ change) << shift,
          &entry_sums);
  AddTimes(tables.multipliers[byte / kSumBlockBytes], entry_sums, sums);
}

// Adds the queued changes of numbers [first, end).
template <int kWidth>
__device__ __forceinline__ void SumQueue(const TouchedTables& tables, uint32_t first,
                                         uint32_t end) {
  TouchedSumsPart part = {};
  __syncwarp();
  for (uint32_t i = first + threadIdx.x % kWarpLanes; i < end; i += kWarpLanes) {
    SumQueued<kWidth>(tables, i, &part);
  }
  AddLanes(part, tables.sums);
  __syncwarp();
}

// What a warp has found of its eighth of a tile and not yet summed.
template <int kWidth>
class TouchedQueue {
 public:
  static constexpr uint32_t kRoom = kTouchedRoom<kWidth>;

  explicit __device__ __forceinline__ TouchedQueue(const TouchedTables& tables) : tables_(tables) {}

  // Whether `total` changes after `found` are queued: there is room for them and for their XOR
  // bits.
  __device__ __forceinline__ bool Keeps(uint32_t found, uint32_t total) const {
    return found + total - summed_ <= kRoom && found + total <= kTouchedValueBytes<kWidth> / kWidth;
  }
  // position: of the element in the open group; number: of the change in the eighth.
  __device__ __forceinline__ void Push(uint32_t old_bits, uint32_t position, uint32_t number) {
    if constexpr (kWidth <= 2) {
      tables_.Queue<uint32_t>()[number % kRoom] = old_bits | position << 16;
    } else if constexpr (kWidth == 4) {
      tables_.Queue<uint2>()[number % kRoom] = {old_bits, position};
    }
  }

  // Ends the work on two steps with `total` changes after `found`: sums them if they were not kept,
  // and what is queued if it is much. This is the one place that does, since few registers are in
  // use here. is_last: of the group.
  __device__ __forceinline__ void EndSteps(uint32_t step, const uint32_t (&mask)[2],
                                           const uint4 (&before)[2], const uint4 (&change)[2],
                                           uint32_t found, uint32_t total, bool is_last) {
    const bool is_kept = total == 0 || Keeps(found, total);
    if (!is_kept) {
#pragma unroll
      for (uint32_t k = 0; k < 2; ++k) {
        SumStep<kWidth>(tables_, step + k, mask[k], before[k], change[k]);
      }
    }
    const uint32_t end = is_kept ? found + total : found;
    if (!is_kept || is_last || end - summed_ > kRoom * 5 / 8) {
      if constexpr (kRoom > 0) {
        if (summed_ != end) SumQueue<kWidth>(tables_, summed_, end);
      }
      summed_ = found + total;
    }
  }

 private:
  const TouchedTables tables_;
  uint32_t summed_ = 0;
};

// The watcher of PackSteps that queues the changes of two steps.
template <int kWidth>
struct TouchedWatcher {
  static constexpr uint32_t kValueBytes = kTouchedValueBytes<kWidth>;

  TouchedQueue<kWidth>& queue;
  const uint4 (&before)[2];
  uint32_t step;  // the first, in its group
  uint32_t lane;

  __device__ __forceinline__ bool Keeps(uint32_t found, uint32_t total) const {
    return queue.Keeps(found, total);
  }
  // Element `element` of the lane's sixteen bytes of step k.
  __device__ __forceinline__ void Keep(int k, uint32_t element, uint32_t number) {
    if constexpr (kWidth < 8) {
      constexpr uint32_t kStepElements = kSumBlockBytes / kWidth;
      queue.Push(ElementAt<kWidth>(before[k], element),
                 (step + k) * kStepElements + lane * (16 / kWidth) + element, number);
    }
  }
};

// Room for XOR bits, of a warp.
template <int kWidth, bool kTouched>
constexpr uint32_t ValueBytes() {
  return kTouched ? TouchedWatcher<kWidth>::kValueBytes : NoWatcher::kValueBytes;
}

}  // namespace wstore::cuda
