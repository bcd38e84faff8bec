// Transfer groups over NCCL: what arrives, and what survivors do when a peer dies or stands still.
#include <signal.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/gpu/device_weights.h"
#include "tests/gpu/transfer_rank.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "wstore/cuda_transfer.h"
#include "wstore/digest.h"

// Also where there is no NCCL.
#define REQUIRE_NCCL()                                                            \
  REQUIRE_GPU();                                                                  \
  do {                                                                            \
    const auto wstore_memory = ::wstore::MakeCudaPoolMemory();                    \
    const auto wstore_port = ::wstore::MakeCudaTransferPort(wstore_memory.get()); \
    REQUIRE_OK(wstore_port);                                                      \
    if ((*wstore_port)->hello().nccl_version == 0) SKIP_TEST("no NCCL");          \
  } while (false)

namespace wstore::testing {
namespace {

constexpr int64_t kSecond = 1'000'000;

int64_t NumberAt(const std::string& line, size_t word) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ');
  INFO(line);
  REQUIRE(word < words.size());
  int64_t number = 0;
  REQUIRE(absl::SimpleAtoi(words[word], &number));
  return number;
}

int64_t ValueOf(const std::string& line, const std::string& key) {
  const size_t at = line.find(key + "=");
  INFO(line);
  REQUIRE(at != std::string::npos);
  return std::stoll(line.substr(at + key.size() + 1));
}

// A survivor says so within the deadline and a second, and is out of the group with it.
void RequireReturns(TransferRanks& ranks, uint32_t rank, const TransferScript& script,
                    bool in_join) {
  const std::string failed = ranks.Find(rank, "failed 0 ");
  const int64_t deadline = (in_join ? 4 : 1) * script.deadline_micros;
  INFO(failed);
  REQUIRE(NumberAt(failed, 3) <= deadline + kSecond);
  const std::string left = ranks.Find(rank, "left 0 ");
  INFO(left);
  REQUIRE(NumberAt(left, 2) <= deadline + 2 * kSecond);
}

}  // namespace

TEST_CASE("frames reach all ranks of a group, byte for byte") {
  REQUIRE_NCCL();
  TransferScript script;
  script.rounds = {{0, 1, 2}};
  script.deadline_micros = 10 * kSecond;
  TransferRanks ranks(script, TestSeed("transfer frames"));
  for (const uint32_t rank : {0u, 1u, 2u}) {
    ranks.Find(rank, "whole 0");
    REQUIRE(ranks.process(rank).Wait(60 * kSecond) == 0);
  }
}

TEST_CASE("D01 survivors of a rank that dies or stands still return in time and go on") {
  REQUIRE_NCCL();
  struct Case {
    uint32_t rank;
    const char* at;
    const char* how;
  };
  // The root is rank 0. Of a stopped process NCCL says nothing: the deadline ends the wait.
  const std::vector<Case> cases = {{1, "2", "kill"}, {1, "2", "stop"},    {0, "2", "kill"},
                                   {0, "2", "stop"}, {2, "join", "kill"}, {2, "join", "stop"}};
  const uint64_t seed = TestSeed("transfer faults");
  for (const Case& fault : cases) {
    INFO("rank " << fault.rank << " " << fault.how << " at " << fault.at);
    std::vector<uint32_t> survivors;
    for (const uint32_t rank : {0u, 1u, 2u}) {
      if (rank != fault.rank) survivors.push_back(rank);
    }
    TransferScript script;
    script.rounds = {{0, 1, 2}, survivors};
    script.faults = {{fault.rank, 0, fault.at, fault.how}};
    TransferRanks ranks(script, seed);
    ranks.Find(fault.rank, "fault 0");
    for (const uint32_t rank : survivors) {
      RequireReturns(ranks, rank, script, std::string(fault.at) == "join");
    }
    for (const uint32_t rank : survivors) {
      ranks.Find(rank, "whole 1");
      REQUIRE(ranks.process(rank).Wait(60 * kSecond) == 0);
    }
  }
}

// With a GPU each: the peer that is lost is followed by another one on its GPU.
void RequireSurvivesAcrossGpus(TransferScript::Place place, uint64_t seed) {
  struct Case {
    uint32_t lost;
    const char* how;
  };
  // The root is the first of a round. NCCL may never say that the peer is dead: its kernels wait
  // for memory that nobody writes any more.
  for (const Case& fault : {Case{1, "kill"}, Case{1, "stop"}, Case{0, "kill"}, Case{0, "stop"}}) {
    INFO("rank " << fault.lost << ", " << fault.how);
    const uint32_t survivor = 1 - fault.lost;
    TransferScript script;
    script.place = place;
    script.devices = {0, 1, static_cast<int>(fault.lost)};
    script.rounds = {{0, 1}, fault.lost == 0 ? std::vector<uint32_t>{2, 1} : std::vector{0u, 2u}};
    script.faults = {{fault.lost, 0, "2", fault.how}};
    TransferRanks ranks(script, seed);
    ranks.Find(fault.lost, "fault 0");
    RequireReturns(ranks, survivor, script, false);
    for (const uint32_t rank : {survivor, 2u}) {
      ranks.Find(rank, "whole 1");
      REQUIRE(ranks.process(rank).Wait(60 * kSecond) == 0);
    }
  }
}

TEST_CASE("D01 over NVLink the survivor of a broadcast returns in time and goes on", "[.][gpus]") {
  REQUIRE_NCCL();
  REQUIRE_GPUS(2);
  RequireSurvivesAcrossGpus(TransferScript::Place::kGpus, TestSeed("faults over NVLink"));
}

TEST_CASE("D01 the survivor of a broadcast between two hosts does, with a GPU each", "[.][gpus]") {
  REQUIRE_NCCL();
  REQUIRE_GPUS(2);
  RequireSurvivesAcrossGpus(TransferScript::Place::kMachines, TestSeed("faults between hosts"));
}

// The first of `survivors` is the root. In every round they lose another peer, killed and stopped
// in turn; then they form one more group with a process that has seen nothing of that.
void RequireOutlives(const std::vector<uint32_t>& survivors, uint32_t rounds, uint64_t seed) {
  const auto peer = [&](uint32_t round) { return static_cast<uint32_t>(survivors.size()) + round; };
  TransferScript script;
  for (uint32_t round = 0; round <= rounds; ++round) {
    script.rounds.push_back(survivors);
    script.rounds.back().push_back(peer(round));
    if (round < rounds) {
      script.faults.push_back({peer(round), round, "1", round % 2 == 0 ? "kill" : "stop"});
    }
  }
  TransferRanks ranks(script, seed);
  for (const uint32_t rank : survivors) {
    for (uint32_t round = 0; round < rounds; ++round) {
      ranks.Find(rank, absl::StrCat("failed ", round, " "));
    }
    ranks.Find(rank, absl::StrCat("whole ", rounds));
  }
  const std::string fresh = ranks.Find(peer(rounds), "end");
  for (const uint32_t rank : survivors) {
    const std::string end = ranks.Find(rank, "end");
    INFO("rank " << rank << ": " << end << "\nbeside one that was in one group:\n" << fresh);
    REQUIRE(ValueOf(end, "descriptors") <= ValueOf(fresh, "descriptors") + 2 * rounds);
    REQUIRE(ValueOf(end, "threads") <= ValueOf(fresh, "threads") + 2);
    REQUIRE(ranks.process(rank).Wait(60 * kSecond) == 0);
  }
}

TEST_CASE("D02 a process outlives many groups that broke, with no more descriptors or threads") {
  REQUIRE_NCCL();
  RequireOutlives({0}, 8, TestSeed("transfer cycles"));
}

TEST_CASE("D02 100 groups that broke, a quarter of them with one survivor", "[.][cycles]") {
  REQUIRE_NCCL();
  const uint64_t seed = TestSeed("many transfer cycles");
  RequireOutlives({0}, 25, seed);
  for (uint64_t i = 1; i <= 3; ++i) RequireOutlives({0, 1}, 25, seed + i);
}

TEST_CASE("D05 a rank on the root's GPU reads the root's memory, in its process and by CUDA IPC") {
  REQUIRE_GPU();
  const std::unique_ptr<CudaMemory> memory = MakeCudaDeviceMemory();
  absl::StatusOr<OwnedCudaStream> stream = OwnedCudaStream::Create();
  REQUIRE_OK(stream);
  const auto port = MakeCudaTransferPort(memory.get());
  REQUIRE_OK(port);
  const TransferHello hello = (*port)->hello();
  REQUIRE(ChooseRoute(hello, hello).route == TransferRoute::kShared);
  auto data = cuda::DeviceBuffer<uint8_t>::Create(1 << 20, memory.get(), stream->get());
  REQUIRE_OK(data);
  std::string bytes(1 << 20, '\0');
  std::mt19937_64 random(TestSeed("shared frames"));
  for (char& byte : bytes) byte = static_cast<char>(random());
  REQUIRE_OK(cuda::CopyAsync(reinterpret_cast<const uint8_t*>(bytes.data()), data->get(),
                             bytes.size(), stream->get()));
  REQUIRE_OK(stream->Synchronize());
  TransferPlan plan;
  plan.epoch = 1;
  plan.route = TransferRoute::kShared;
  plan.frame_bytes = 1 << 20;
  const auto sender = (*port)->Lead(plan, Deadline::After(kSecond), {});
  REQUIRE_OK(sender);
  const auto receiver = (*port)->Join(plan, Deadline::After(kSecond), {});
  REQUIRE_OK(receiver);
  FrameHeader frame;
  frame.epoch = 1;
  frame.size_bytes = 4096;
  frame.chunks = {{0, 16}, {32, 4000}};
  // From the middle of an allocation.
  const auto location = (*sender)->Locate(data->get() + 256, frame.size_bytes);
  REQUIRE_OK(location);
  frame.location = *location;
  REQUIRE_OK((*sender)->Send(frame, data->get() + 256, Deadline::After(kSecond)));
  REQUIRE_OK((*receiver)->Enter(frame, Deadline::After(kSecond)));
  const auto chunks = (*receiver)->Await(Deadline::After(kSecond));
  REQUIRE_OK(chunks);
  REQUIRE(chunks->size() == 2);
  std::string read(4000, '\0');
  REQUIRE_OK(cuda::CopyAsync(static_cast<const char*>((*chunks)[1].data), read.data(), read.size(),
                             stream->get()));
  REQUIRE_OK(stream->Synchronize());
  REQUIRE((read == bytes.substr(256 + 32, 4000)));
  (*receiver)->Release();
  const std::string digest =
      ToHex(Sha256().Update(std::string_view(bytes).substr(256, frame.size_bytes)).Finish());
  REQUIRE(ReadInOtherProcess(frame.location, frame.size_bytes) == "read " + digest);

  // What is from a pool has no name that another process could use.
  const std::unique_ptr<CudaMemory> pool = MakeCudaPoolMemory();
  auto pooled = cuda::DeviceBuffer<uint8_t>::Create(4096, pool.get(), stream->get());
  REQUIRE_OK(pooled);
  const auto unreachable = (*sender)->Locate(pooled->get(), 4096);
  REQUIRE_OK(unreachable);
  REQUIRE_THAT(ReadInOtherProcess(*unreachable, 4096), WSTORE_CONTAINS("MakeCudaDeviceMemory"));

  FrameHeader late = frame;
  REQUIRE_ERROR((*receiver)->Enter(late, Deadline::After(kSecond)),
                absl::StatusCode::kFailedPrecondition, "frame 1 of group 1 is next");
}

}  // namespace wstore::testing
