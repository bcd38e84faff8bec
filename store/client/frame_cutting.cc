#include "store/client/frame_cutting.h"

#include <algorithm>

namespace wstore::client {
namespace {

constexpr size_t kChunksPerFrame = 4096;
// Between chunks of one frame: less costs less than another frame.
constexpr int64_t kMaxGapBytes = 4096;

}  // namespace

std::vector<Stretch> CutFrames(absl::Span<const DeviceChunk> chunks, uint64_t frame_bytes,
                               TransferLead::SetPart part) {
  std::vector<DeviceChunk> sorted(chunks.begin(), chunks.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const DeviceChunk& a, const DeviceChunk& b) { return a.data < b.data; });
  std::vector<Stretch> stretches;
  const uint8_t* end = nullptr;
  for (const DeviceChunk& chunk : sorted) {
    const auto* const data = static_cast<const uint8_t*>(chunk.data);
    const bool follows =
        end != nullptr && data - end <= kMaxGapBytes &&
        data + chunk.size_bytes - stretches.back().data <= static_cast<int64_t>(frame_bytes) &&
        stretches.back().frame.chunks.size() < kChunksPerFrame;
    if (!follows) stretches.push_back({data, {}});
    FrameHeader& frame = stretches.back().frame;
    const auto offset = static_cast<uint64_t>(data - stretches.back().data);
    frame.chunks.push_back({offset, chunk.size_bytes});
    frame.size_bytes = offset + chunk.size_bytes;
    end = data + chunk.size_bytes;
  }
  if (part == TransferLead::SetPart::kLast) {
    if (stretches.empty()) stretches.emplace_back();
    stretches.back().frame.is_last = true;
  }
  return stretches;
}

}  // namespace wstore::client
