// The transfer suite on a GPU: a trainer and ranks on one, which read its memory; and frames over
// NCCL too, between processes that it takes for machines.
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/conformance/transfer/frame_cases.h"
#include "tests/conformance/transfer/transport.h"
#include "tests/gpu/device_weights.h"
#include "tests/gpu/this_program.h"
#include "tests/support/naive_safetensors.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"
#include "tools/process/child_process.h"
#include "wstore/cuda_transfer.h"

namespace wstore::testing {
namespace {

constexpr int64_t kPatience = 120'000'000;
constexpr char kParty[] = "a party of a frame case";

// Outlives the ranks, whose ports take memory of it.
CudaMemory* Memory() {
  static CudaMemory* const memory = MakeCudaPoolMemory().release();
  return memory;
}

// As MakeTestDevice: without a GPU, the test that asks first ends the process, skipped.
std::shared_ptr<TransferPort> MakePort() {
  const absl::Status status = UseCudaDevice(0);
  if (!status.ok()) {
    std::cout << "test-skipped: no GPU: " << status.message() << std::endl;
    std::_Exit(0);
  }
  const auto port = MakeCudaTransferPort(Memory());
  REQUIRE_OK(port);
  return *port;
}

uint64_t Number(const char* name) {
  const char* const value = std::getenv(name);
  uint64_t number = 0;
  REQUIRE(value != nullptr);
  REQUIRE(absl::SimpleAtoi(value, &number));
  return number;
}

// Each party in a process of its own. One that fails says why in the middle of what it wrote.
std::vector<absl::Status> PlayInProcesses(const FrameCase& played, uint32_t ranks) {
  const TempDir folder;
  const uint64_t seed = TestSeed(played.name);
  std::vector<std::unique_ptr<ChildProcess>> processes;
  for (uint32_t i = 0; i <= ranks; ++i) {
    ChildProcess::Options options;
    options.out_path = folder / absl::StrCat("out-", i);
    options.environment = {{"NCCL_HOSTID", absl::StrCat("host-", i)},
                           {"NCCL_SOCKET_IFNAME", "lo"},
                           {"WSTORE_CASE", played.name},
                           {"WSTORE_INDEX", absl::StrCat(i)},
                           {"WSTORE_RANKS", absl::StrCat(ranks)},
                           {"WSTORE_SEED", absl::StrCat(seed)},
                           {"WSTORE_FOLDER", folder.path()}};
    std::vector<std::string> command = ThisProgram();
    command.push_back(kParty);
    auto process = ChildProcess::Start(command, options);
    REQUIRE_OK(process);
    processes.push_back(*std::move(process));
  }
  std::vector<absl::Status> statuses;
  for (const auto& process : processes) {
    const bool is_well = process->Wait(kPatience) == 0;
    statuses.push_back(is_well ? absl::OkStatus()
                               : absl::InternalError(ReadFile(process->options().out_path)));
  }
  return statuses;
}

}  // namespace

Transport TransportUnderTest() { return {TransferRoute::kShared, MakePort}; }

std::vector<FrameRunner> FrameRunnersUnderTest() {
  std::vector<FrameRunner> runners = {
      {"threads on one GPU", [](const FrameCase& played, uint32_t ranks) {
         return PlayInThreads(played, ranks, TransferRoute::kShared, MakePort);
       }}};
  if (MakePort()->hello().nccl_version != 0) runners.push_back({"NCCL", PlayInProcesses});
  return runners;
}

TEST_CASE("a party of a frame case", "[.rank]") {
  REQUIRE_GPU();
  const std::shared_ptr<TransferPort> port = MakePort();
  const std::unique_ptr<TestDevice> device = MakeTestDevice();
  FrameParty party;
  party.port = port.get();
  party.device = device.get();
  party.route = TransferRoute::kNccl;
  party.index = static_cast<uint32_t>(Number("WSTORE_INDEX"));
  party.ranks = static_cast<uint32_t>(Number("WSTORE_RANKS"));
  party.seed = Number("WSTORE_SEED");
  party.folder = std::getenv("WSTORE_FOLDER");
  REQUIRE_OK(FrameCaseNamed(std::getenv("WSTORE_CASE")).play(party));
}

}  // namespace wstore::testing
