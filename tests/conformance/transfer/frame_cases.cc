#include "tests/conformance/transfer/frame_cases.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"

namespace wstore::testing {
namespace {

constexpr int64_t kSecond = 1'000'000;
constexpr int64_t kPatience = 20 * kSecond;
constexpr uint64_t kFrameBytes = 1 << 20;
constexpr uint64_t kFrames = 6;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
constexpr auto kCancelled = absl::StatusCode::kCancelled;
constexpr auto kDeadline = absl::StatusCode::kDeadlineExceeded;

Deadline Soon() { return Deadline::After(kPatience); }

// Assertions are not for threads, and a status crosses processes.
absl::Status Holds(bool holds, const std::string& what) {
  return holds ? absl::OkStatus() : absl::InternalError(absl::StrCat("not so: ", what));
}
absl::Status HasCode(const absl::Status& status, absl::StatusCode code, const std::string& what) {
  return Holds(status.code() == code, absl::StrCat(what, " is ", absl::StatusCodeToString(code),
                                                   ", but: ", status.ToString()));
}

std::string BytesOf(const FrameParty& party, uint64_t sequence, uint64_t size_bytes) {
  std::mt19937_64 random(party.seed + sequence);
  std::string bytes(size_bytes, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// A party in the group of `epoch`: its end of it, and frames in the root's memory.
class Member {
 public:
  explicit Member(const FrameParty& party) : party_(party), meeting_(party.folder) {
    plan_.epoch = 7;
    plan_.route = party.route;
    plan_.frame_bytes = kFrameBytes;
    plan_.index = party.index;
    if (party.route != TransferRoute::kNccl) return;
    plan_.size = party.ranks + 1;
  }

  absl::Status Join() {
    if (party_.route == TransferRoute::kNccl) {
      if (is_root()) {
        ASSIGN_OR_RETURN(const std::string id, party_.port->NewUniqueId());
        RETURN_IF_ERROR(meeting_.Say("id", id));
      }
      ASSIGN_OR_RETURN(plan_.unique_id, meeting_.Hear("id"));
    }
    if (is_root()) {
      ASSIGN_OR_RETURN(sender_, party_.port->Lead(plan_, Soon(), {}));
    } else {
      ASSIGN_OR_RETURN(receiver_, party_.port->Join(plan_, Soon(), {}));
    }
    return absl::OkStatus();
  }

  bool is_root() const { return party_.index == 0; }
  bool waits() const { return party_.route == TransferRoute::kNccl; }
  const TransferPlan& plan() const { return plan_; }
  FrameSender& sender() { return *sender_; }
  FrameReceiver& receiver() { return *receiver_; }

  // Frames of several sizes, with chunks that leave gaps, from the middle of an allocation.
  FrameHeader Frame(uint64_t sequence) const {
    FrameHeader frame;
    frame.epoch = plan_.epoch;
    frame.sequence = sequence;
    frame.transaction = TransactionNumber(3);
    frame.size_bytes = kFrameBytes - 1600 * sequence;
    frame.chunks = {{0, 1}, {16, 4000}, {4096, frame.size_bytes - 4096}};
    return frame;
  }
  // The root's: puts the bytes there, and says where.
  absl::StatusOr<FrameHeader> Place(uint64_t sequence) {
    FrameHeader frame = Frame(sequence);
    const std::string bytes = BytesOf(party_, sequence, frame.size_bytes);
    auto* const at = static_cast<uint8_t*>(party_.device->Allocate(bytes.size() + 256)) + 256;
    party_.device->Write(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), at);
    placed_.push_back(at);
    ASSIGN_OR_RETURN(frame.location, sender_->Locate(at, frame.size_bytes));
    RETURN_IF_ERROR(meeting_.Say(absl::StrCat("frame-", sequence), frame.location));
    return frame;
  }
  absl::Status Send(const FrameHeader& frame) {
    return sender_->Send(frame, placed_.at(frame.sequence), Soon());
  }
  // A rank's: the frame as it was announced.
  absl::StatusOr<FrameHeader> Announced(uint64_t sequence) {
    FrameHeader frame = Frame(sequence);
    ASSIGN_OR_RETURN(frame.location, meeting_.Hear(absl::StrCat("frame-", sequence)));
    return frame;
  }
  absl::Status Compare(uint64_t sequence, const std::vector<DeviceChunk>& chunks) const {
    const FrameHeader frame = Frame(sequence);
    const std::string bytes = BytesOf(party_, sequence, frame.size_bytes);
    RETURN_IF_ERROR(Holds(chunks.size() == frame.chunks.size(), "all chunks are there"));
    for (size_t i = 0; i < chunks.size(); ++i) {
      const FrameHeader::Chunk& expected = frame.chunks[i];
      std::string read(chunks[i].size_bytes, '\0');
      party_.device->Read(chunks[i].data, read.size(), reinterpret_cast<uint8_t*>(read.data()));
      RETURN_IF_ERROR(Holds(read == bytes.substr(expected.offset, expected.size_bytes),
                            absl::StrCat("chunk ", i, " of frame ", sequence, " is the root's")));
    }
    return absl::OkStatus();
  }

  // Until all parties have come here.
  absl::Status Meet(const std::string& where) {
    RETURN_IF_ERROR(meeting_.Say(absl::StrCat(where, "-", party_.index), ""));
    for (uint32_t i = 0; i <= party_.ranks; ++i) {
      RETURN_IF_ERROR(meeting_.Hear(absl::StrCat(where, "-", i)).status());
    }
    return absl::OkStatus();
  }

 private:
  const FrameParty party_;
  const Meeting meeting_;
  TransferPlan plan_;
  std::vector<const void*> placed_;
  std::unique_ptr<FrameSender> sender_;
  std::unique_ptr<FrameReceiver> receiver_;
};

// Each frame comes whole, as many at a time as may be held, and stays until it is released.
absl::Status PlayOrder(const FrameParty& party) {
  Member member(party);
  RETURN_IF_ERROR(member.Join());
  if (member.is_root()) {
    for (uint64_t i = 0; i < kFrames; ++i) {
      ASSIGN_OR_RETURN(const FrameHeader frame, member.Place(i));
      RETURN_IF_ERROR(member.Send(frame));
    }
    RETURN_IF_ERROR(member.sender().Drain(Soon()));
    return member.Meet("end");
  }
  FrameReceiver& receiver = member.receiver();
  const auto enter = [&](uint64_t i) -> absl::Status {
    ASSIGN_OR_RETURN(const FrameHeader frame, member.Announced(i));
    return receiver.Enter(frame, Soon());
  };
  static_assert(kFrames > kMaxHeldFrames);
  for (uint64_t i = 0; i < kMaxHeldFrames; ++i) RETURN_IF_ERROR(enter(i));
  ASSIGN_OR_RETURN(std::vector<DeviceChunk> held, receiver.Await(Soon()));
  for (uint64_t i = 0; i < kFrames; ++i) {
    RETURN_IF_ERROR(member.Compare(i, held));
    const uint64_t next_entered = i + kMaxHeldFrames;
    if (next_entered < kFrames) {
      RETURN_IF_ERROR(HasCode(enter(next_entered), kPrecondition, "a frame too many"));
    }
    if (i + 1 == kFrames) break;
    ASSIGN_OR_RETURN(std::vector<DeviceChunk> next, receiver.Await(Soon()));
    RETURN_IF_ERROR(member.Compare(i, held));
    receiver.Release();
    if (next_entered < kFrames) RETURN_IF_ERROR(enter(next_entered));
    held = std::move(next);
  }
  receiver.Release();
  return member.Meet("end");
}

std::vector<std::pair<FrameHeader, absl::StatusCode>> WrongFrames(const FrameHeader& right) {
  std::vector<std::pair<FrameHeader, absl::StatusCode>> wrong(8, {right, kInvalid});
  wrong[0] = {right, kPrecondition};
  wrong[0].first.epoch -= 1;
  wrong[1] = {right, kPrecondition};
  wrong[1].first.sequence += 1;
  wrong[2].first.size_bytes = 0;
  wrong[3].first.size_bytes = kFrameBytes + 16;
  wrong[4].first.chunks.clear();
  wrong[5].first.chunks = {{0, 32}, {16, 16}};
  wrong[6].first.chunks = {{8, 16}};
  wrong[7].first.chunks = {{16, right.size_bytes}};
  return wrong;
}

// What does not fit is refused before it is entered, and changes nothing.
absl::Status PlayRefusals(const FrameParty& party) {
  Member member(party);
  RETURN_IF_ERROR(member.Join());
  TransferPlan bad = member.plan();
  bad.frame_bytes = 0;
  RETURN_IF_ERROR(HasCode(party.port->Join(bad, Soon(), {}).status(), kInvalid, "frames of 0"));
  bad = member.plan();
  bad.route = TransferRoute::kService;
  RETURN_IF_ERROR(HasCode(party.port->Lead(bad, Soon(), {}).status(), kInvalid, "no route"));
  for (uint64_t i = 0; i < 2; ++i) {
    absl::StatusOr<FrameHeader> frame = member.is_root() ? member.Place(i) : member.Announced(i);
    RETURN_IF_ERROR(frame.status());
    size_t number = 0;
    for (const auto& [wrong, code] : WrongFrames(*frame)) {
      const absl::Status refused = member.is_root() ? member.sender().Send(wrong, nullptr, Soon())
                                                    : member.receiver().Enter(wrong, Soon());
      RETURN_IF_ERROR(HasCode(refused, code, absl::StrCat("wrong frame ", number++)));
    }
    if (member.is_root()) {
      RETURN_IF_ERROR(member.Send(*frame));
      continue;
    }
    RETURN_IF_ERROR(HasCode(member.receiver().Await(Soon()).status(), kPrecondition, "no frame"));
    RETURN_IF_ERROR(member.receiver().Enter(*frame, Soon()));
    ASSIGN_OR_RETURN(const std::vector<DeviceChunk> chunks, member.receiver().Await(Soon()));
    RETURN_IF_ERROR(member.Compare(i, chunks));
    member.receiver().Release();
  }
  if (member.is_root()) RETURN_IF_ERROR(member.sender().Drain(Soon()));
  return member.Meet("end");
}

// A frame without bytes ends a set: it has its place among the others, and no chunks.
absl::Status PlayEnd(const FrameParty& party) {
  Member member(party);
  RETURN_IF_ERROR(member.Join());
  FrameHeader end;
  end.epoch = member.plan().epoch;
  end.sequence = 1;
  FrameHeader nothing = end;
  end.is_last = true;
  if (member.is_root()) {
    std::vector<FrameHeader> placed;
    for (uint64_t i = 0; i < 3; ++i) {
      ASSIGN_OR_RETURN(placed.emplace_back(), member.Place(i));
    }
    RETURN_IF_ERROR(member.Send(placed[0]));
    RETURN_IF_ERROR(HasCode(member.sender().Send(nothing, nullptr, Soon()), kInvalid, "nothing"));
    RETURN_IF_ERROR(member.sender().Send(end, nullptr, Soon()));
    RETURN_IF_ERROR(member.Send(placed[2]));
    RETURN_IF_ERROR(member.sender().Drain(Soon()));
    return member.Meet("end");
  }
  FrameReceiver& receiver = member.receiver();
  for (const uint64_t i : {0, 2}) {
    ASSIGN_OR_RETURN(const FrameHeader frame, member.Announced(i));
    RETURN_IF_ERROR(receiver.Enter(frame, Soon()));
    if (i == 0) {
      RETURN_IF_ERROR(HasCode(receiver.Enter(nothing, Soon()), kInvalid, "nothing"));
      RETURN_IF_ERROR(receiver.Enter(end, Soon()));
    }
    ASSIGN_OR_RETURN(const std::vector<DeviceChunk> chunks, receiver.Await(Soon()));
    RETURN_IF_ERROR(member.Compare(i, chunks));
    receiver.Release();
    if (i == 2) break;
    ASSIGN_OR_RETURN(const std::vector<DeviceChunk> none, receiver.Await(Soon()));
    RETURN_IF_ERROR(Holds(none.empty(), "an end has no chunks"));
    receiver.Release();
  }
  return member.Meet("end");
}

// Who takes which frame: all, some, and nobody that is a rank of a communicator.
std::vector<uint32_t> AudienceOf(const FrameParty& party, uint64_t sequence) {
  switch (sequence) {
    case 1:
      return {1};
    case 2:
    case 4:
      return {party.ranks};
    case 3: {
      std::vector<uint32_t> all;
      for (uint32_t i = 1; i <= party.ranks; ++i) all.push_back(i);
      return all;
    }
    case 5:
      return {party.ranks + 1};  // of whom the others know nothing
    default:
      return {};
  }
}

// Frames for some: they have their place in the order at all, and bytes for those alone.
absl::Status PlayAudience(const FrameParty& party) {
  constexpr uint64_t kSent = 8;
  Member member(party);
  RETURN_IF_ERROR(member.Join());
  const auto named = [&](absl::StatusOr<FrameHeader> frame) {
    if (frame.ok()) frame->audience = AudienceOf(party, frame->sequence);
    return frame;
  };
  const std::vector<std::vector<uint32_t>> wrong = {{0}, {1, 1}, {2, 1}, {0, 1}};
  if (member.is_root()) {
    for (uint64_t i = 0; i < kSent; ++i) {
      ASSIGN_OR_RETURN(FrameHeader frame, named(member.Place(i)));
      for (const std::vector<uint32_t>& audience : wrong) {
        FrameHeader bad = frame;
        bad.audience = audience;
        RETURN_IF_ERROR(
            HasCode(member.sender().Send(bad, nullptr, Soon()), kInvalid, "a wrong audience"));
      }
      RETURN_IF_ERROR(member.Send(frame));
    }
    RETURN_IF_ERROR(member.sender().Drain(Soon()));
    return member.Meet("end");
  }
  FrameReceiver& receiver = member.receiver();
  uint64_t entered = 0;
  for (uint64_t i = 0; i < kSent; ++i) {
    for (; entered < std::min(i + 2, kSent); ++entered) {
      ASSIGN_OR_RETURN(const FrameHeader frame, named(member.Announced(entered)));
      for (const std::vector<uint32_t>& audience : wrong) {
        FrameHeader bad = frame;
        bad.audience = audience;
        RETURN_IF_ERROR(HasCode(receiver.Enter(bad, Soon()), kInvalid, "a wrong audience"));
      }
      RETURN_IF_ERROR(receiver.Enter(frame, Soon()));
    }
    ASSIGN_OR_RETURN(const std::vector<DeviceChunk> chunks, receiver.Await(Soon()));
    const std::vector<uint32_t> audience = AudienceOf(party, i);
    const bool is_mine = audience.empty() ||
                         std::find(audience.begin(), audience.end(), party.index) != audience.end();
    if (is_mine) {
      RETURN_IF_ERROR(member.Compare(i, chunks));
    } else {
      RETURN_IF_ERROR(Holds(chunks.empty(), "a frame for others has no chunks"));
    }
    receiver.Release();
  }
  return member.Meet("end");
}

// Of a frame that the root announces and never sends. Where ranks read the root's memory it is
// there all the same.
absl::Status PlayCancel(const FrameParty& party) {
  Member member(party);
  RETURN_IF_ERROR(member.Join());
  if (member.is_root()) {
    RETURN_IF_ERROR(member.Place(0).status());
    RETURN_IF_ERROR(member.Meet("cancelled"));
    std::thread([&] { member.sender().Cancel(); }).join();
    RETURN_IF_ERROR(HasCode(member.Send(member.Frame(0)), kCancelled, "sending"));
    RETURN_IF_ERROR(HasCode(member.sender().Drain(Soon()), kCancelled, "draining"));
    return member.Meet("end");
  }
  ASSIGN_OR_RETURN(const FrameHeader frame, member.Announced(0));
  std::thread canceller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(member.waits() ? 100 : 0));
    member.receiver().Cancel();
  });
  const auto begun = std::chrono::steady_clock::now();
  // A first collective may wait for the root already where it is entered.
  absl::Status awaited = member.receiver().Enter(frame, Soon());
  if (awaited.ok()) awaited = member.receiver().Await(Soon()).status();
  const auto took = std::chrono::steady_clock::now() - begun;
  canceller.join();
  RETURN_IF_ERROR(Holds(awaited.code() == kCancelled || (!member.waits() && awaited.ok()),
                        absl::StrCat("it was cancelled, but: ", awaited.ToString())));
  RETURN_IF_ERROR(Holds(took < std::chrono::seconds(5), "it returned soon"));
  RETURN_IF_ERROR(
      HasCode(member.receiver().Enter(member.Frame(1), Soon()), kCancelled, "entering"));
  RETURN_IF_ERROR(HasCode(member.receiver().Await(Soon()).status(), kCancelled, "waiting"));
  RETURN_IF_ERROR(member.Meet("cancelled"));
  return member.Meet("end");
}

// What waits for others ends in time.
absl::Status PlayDeadline(const FrameParty& party) {
  Member member(party);
  RETURN_IF_ERROR(member.Join());
  const Deadline early = Deadline::After(kSecond / 5);
  if (member.is_root()) {
    RETURN_IF_ERROR(member.Place(0).status());
    RETURN_IF_ERROR(member.Meet("missed"));
  } else {
    ASSIGN_OR_RETURN(const FrameHeader frame, member.Announced(0));
    absl::Status missed = member.receiver().Enter(frame, early);
    if (missed.ok()) missed = member.receiver().Await(early).status();
    RETURN_IF_ERROR(Holds(missed.code() == kDeadline || (!member.waits() && missed.ok()),
                          absl::StrCat("the deadline passed, but: ", missed.ToString())));
    RETURN_IF_ERROR(member.Meet("missed"));
  }
  // Nobody else comes to this group.
  TransferPlan alone = member.plan();
  if (member.waits()) {
    ASSIGN_OR_RETURN(alone.unique_id, party.port->NewUniqueId());
    alone.index = 0;
    alone.size = 2;
  }
  const Deadline passes = Deadline::After(kSecond / 2);
  const absl::Status late = party.port->Lead(alone, passes, {}).status();
  RETURN_IF_ERROR(Holds(member.waits() ? late.code() == kDeadline : late.ok(),
                        absl::StrCat("nobody came, but: ", late.ToString())));
  return member.Meet("end");
}

constexpr FrameCase kCases[] = {
    {"order", PlayOrder},       {"refusals", PlayRefusals}, {"end", PlayEnd},
    {"audience", PlayAudience}, {"cancel", PlayCancel},     {"deadline", PlayDeadline},
};

}  // namespace

absl::Status Meeting::Say(const std::string& about, const std::string& what) const {
  const std::string path = absl::StrCat(folder_, "/", about);
  std::ofstream(path + ".new", std::ios::binary) << what;
  std::error_code error;
  std::filesystem::rename(path + ".new", path, error);
  return error ? absl::InternalError(error.message()) : absl::OkStatus();
}

absl::StatusOr<std::string> Meeting::Hear(const std::string& about) const {
  const std::string path = absl::StrCat(folder_, "/", about);
  const Deadline deadline = Deadline::After(30 * kSecond);
  while (!std::filesystem::exists(path)) {
    if (deadline.has_passed()) return absl::DeadlineExceededError("nobody said: " + about);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

absl::Span<const FrameCase> FrameCases() { return kCases; }

const FrameCase& FrameCaseNamed(const std::string& name) {
  const FrameCase* found = nullptr;
  for (const FrameCase& known : kCases) {
    if (name == known.name) found = &known;
  }
  WSTORE_CHECK(found != nullptr);
  return *found;
}

std::vector<absl::Status> PlayInThreads(
    const FrameCase& played, uint32_t ranks, TransferRoute route,
    const std::function<std::shared_ptr<TransferPort>()>& make_port) {
  const TempDir folder;
  const uint64_t seed = TestSeed(played.name);
  std::vector<absl::Status> statuses(ranks + 1);
  // Ranks read the root's memory until all have ended.
  std::vector<std::unique_ptr<TestDevice>> devices;
  std::vector<std::shared_ptr<TransferPort>> ports;
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i <= ranks; ++i) {
    devices.push_back(MakeTestDevice());
    ports.push_back(make_port());
  }
  for (uint32_t i = 0; i <= ranks; ++i) {
    threads.emplace_back([&, i] {
      statuses[i] =
          played.play({ports[i].get(), devices[i].get(), route, i, ranks, seed, folder.path()});
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

}  // namespace wstore::testing
