// From chunks that lie somewhere in memory to frames.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "wstore/device_chunk.h"
#include "wstore/transfer_group.h"
#include "wstore/transfer_lead.h"

namespace wstore::client {

// A frame, and where its bytes are.
struct Stretch {
  const uint8_t* data = nullptr;  // null: it has none
  FrameHeader frame;              // without the names of group and transaction
};

// Cuts chunks into stretches of memory, in order of their addresses. The last stretch of the last
// part is the last frame; if that part has no chunks, it is one frame without bytes.
std::vector<Stretch> CutFrames(absl::Span<const DeviceChunk> chunks, uint64_t frame_bytes,
                               TransferLead::SetPart part);

}  // namespace wstore::client
