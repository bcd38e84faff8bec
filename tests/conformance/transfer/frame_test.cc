// Frames, as every port must carry them.
#include "tests/conformance/transfer/frame_cases.h"
#include "tests/support/catch.h"

namespace wstore::testing {

TEST_CASE("transfer frames: order, refusals, cancelling and deadlines are the same by every port") {
  for (const FrameRunner& runner : FrameRunnersUnderTest()) {
    for (const FrameCase& played : FrameCases()) {
      const std::vector<absl::Status> statuses = runner.run(played, 2);
      REQUIRE(statuses.size() == 3);
      for (size_t i = 0; i < statuses.size(); ++i) {
        INFO(runner.name << ", " << played.name << ", party " << i);
        REQUIRE_OK(statuses[i]);
      }
    }
  }
}

}  // namespace wstore::testing
