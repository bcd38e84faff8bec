// From chunks that lie somewhere in memory to frames.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "wstore/device_chunk.h"
#include "wstore/tensor_set.h"
#include "wstore/transfer_group.h"
#include "wstore/transfer_lead.h"

namespace wstore::client {

// A frame, and where its bytes are.
struct Stretch {
  const uint8_t* data = nullptr;  // null: it has none
  FrameHeader frame;              // without the names of group and transaction
};

// Whom frames are for.
struct FrameTakers {
  struct Member {
    uint32_t index = 0;  // in the group
    TensorSet tensors;   // that it wants
  };
  std::vector<Member> members;
  uint32_t communicator = 0;  // the size of it, with the root; 0: there is none
  uint64_t frame_bytes = 0;   // at most
};

// A frame costs the root some ten microseconds, in which a link carries about as much. (A rank on a
// GPU needs up to a millisecond for each, which this leaves out: docs/benchmarks.md.)
inline constexpr uint64_t kSmallFrameBytes = 1 << 20;

// Cuts chunks into stretches of memory, in order of their addresses, with as many as are for the
// same members in one. Chunks that nobody wants are left out, and counted in the frame that follows
// or, in the last part, the last one; `unsent`: of parts before, and of this for the next.
// Some members get more than they want: the others in a communicator, of what is for more than half
// of it, since one broadcast to all costs less than so many transfers; and the neighbours of what
// would be a frame of less than kSmallFrameBytes (or an eighth of a frame, if that is less), unless
// it is the end of a stretch.
//
// The last stretch of the last part is the last frame; if that part has no chunks, it is one frame
// without bytes.
std::vector<Stretch> CutFrames(absl::Span<const DeviceChunk> chunks, const FrameTakers& takers,
                               TransferLead::SetPart part, uint64_t* unsent);

}  // namespace wstore::client
