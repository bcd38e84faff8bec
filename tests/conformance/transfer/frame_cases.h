// What every TransferPort promises of frames, as parts of parties that meet: a root and its ranks,
// each in a thread or a process of its own. They say what went wrong by their status.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tests/conformance/replica/device.h"
#include "wstore/deadline.h"
#include "wstore/transfer_group.h"

namespace wstore::testing {

// Words that parties leave for each other, as files of a folder.
class Meeting {
 public:
  explicit Meeting(std::string folder) : folder_(std::move(folder)) {}
  absl::Status Say(const std::string& about, const std::string& what) const;
  // Waits for it, for half a minute.
  absl::StatusOr<std::string> Hear(const std::string& about) const;

 private:
  const std::string folder_;
};

struct FrameParty {
  TransferPort* port = nullptr;
  TestDevice* device = nullptr;
  TransferRoute route = TransferRoute::kShared;
  uint32_t index = 0;  // 0: the root
  uint32_t ranks = 0;
  uint64_t seed = 0;
  std::string folder;  // where they meet
};

struct FrameCase {
  const char* name;
  absl::Status (*play)(const FrameParty& party);
};
absl::Span<const FrameCase> FrameCases();
// The case of that name, which there must be.
const FrameCase& FrameCaseNamed(const std::string& name);

// Where the parties of a case play: threads of this process, or processes.
struct FrameRunner {
  std::string name;
  // What each party came to; the root is the first.
  std::function<std::vector<absl::Status>(const FrameCase&, uint32_t ranks)> run;
};
// One for each way that the program has.
std::vector<FrameRunner> FrameRunnersUnderTest();

// Each party in a thread of this process, with a port of its own.
std::vector<absl::Status> PlayInThreads(
    const FrameCase& played, uint32_t ranks, TransferRoute route,
    const std::function<std::shared_ptr<TransferPort>()>& make_port);

}  // namespace wstore::testing
