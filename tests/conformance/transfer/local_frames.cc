#include "tests/conformance/transfer/frame_cases.h"
#include "wstore/local_transfer.h"

namespace wstore::testing {

std::vector<FrameRunner> FrameRunnersUnderTest() {
  return {{"threads", [](const FrameCase& played, uint32_t ranks) {
             return PlayInThreads(played, ranks, TransferRoute::kShared, MakeLocalTransferPort);
           }}};
}

}  // namespace wstore::testing
