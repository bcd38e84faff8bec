#include "transfer/replica/cell_memory.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/bytes.h"

namespace wstore {
namespace {

constexpr uint64_t kBlockBytes = 512;  // of the fingerprint
constexpr uint64_t kGatherElements = 8192;

// Sums pieces of a tensor that come in ascending order. Short ones are put together to blocks
// first, since a block costs the same however little of it there is.
class BlockSummer {
 public:
  explicit BlockSummer(const TensorFingerprinter& fingerprinter) : fingerprinter_(fingerprinter) {}

  void Add(uint64_t offset_bytes, absl::Span<const uint8_t> data) {
    while (!data.empty()) {
      const uint64_t in_block = offset_bytes % kBlockBytes;
      uint64_t used;
      if (in_block == 0 && data.size() >= kBlockBytes) {
        used = data.size() / kBlockBytes * kBlockBytes;
        sum_ += fingerprinter_.Sum(offset_bytes, data.subspan(0, used));
      } else {
        used = std::min<uint64_t>(kBlockBytes - in_block, data.size());
        Open(offset_bytes - in_block);
        std::memcpy(block_.data() + in_block, data.data(), used);
      }
      offset_bytes += used;
      data.remove_prefix(used);
    }
  }

  Fingerprint Finish() {
    Flush();
    return sum_;
  }

 private:
  void Open(uint64_t block_begin) {
    if (is_open_ && block_begin == block_begin_) return;
    Flush();
    block_.fill(0);
    block_begin_ = block_begin;
    is_open_ = true;
  }
  void Flush() {
    if (is_open_) sum_ += fingerprinter_.Sum(block_begin_, block_);
    is_open_ = false;
  }

  const TensorFingerprinter& fingerprinter_;
  Fingerprint sum_;
  std::array<uint8_t, kBlockBytes> block_;
  uint64_t block_begin_ = 0;
  bool is_open_ = false;
};

// Calls function(segment) for the parts of the cell's segments within [begin, end).
template <typename Function>
void ForSegments(const PlannedCell& cell, uint64_t begin, uint64_t end, Function&& function) {
  SegmentCursor cursor(*cell.box);
  for (uint64_t at = begin; at < end && cursor.Seek(at);) {
    Segment segment = cursor.segment();
    if (segment.begin >= end) return;
    if (segment.begin < at) {
      segment.local_begin += (at - segment.begin) * segment.local_stride;
      segment.begin = at;
    }
    segment.end = std::min(segment.end, end);
    at = segment.end;
    function(segment);
  }
}

void GatherStrided(const uint8_t* from, uint64_t stride, uint64_t count, uint32_t element_bytes,
                   uint8_t* to) {
  WithElementType(element_bytes, [&](auto zero) {
    using Element = decltype(zero);
    for (uint64_t i = 0; i < count; ++i) {
      StoreLe(LoadLe<Element>(from + i * stride * sizeof(Element)), to + i * sizeof(Element));
    }
  });
}

void ScatterStrided(const uint8_t* from, uint64_t stride, uint64_t count, uint32_t element_bytes,
                    uint8_t* to) {
  WithElementType(element_bytes, [&](auto zero) {
    using Element = decltype(zero);
    for (uint64_t i = 0; i < count; ++i) {
      StoreLe(LoadLe<Element>(from + i * sizeof(Element)), to + i * stride * sizeof(Element));
    }
  });
}

}  // namespace

Fingerprint SumCell(const TensorFingerprinter& fingerprinter, const PlannedCell& cell,
                    const uint8_t* buffer, uint64_t begin, uint64_t end,
                    std::vector<uint8_t>* scratch) {
  const uint64_t width = cell.element_bytes;
  scratch->resize(std::max<size_t>(scratch->size(), kGatherElements * width));
  BlockSummer summer(fingerprinter);
  ForSegments(cell, begin, end, [&](const Segment& segment) {
    const uint8_t* from = buffer + segment.local_begin * width;
    if (segment.local_stride == 1) {
      summer.Add(segment.begin * width,
                 absl::MakeConstSpan(from, (segment.end - segment.begin) * width));
      return;
    }
    for (uint64_t at = segment.begin; at < segment.end; at += kGatherElements) {
      const uint64_t count = std::min(kGatherElements, segment.end - at);
      GatherStrided(from + (at - segment.begin) * segment.local_stride * width,
                    segment.local_stride, count, cell.element_bytes, scratch->data());
      summer.Add(at * width, absl::MakeConstSpan(scratch->data(), count * width));
    }
  });
  return summer.Finish();
}

void WriteCell(const PlannedCell& cell, const uint8_t* dense, uint64_t begin, uint64_t end,
               uint8_t* buffer) {
  const uint64_t width = cell.element_bytes;
  ForSegments(cell, begin, end, [&](const Segment& segment) {
    const uint64_t count = segment.end - segment.begin;
    const uint8_t* const from = dense + (segment.begin - begin) * width;
    uint8_t* const to = buffer + segment.local_begin * width;
    if (segment.local_stride == 1) {
      std::memcpy(to, from, count * width);
    } else {
      ScatterStrided(from, segment.local_stride, count, cell.element_bytes, to);
    }
  });
}

}  // namespace wstore
