#include "tests/gpu/transfer_rank.h"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <sstream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/clock.h"
#include "tests/gpu/device_weights.h"
#include "tests/gpu/this_program.h"
#include "tests/support/catch.h"
#include "wstore/cuda_transfer.h"
#include "wstore/digest.h"

namespace wstore::testing {
namespace {

constexpr int64_t kMinute = 60'000'000;

std::string Setting(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

uint64_t Number(const std::string& text) {
  uint64_t number = 0;
  REQUIRE(absl::SimpleAtoi(text, &number));
  return number;
}

std::string FrameBytes(uint64_t seed, uint32_t round, uint64_t frame, uint64_t size_bytes) {
  std::mt19937_64 random(seed + round * 1000 + frame);
  std::string bytes(size_bytes, '\0');
  for (uint64_t at = 0; at + 8 <= size_bytes; at += 8) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, 8);
  }
  return bytes;
}

// One process. What it does is in its environment.
class Rank {
 public:
  void Run() {
    absl::StatusOr<std::shared_ptr<TransferPort>> port = MakeCudaTransferPort(memory_.get());
    REQUIRE_OK(port);
    port_ = *port;
    const std::vector<std::string> rounds = absl::StrSplit(Setting("WSTORE_ROUNDS"), ';');
    for (uint32_t round = 0; round < rounds.size(); ++round) RunRound(round, rounds[round]);
    Say("end ", " descriptors=", Descriptors(), " threads=", Threads());
  }

 private:
  template <typename... Args>
  void Say(const Args&... args) {
    std::cout << absl::StrCat(args...) << std::endl;
  }

  static size_t EntriesOf(const char* path) {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path)) count += entry.exists();
    return count;
  }
  static size_t Descriptors() { return EntriesOf("/proc/self/fd"); }
  static size_t Threads() { return EntriesOf("/proc/self/task"); }

  void MeetFault(uint32_t round, const std::string& at) {
    const std::string wanted = absl::StrCat(round, ":", at, ":");
    for (const auto& fault : absl::StrSplit(Setting("WSTORE_FAULTS"), ';')) {
      const std::string text(fault);
      if (text.rfind(wanted, 0) != 0) continue;
      Say("fault ", round, " ", at);
      kill(getpid(), text.substr(wanted.size()) == "kill" ? SIGKILL : SIGSTOP);
    }
  }

  // The root names the group; the others wait for its name.
  std::string UniqueId(uint32_t round, bool is_root) {
    const std::string path = absl::StrCat(Setting("WSTORE_FOLDER"), "/id-", round);
    if (is_root) {
      absl::StatusOr<std::string> id = port_->NewUniqueId();
      REQUIRE_OK(id);
      std::ofstream(path + ".new", std::ios::binary) << *id;
      std::filesystem::rename(path + ".new", path);
      return *id;
    }
    const Deadline deadline = Deadline::After(kMinute);
    while (!std::filesystem::exists(path) && !deadline.has_passed()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  void RunRound(uint32_t round, const std::string& members_text) {
    const std::vector<std::string> members = absl::StrSplit(members_text, ',');
    TransferPlan plan;
    plan.epoch = round + 1;
    plan.route = TransferRoute::kNccl;
    plan.size = static_cast<uint32_t>(members.size());
    plan.frame_bytes = frame_bytes_;
    for (plan.index = 0; plan.index < plan.size; ++plan.index) {
      if (members[plan.index] == rank_) break;
    }
    if (plan.index == plan.size) return;
    plan.unique_id = UniqueId(round, plan.index == 0);
    MeetFault(round, "join");
    const int64_t begun = SystemClock().NowMonotonicMicros();
    const absl::Status status = plan.index == 0 ? Send(plan, round) : Receive(plan, round);
    const int64_t took = SystemClock().NowMonotonicMicros() - last_;
    if (status.ok()) {
      Say("whole ", round, " ", SystemClock().NowMonotonicMicros() - begun);
    } else {
      Say("failed ", round, " ", absl::StatusCodeToString(status.code()), " ", took, " ",
          std::string(status.message()));
    }
    Say("left ", round, " ", SystemClock().NowMonotonicMicros() - last_);
  }

  Deadline FrameDeadline() {
    last_ = SystemClock().NowMonotonicMicros();
    return Deadline::After(deadline_micros_);
  }

  FrameHeader Frame(const TransferPlan& plan, uint64_t sequence) const {
    FrameHeader frame;
    frame.epoch = plan.epoch;
    frame.sequence = sequence;
    frame.transaction = TransactionNumber(7);
    frame.size_bytes = frame_bytes_ - 16 * sequence;
    frame.chunks = {{0, 1024}, {1024, frame.size_bytes - 1024}};
    return frame;
  }

  absl::Status Send(const TransferPlan& plan, uint32_t round) {
    last_ = SystemClock().NowMonotonicMicros();
    absl::StatusOr<std::unique_ptr<FrameSender>> sender =
        port_->Lead(plan, Deadline::After(4 * deadline_micros_), {});
    if (!sender.ok()) return sender.status();
    Say("joined ", round);
    auto data =
        cuda::DeviceBuffer<uint8_t>::Create(frames_ * frame_bytes_, memory_.get(), stream_->get());
    REQUIRE_OK(data);
    absl::Status status;
    for (uint64_t i = 0; i < frames_ && status.ok(); ++i) {
      const FrameHeader frame = Frame(plan, i);
      const std::string bytes = FrameBytes(seed_, round, i, frame.size_bytes);
      uint8_t* const at = data->get() + i * frame_bytes_;
      REQUIRE_OK(cuda::CopyAsync(reinterpret_cast<const uint8_t*>(bytes.data()), at, bytes.size(),
                                 stream_->get()));
      REQUIRE_OK(stream_->Synchronize());
      MeetFault(round, absl::StrCat(i));
      const Deadline deadline = FrameDeadline();
      status = (*sender)->Send(frame, at, deadline);
      if (status.ok()) status = (*sender)->Drain(deadline);
    }
    // Who leaves takes along what is on its way.
    const Deadline deadline = Deadline::After(deadline_micros_);
    for (uint32_t i = 1; status.ok() && i < plan.size; ++i) {
      while (!std::filesystem::exists(DonePath(round, i)) && !deadline.has_passed()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    }
    sender->reset();  // before the memory that it sends from
    return status;
  }

  absl::Status Receive(const TransferPlan& plan, uint32_t round) {
    last_ = SystemClock().NowMonotonicMicros();
    absl::StatusOr<std::unique_ptr<FrameReceiver>> receiver =
        port_->Join(plan, Deadline::After(4 * deadline_micros_), {});
    if (!receiver.ok()) return receiver.status();
    Say("joined ", round);
    for (uint64_t i = 0; i < frames_; ++i) {
      const FrameHeader frame = Frame(plan, i);
      MeetFault(round, absl::StrCat(i));
      // The first frame waits for the root's next one also while the root prepares it.
      const Deadline deadline = FrameDeadline();
      absl::Status status = (*receiver)->Enter(frame, deadline);
      if (!status.ok()) return status;
      absl::StatusOr<std::vector<DeviceChunk>> chunks = (*receiver)->Await(deadline);
      if (!chunks.ok()) return chunks.status();
      const std::string expected = FrameBytes(seed_, round, i, frame.size_bytes);
      for (size_t k = 0; k < chunks->size(); ++k) {
        std::string bytes((*chunks)[k].size_bytes, '\0');
        REQUIRE_OK(cuda::CopyAsync(static_cast<const char*>((*chunks)[k].data), bytes.data(),
                                   bytes.size(), stream_->get()));
        REQUIRE_OK(stream_->Synchronize());
        REQUIRE((bytes == expected.substr(frame.chunks[k].offset, frame.chunks[k].size_bytes)));
      }
      (*receiver)->Release();
      Say("frame ", round, " ", i);
    }
    std::ofstream(DonePath(round, plan.index)) << "done";
    return absl::OkStatus();
  }

  static std::string DonePath(uint32_t round, uint32_t index) {
    return absl::StrCat(Setting("WSTORE_FOLDER"), "/done-", round, "-", index);
  }

  const std::string rank_ = Setting("WSTORE_RANK");
  const uint64_t seed_ = Number(Setting("WSTORE_SEED"));
  const uint64_t frames_ = Number(Setting("WSTORE_FRAMES"));
  const uint64_t frame_bytes_ = Number(Setting("WSTORE_FRAME_BYTES"));
  const int64_t deadline_micros_ = static_cast<int64_t>(Number(Setting("WSTORE_DEADLINE")));
  const std::unique_ptr<CudaMemory> memory_ = MakeCudaPoolMemory();
  const absl::StatusOr<OwnedCudaStream> stream_ = OwnedCudaStream::Create();
  std::shared_ptr<TransferPort> port_;
  int64_t last_ = 0;
};

}  // namespace

TEST_CASE("a rank of a transfer group", "[.rank]") {
  REQUIRE_GPU();
  REQUIRE_OK(UseCudaDevice(static_cast<int>(Number(Setting("WSTORE_DEVICE")))));
  Rank().Run();
}

TEST_CASE("a rank on the root's GPU", "[.rank]") {
  REQUIRE_GPU();
  const std::unique_ptr<CudaMemory> memory = MakeCudaPoolMemory();
  const absl::StatusOr<OwnedCudaStream> stream = OwnedCudaStream::Create();
  REQUIRE_OK(stream);
  const auto port = MakeCudaTransferPort(memory.get());
  REQUIRE_OK(port);
  TransferPlan plan;
  plan.epoch = 1;
  plan.route = TransferRoute::kShared;
  plan.frame_bytes = 1 << 20;
  const auto receiver = (*port)->Join(plan, Deadline::After(kMinute), {});
  REQUIRE_OK(receiver);
  FrameHeader frame;
  frame.epoch = 1;
  frame.size_bytes = Number(Setting("WSTORE_FRAME_BYTES"));
  frame.chunks = {{0, frame.size_bytes}};
  frame.location = Setting("WSTORE_LOCATION");
  REQUIRE_OK((*receiver)->Enter(frame, Deadline::After(kMinute)));
  const auto chunks = (*receiver)->Await(Deadline::After(kMinute));
  if (!chunks.ok()) {
    std::cout << "refused " << chunks.status() << std::endl;
    return;
  }
  std::string bytes((*chunks)[0].size_bytes, '\0');
  REQUIRE_OK(cuda::CopyAsync(static_cast<const char*>((*chunks)[0].data), bytes.data(),
                             bytes.size(), stream->get()));
  REQUIRE_OK(stream->Synchronize());
  std::cout << "read " << ToHex(Sha256().Update(std::string_view(bytes)).Finish()) << std::endl;
}

std::string ReadInOtherProcess(const std::string& location, uint64_t size_bytes) {
  const TempDir folder;
  ChildProcess::Options options;
  options.out_path = folder / "out";
  options.environment = {{"WSTORE_LOCATION", location},
                         {"WSTORE_FRAME_BYTES", absl::StrCat(size_bytes)}};
  std::vector<std::string> command = ThisProgram();
  command.push_back("a rank on the root's GPU");
  const auto process = ChildProcess::Start(command, options);
  REQUIRE_OK(process);
  LineFollower lines(options.out_path);
  const auto line = lines.Find(
      [](const std::string& text) {
        return text.rfind("read ", 0) == 0 || text.rfind("refused ", 0) == 0;
      },
      kMinute);
  REQUIRE(line.has_value());
  REQUIRE((*process)->Wait(kMinute) == 0);
  return *line;
}

TransferRanks::TransferRanks(const TransferScript& script, uint64_t seed) {
  std::vector<std::string> rounds;
  for (const std::vector<uint32_t>& members : script.rounds) {
    rounds.push_back(absl::StrJoin(members, ","));
    for (const uint32_t rank : members) ranks_[rank];
  }
  for (auto& [rank, made] : ranks_) {
    std::vector<std::string> faults;
    for (const TransferScript::Fault& fault : script.faults) {
      if (fault.rank != rank) continue;
      faults.push_back(absl::StrCat(fault.round, ":", fault.at, ":", fault.how));
    }
    ChildProcess::Options options;
    options.out_path = folder_ / absl::StrCat("rank-", rank);
    const bool on_one = script.place == TransferScript::Place::kOneGpu;
    options.environment = {{"NCCL_SOCKET_IFNAME", "lo"},
                           {"WSTORE_RANK", absl::StrCat(rank)},
                           {"WSTORE_DEVICE", absl::StrCat(on_one ? 0 : script.devices.at(rank))},
                           {"WSTORE_SEED", absl::StrCat(seed)},
                           {"WSTORE_FOLDER", folder_.path()},
                           {"WSTORE_ROUNDS", absl::StrJoin(rounds, ";")},
                           {"WSTORE_FAULTS", absl::StrJoin(faults, ";")},
                           {"WSTORE_FRAMES", absl::StrCat(script.frames)},
                           {"WSTORE_FRAME_BYTES", absl::StrCat(script.frame_bytes)},
                           {"WSTORE_DEADLINE", absl::StrCat(script.deadline_micros)}};
    if (script.place != TransferScript::Place::kGpus) {
      options.environment.emplace("NCCL_HOSTID", absl::StrCat("host-", rank));
    }
    if (script.place == TransferScript::Place::kMachines) {
      options.environment.emplace("NCCL_P2P_DISABLE", "1");
      options.environment.emplace("NCCL_SHM_DISABLE", "1");
    }
    std::vector<std::string> command = ThisProgram();
    command.push_back("a rank of a transfer group");
    auto process = ChildProcess::Start(command, options);
    REQUIRE_OK(process);
    made.process = *std::move(process);
    made.lines = std::make_unique<LineFollower>(options.out_path);
  }
}

std::string TransferRanks::Find(uint32_t rank, const std::string& begin) {
  const auto line = ranks_.at(rank).lines->Find(
      [&](const std::string& text) { return text.rfind(begin, 0) == 0; }, kMinute);
  INFO("rank " << rank << " never said '" << begin << "':\n" << Output(rank));
  REQUIRE(line.has_value());
  return *line;
}

std::string TransferRanks::Output(uint32_t rank) const {
  std::ifstream file(ranks_.at(rank).process->options().out_path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace wstore::testing
