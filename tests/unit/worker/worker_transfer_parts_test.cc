// Sets that a publisher sends in parts, while it makes the rest of them.
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <random>

#include "store/client/frame_cutting.h"
#include "tests/conformance/transfer/open_publish.h"
#include "tests/support/random.h"
#include "tests/unit/worker/served_model.h"
#include "wstore/client.h"
#include "wstore/local_transfer.h"
#include "wstore/transfer_lead.h"
#include "wstore/worker.h"

namespace wstore::testing {
namespace {

using SetPart = TransferLead::SetPart;

constexpr int64_t kSecond = 1'000'000;
constexpr uint64_t kGapBytes = 8192;

// What a root sent, and where it fails.
struct Sent {
  std::mutex mutex;
  std::vector<FrameHeader> frames;
  int drains = 0;
  int fails_at = -1;  // frame

  std::vector<FrameHeader> Take() {
    const std::lock_guard<std::mutex> lock(mutex);
    return std::exchange(frames, {});
  }
};

class WatchedSender final : public FrameSender {
 public:
  WatchedSender(std::unique_ptr<FrameSender> sender, std::shared_ptr<Sent> sent)
      : sender_(std::move(sender)), sent_(std::move(sent)) {}

  absl::StatusOr<std::string> Locate(const void* data, uint64_t size_bytes) override {
    return sender_->Locate(data, size_bytes);
  }
  absl::Status Send(const FrameHeader& frame, const void* data, Deadline deadline) override {
    const std::lock_guard<std::mutex> lock(sent_->mutex);
    if (static_cast<int>(sent_->frames.size()) == sent_->fails_at) {
      return absl::DeadlineExceededError("a rank did not enter");
    }
    sent_->frames.push_back(frame);
    return sender_->Send(frame, data, deadline);
  }
  absl::Status Drain(Deadline deadline) override {
    const std::lock_guard<std::mutex> lock(sent_->mutex);
    ++sent_->drains;
    return sender_->Drain(deadline);
  }
  void Cancel() override { sender_->Cancel(); }

 private:
  const std::unique_ptr<FrameSender> sender_;
  const std::shared_ptr<Sent> sent_;
};

class WatchedPort final : public TransferPort {
 public:
  explicit WatchedPort(std::shared_ptr<Sent> sent) : sent_(std::move(sent)) {}

  TransferHello hello() const override { return port_->hello(); }
  absl::StatusOr<std::string> NewUniqueId() override { return port_->NewUniqueId(); }
  absl::StatusOr<std::unique_ptr<FrameReceiver>> Join(const TransferPlan& plan, Deadline deadline,
                                                      std::function<bool()> cancelled) override {
    return port_->Join(plan, deadline, std::move(cancelled));
  }
  absl::StatusOr<std::unique_ptr<FrameSender>> Lead(const TransferPlan& plan, Deadline deadline,
                                                    std::function<bool()> cancelled) override {
    auto sender = port_->Lead(plan, deadline, std::move(cancelled));
    if (!sender.ok()) return sender.status();
    return std::make_unique<WatchedSender>(*std::move(sender), sent_);
  }

 private:
  const std::shared_ptr<TransferPort> port_ = MakeLocalTransferPort();
  const std::shared_ptr<Sent> sent_;
};

// Chunks with gaps that no frame goes over, so that each is a frame.
class Spread {
 public:
  explicit Spread(const std::vector<std::string>& chunks) {
    uint64_t size = 0;
    for (const std::string& chunk : chunks) size += chunk.size() + kGapBytes;
    blocks_.resize(size / 16 + 1);
    uint64_t at = 0;
    for (const std::string& chunk : chunks) {
      char* const to = reinterpret_cast<char*>(blocks_.data()) + at;
      std::memcpy(to, chunk.data(), chunk.size());
      chunks_.push_back({to, chunk.size()});
      at += (chunk.size() + kGapBytes) / 16 * 16;
    }
  }
  const std::vector<DeviceChunk>& chunks() const { return chunks_; }

 private:
  struct alignas(16) Block {
    char bytes[16];
  };
  std::vector<Block> blocks_;
  std::vector<DeviceChunk> chunks_;
};

// Between the beginning of a publish and the put of its chunks.
using Carry = std::function<void(TransactionNumber, const std::vector<std::string>&)>;

// Publishes what `carry` sends past the server. The version.
uint64_t PublishCarried(ServedModel& served, const std::string& id, const NaiveTensors& next,
                        const Carry& carry) {
  OpenPublish::Options options;
  options.id = id;
  OpenPublish publish(served, served.versions.rbegin()->first, next, options);
  carry(publish.transaction, publish.chunks[0]);
  REQUIRE(publish.Put().ok());
  v1::Decision decision;
  REQUIRE(publish.Commit(&decision).ok());
  return decision.version().version();
}

struct Parts {
  explicit Parts(uint64_t seed) : served(seed), near(served, "near", 2) {
    auto started = TransferLead::Start(served.connect(), std::make_shared<WatchedPort>(sent), {});
    REQUIRE_OK(started);
    lead = *std::move(started);
    for (auto& rank : near.ranks) rank->options.transfer = MakeLocalTransferPort();
    near.Start();
    near.AwaitServing(0);
    REQUIRE_OK(lead->AwaitRanks(2, Deadline::After(10 * kSecond)));
  }

  absl::Status Send(TransactionNumber transaction, size_t first, size_t end, SetPart part) {
    const absl::Span<const DeviceChunk> all = spread->chunks();
    return lead->SendPart(transaction, all.subspan(first, end - first), part,
                          Deadline::After(5 * kSecond));
  }
  // Publishes what `carry` sends, and sees that it is served.
  void Publish(const std::string& id, double density) {
    const NaiveTensors next = served.Changed(served.versions.rbegin()->second, density);
    const uint64_t version = PublishCarried(served, id, next, carry);
    near.AwaitServing(version);
    near.RequireHolds(next);
  }
  uint64_t CarriedBytes() { return near.ranks[0]->worker().status().carried_bytes; }
  void RequireNobodyOut() {
    for (auto& rank : near.ranks) {
      INFO(rank->log());
      REQUIRE(rank->log().find("event=out") == std::string::npos);
    }
  }

  std::shared_ptr<Sent> sent = std::make_shared<Sent>();
  ServedModel served;
  TestInstance near;
  Carry carry;
  std::unique_ptr<Spread> spread;
  std::unique_ptr<TransferLead> lead;
};

uint64_t SizeOf(const std::vector<std::string>& chunks) {
  uint64_t size = 0;
  for (const std::string& chunk : chunks) size += chunk.size();
  return size;
}

}  // namespace

TEST_CASE("a set comes in any number of parts, and all ranks hold it") {
  Parts parts(TestSeed("parts"));
  size_t count = 0;
  bool ends_empty = false;
  SECTION("one") { count = 1; }
  SECTION("three, of which one is empty") { count = 3; }
  SECTION("one for each chunk") { count = 1000; }
  SECTION("two and an empty last one") {
    count = 2;
    ends_empty = true;
  }
  uint64_t bytes = 0;
  size_t frames = 0;
  parts.carry = [&](TransactionNumber transaction, const std::vector<std::string>& chunks) {
    parts.spread = std::make_unique<Spread>(chunks);
    bytes += SizeOf(chunks);
    REQUIRE(chunks.size() > 2);
    frames = chunks.size() + (ends_empty ? 1 : 0);
    const size_t each = (chunks.size() + count - 1) / count;
    if (count == 3) REQUIRE_OK(parts.Send(transaction, 0, 0, SetPart::kMore));
    for (size_t first = 0; first < chunks.size(); first += each) {
      const size_t end = std::min(first + each, chunks.size());
      const bool is_last = end == chunks.size() && !ends_empty;
      REQUIRE_OK(parts.Send(transaction, first, end, is_last ? SetPart::kLast : SetPart::kMore));
      // What was sent is on its way before the rest is there.
      REQUIRE(parts.sent->frames.size() == end);
    }
    REQUIRE(parts.sent->drains == (ends_empty ? 0 : 1));
    if (ends_empty) REQUIRE_OK(parts.Send(transaction, 0, 0, SetPart::kLast));
  };
  for (const char* id : {"first", "second"}) {
    parts.sent->drains = 0;
    parts.Publish(id, 0.2);
    REQUIRE(parts.sent->drains == 1);
    const std::vector<FrameHeader> sent = parts.sent->Take();
    REQUIRE(sent.size() == frames);
    for (size_t i = 0; i < sent.size(); ++i) {
      REQUIRE(sent[i].is_last == (i + 1 == sent.size()));
      REQUIRE(sent[i].transaction == sent[0].transaction);
    }
    REQUIRE(sent.back().chunks.empty() == ends_empty);
    // All of it came this way.
    REQUIRE(WaitUntil([&] { return parts.CarriedBytes() == bytes; }));
  }
  parts.RequireNobodyOut();
}

TEST_CASE("a set of which a part fails ends there, and the ranks fetch the rest") {
  Parts parts(TestSeed("parts that fail"));
  const uint64_t epoch = parts.lead->status().epoch;
  parts.carry = [&](TransactionNumber transaction, const std::vector<std::string>& chunks) {
    parts.spread = std::make_unique<Spread>(chunks);
    REQUIRE(chunks.size() > 3);
    parts.sent->fails_at = 2;
    REQUIRE_OK(parts.Send(transaction, 0, 1, SetPart::kMore));
    REQUIRE_ERROR(parts.Send(transaction, 1, 3, SetPart::kMore),
                  absl::StatusCode::kDeadlineExceeded, "a rank did not enter");
    parts.sent->fails_at = -1;
    // Not even by the group that is formed meanwhile, of which the ranks would expect all.
    REQUIRE_OK(parts.lead->AwaitRanks(2, Deadline::After(10 * kSecond)));
    REQUIRE(parts.lead->status().epoch > epoch);
    REQUIRE_ERROR(parts.Send(transaction, 3, chunks.size(), SetPart::kLast),
                  absl::StatusCode::kDeadlineExceeded, "a rank did not enter");
    REQUIRE(parts.sent->Take().size() == 2);
  };
  parts.Publish("first", 0.2);
  parts.RequireNobodyOut();
  // The next set is whole.
  parts.carry = [&](TransactionNumber transaction, const std::vector<std::string>& chunks) {
    parts.spread = std::make_unique<Spread>(chunks);
    REQUIRE_OK(parts.Send(transaction, 0, 1, SetPart::kMore));
    REQUIRE_OK(parts.Send(transaction, 1, chunks.size(), SetPart::kLast));
  };
  const uint64_t before = parts.CarriedBytes();
  parts.Publish("second", 0.1);
  REQUIRE(WaitUntil([&] { return parts.CarriedBytes() > before; }));
}

TEST_CASE("a set without a group is not begun in its middle") {
  Parts parts(TestSeed("parts without a group"));
  parts.carry = [&](TransactionNumber transaction, const std::vector<std::string>& chunks) {
    parts.spread = std::make_unique<Spread>(chunks);
    // Another publisher, which leads once this one has gone.
    parts.lead.reset();
    auto started =
        TransferLead::Start(parts.served.connect(), std::make_shared<WatchedPort>(parts.sent), {});
    REQUIRE_OK(started);
    parts.lead = *std::move(started);
    REQUIRE_ERROR(parts.Send(transaction, 0, 1, SetPart::kMore), absl::StatusCode::kUnavailable,
                  "no transfer group is ready");
    REQUIRE_OK(parts.lead->AwaitRanks(2, Deadline::After(10 * kSecond)));
    REQUIRE_ERROR(parts.Send(transaction, 1, chunks.size(), SetPart::kLast),
                  absl::StatusCode::kUnavailable, "no transfer group is ready");
    REQUIRE(parts.sent->Take().empty());
  };
  parts.Publish("first", 0.2);
  parts.RequireNobodyOut();
}

TEST_CASE("a transaction that is taken back between two parts leaves nothing behind") {
  Parts parts(TestSeed("parts taken back"));
  bool ends = true;
  SECTION("and its set is ended") {}
  SECTION("and its set is left open") { ends = false; }
  OpenPublish::Options options;
  options.id = "given up";
  OpenPublish publish(parts.served, 0, parts.served.Changed(parts.served.versions.at(0), 0.2),
                      options);
  const TransactionNumber transaction = publish.transaction;
  const std::vector<std::string>& chunks = publish.chunks[0];
  parts.spread = std::make_unique<Spread>(chunks);
  REQUIRE_OK(parts.Send(transaction, 0, 2, SetPart::kMore));
  REQUIRE(publish.Abort().ok());
  REQUIRE_OK(parts.Send(transaction, 2, 3, SetPart::kMore));
  if (ends) REQUIRE_OK(parts.Send(transaction, 0, 0, SetPart::kLast));
  parts.near.RequireHolds(parts.served.versions.at(0));
  parts.sent->Take();
  // By the same group, since nothing of it broke.
  const uint64_t epoch = parts.lead->status().epoch;
  uint64_t bytes = 0;
  parts.carry = [&](TransactionNumber other, const std::vector<std::string>& all) {
    parts.spread = std::make_unique<Spread>(all);
    bytes = parts.CarriedBytes() + SizeOf(all);
    REQUIRE_OK(parts.Send(other, 0, 1, SetPart::kMore));
    REQUIRE_OK(parts.Send(other, 1, all.size(), SetPart::kLast));
  };
  parts.Publish("first", 0.1);
  REQUIRE(parts.lead->status().epoch == epoch);
  REQUIRE(WaitUntil([&] { return parts.CarriedBytes() >= bytes; }));
  parts.RequireNobodyOut();
}

TEST_CASE("frames are limited where ranks keep them, and hardly where they share the memory") {
  // Chunks of a MiB side by side; nobody reads them.
  constexpr uint64_t kChunkBytes = 1 << 20;
  std::vector<DeviceChunk> chunks;
  for (uint64_t i = 0; i < 80; ++i) {
    chunks.push_back({reinterpret_cast<const void*>((i + 1) * kChunkBytes), kChunkBytes});
  }
  const auto frames = [&](uint64_t limit) {
    std::vector<uint64_t> sizes;
    uint64_t unsent = 0;
    const client::FrameTakers takers{{{1, {}}}, 2, limit};
    for (const client::Stretch& stretch :
         client::CutFrames(chunks, takers, SetPart::kLast, &unsent)) {
      sizes.push_back(stretch.frame.size_bytes);
    }
    return sizes;
  };
  REQUIRE(frames(32 * kChunkBytes) ==
          std::vector<uint64_t>{32 * kChunkBytes, 32 * kChunkBytes, 16 * kChunkBytes});
  REQUIRE(frames(kMaxFrameBytes) == std::vector<uint64_t>{80 * kChunkBytes});
}

TEST_CASE("frames are for those who want what is in them, and none is left out") {
  std::mt19937_64 random(TestSeed("frame audiences"));
  const auto below = [&](uint64_t limit) { return random() % limit; };
  constexpr uint32_t kTensors = 40;
  for (int round = 0; round < 300; ++round) {
    // Members want all, or up to three stretches of the tensors.
    client::FrameTakers takers;
    takers.frame_bytes = (1 + below(64)) << 16;
    const auto members = static_cast<uint32_t>(1 + below(6));
    if (below(2) == 0) takers.communicator = static_cast<uint32_t>(1 + below(members) + 1);
    const bool some_want_all = below(4) == 0;
    for (uint32_t i = 1; i <= members; ++i) {
      std::vector<TensorRange> ranges;
      for (TensorIndex at = 0; at + 1 < kTensors && ranges.size() < 3;) {
        const auto begin = static_cast<TensorIndex>(at + below(kTensors - at));
        const auto end = static_cast<TensorIndex>(std::min<uint64_t>(begin + 1 + below(9), 40));
        ranges.push_back({begin, end});
        at = end + 1;
      }
      auto set = TensorSet::Create(ranges, kTensors);
      REQUIRE_OK(set);
      takers.members.push_back({i, some_want_all && below(2) == 0 ? TensorSet() : *set});
    }
    // Chunks side by side or apart; nobody reads them.
    std::vector<DeviceChunk> chunks;
    uint64_t address = 4096;
    for (uint64_t i = below(60); i-- > 0;) {
      const uint64_t size = 16 * (1 + below(takers.frame_bytes / 32));
      const auto first = static_cast<TensorIndex>(below(kTensors));
      const auto last = static_cast<TensorIndex>(std::min<uint64_t>(first + below(3), 39));
      chunks.push_back({reinterpret_cast<const void*>(address), size, {first, last + 1}});
      address += size + (below(8) == 0 ? 8192 : 0);
    }
    std::map<uint64_t, const DeviceChunk*> by_address;
    for (const DeviceChunk& chunk : chunks) {
      by_address[reinterpret_cast<uint64_t>(chunk.data)] = &chunk;
    }
    // In two parts, whose frames are together what is wanted.
    const size_t middle = below(chunks.size() + 1);
    uint64_t unsent = 0;
    uint64_t counted = 0;
    std::vector<client::Stretch> frames;
    const absl::Span<const DeviceChunk> all = chunks;
    for (const SetPart part : {SetPart::kMore, SetPart::kLast}) {
      const auto some = part == SetPart::kMore ? all.first(middle) : all.subspan(middle);
      for (client::Stretch& one : client::CutFrames(some, takers, part, &unsent)) {
        frames.push_back(std::move(one));
      }
    }
    REQUIRE(unsent == 0);
    REQUIRE(frames.back().frame.is_last);
    std::map<uint64_t, std::vector<uint32_t>> sent;
    for (const client::Stretch& one : frames) {
      const FrameHeader& frame = one.frame;
      TransferPlan plan;
      plan.frame_bytes = takers.frame_bytes;
      REQUIRE_OK(CheckFrame(frame, plan, 0));
      counted += frame.chunks.size() + frame.unsent_chunks;
      for (const FrameHeader::Chunk& chunk : frame.chunks) {
        const uint64_t at = reinterpret_cast<uint64_t>(one.data) + chunk.offset;
        REQUIRE(by_address.at(at)->size_bytes == chunk.size_bytes);
        for (const auto& member : takers.members) {
          if (IsFor(frame, member.index)) sent[at].push_back(member.index);
        }
      }
    }
    REQUIRE(counted == chunks.size());
    for (const auto& [at, chunk] : by_address) {
      size_t wanting = 0;
      for (const auto& member : takers.members) {
        if (!member.tensors.HasAnyOf(chunk->tensors)) continue;
        ++wanting;
        const std::vector<uint32_t>& got = sent[at];
        REQUIRE(std::find(got.begin(), got.end(), member.index) != got.end());
      }
      REQUIRE((wanting > 0) == !sent[at].empty());
    }
  }
}

TEST_CASE(
    "frames are cut by who wants them, but not into small ones, nor for most of a communicator") {
  constexpr uint64_t kMiB = 1 << 20;
  const auto set = [](TensorIndex begin, TensorIndex end) {
    auto made = TensorSet::Create({{begin, end}}, 100);
    REQUIRE_OK(made);
    return *made;
  };
  // Two instances of one kind, of two ranks each; tensors from 20 on are nobody's.
  client::FrameTakers takers;
  takers.members = {{1, set(0, 10)}, {2, set(10, 20)}, {3, set(0, 10)}, {4, set(10, 20)}};
  takers.frame_bytes = 32 * kMiB;
  uint64_t address = kMiB;
  std::vector<DeviceChunk> chunks;
  const auto add = [&](TensorIndex tensor, uint64_t size) {
    chunks.push_back({reinterpret_cast<const void*>(address), size, {tensor, tensor + 1}});
    address += size;
  };
  add(0, 4 * kMiB);
  add(5, 4 * kMiB);
  add(12, 4 * kMiB);
  add(30, 4 * kMiB);
  add(13, kMiB / 2);
  add(9, 4 * kMiB);
  add(9, 4 * kMiB);
  const auto cut = [&] {
    uint64_t unsent = 0;
    std::vector<std::pair<std::vector<uint32_t>, size_t>> frames;
    for (const client::Stretch& one : client::CutFrames(chunks, takers, SetPart::kLast, &unsent)) {
      frames.emplace_back(one.frame.audience, one.frame.chunks.size());
    }
    return frames;
  };
  using Audience = std::vector<uint32_t>;
  const std::vector<std::pair<Audience, size_t>> expected = {
      {{1, 3}, 2}, {{2, 4}, 1}, {{}, 2}, {{1, 3}, 1}};
  REQUIRE(cut() == expected);
  // Three of four over NCCL: what is for two of them is for three.
  takers.communicator = 4;
  const std::vector<std::pair<Audience, size_t>> widened = {
      {{1, 2, 3}, 2}, {{2, 4}, 1}, {{}, 2}, {{1, 2, 3}, 1}};
  REQUIRE(cut() == widened);
  // Of all, where they are all.
  takers.members.pop_back();
  const std::vector<std::pair<Audience, size_t>> broadcast = {{{}, 2}, {{2}, 1}, {{}, 3}};
  REQUIRE(cut() == broadcast);
}

}  // namespace wstore::testing
