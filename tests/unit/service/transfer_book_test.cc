// Who is in which group, and what is said to whom: the book alone, without a network.
#include "store/service/transfer_book.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "store/client/transfer_messages.h"
#include "tests/support/catch.h"

namespace wstore::service {
namespace {

constexpr uint64_t kFrameBytes = 1 << 20;

TransferHello On(const std::string& host, const std::string& device, int version = 22803) {
  return {host, device, version, {}, {}};
}

struct RankInbox final : RankSink {
  void Send(const RankOrder&) override {}
  void Send(const AuditVerdict&) override {}
  void RequestAudit() override {}
  void Superseded() override {}
  void Send(const TransferPlan& plan, uint32_t) override { plans.push_back(plan); }
  void SendTransferEnd(uint64_t epoch, const std::string& reason) override {
    ends.emplace_back(epoch, reason);
  }
  void Send(const FrameHeader& frame) override { frames.push_back(frame); }
  std::vector<TransferPlan> plans;
  std::vector<std::pair<uint64_t, std::string>> ends;
  std::vector<FrameHeader> frames;
};

struct RootInbox final : RootSink {
  void Send(const RootPlan& plan) override { plans.push_back(plan); }
  void SendNamed(uint64_t epoch) override { named.push_back(epoch); }
  void SendReady(uint64_t epoch) override { ready.push_back(epoch); }
  void SendEnd(uint64_t epoch, const std::string& reason) override {
    ends.emplace_back(epoch, reason);
  }
  std::vector<RootPlan> plans;
  std::vector<uint64_t> named;
  std::vector<uint64_t> ready;
  std::vector<std::pair<uint64_t, std::string>> ends;
};

RankProcess Process(const std::string& instance, uint32_t rank) {
  return {{instance, rank}, {1, 1}};
}

struct Fixture {
  Fixture() {
    book.SetEpoch(3);
    REQUIRE_OK(book.Lead(0, root, "trainer", On("h0", "g0"), kFrameBytes, 0));
  }
  std::shared_ptr<RankInbox> Hello(const RankProcess& process, TransferHello hello) {
    auto inbox = std::make_shared<RankInbox>();
    book.Hello(process, inbox, std::move(hello), 0);
    return inbox;
  }
  // The root names the group that is planned, and all join it.
  uint64_t Form(const std::vector<RankProcess>& members) {
    const RootPlan plan = root->plans.back();
    if (plan.size > 0) book.Name(root.get(), plan.epoch, "id", 0);
    for (const RankProcess& member : members) {
      book.Joined(member, plan.epoch, absl::OkStatus(), 0);
    }
    book.RootJoined(root.get(), plan.epoch, absl::OkStatus(), 0);
    return plan.epoch;
  }
  static FrameHeader Frame(uint64_t epoch, uint64_t sequence) {
    FrameHeader frame;
    frame.epoch = epoch;
    frame.sequence = sequence;
    frame.size_bytes = 64;
    frame.chunks = {{0, 64}};
    return frame;
  }

  TransferBook book{{}};
  std::shared_ptr<RootInbox> root = std::make_shared<RootInbox>();
};

}  // namespace

TEST_CASE("a group is ready when all have joined, and carries frames in order") {
  Fixture fixture;
  const RankProcess a = Process("a", 0);
  const RankProcess b = Process("b", 0);
  const auto at_a = fixture.Hello(a, On("h0", "g1"));
  REQUIRE(fixture.root->plans.size() == 1);
  const uint64_t first = fixture.root->plans[0].epoch;
  REQUIRE(first >> 32 == 3);
  REQUIRE(fixture.root->plans[0].size == 2);
  REQUIRE(at_a->plans.empty());  // it has no name yet
  fixture.Form({a});
  REQUIRE(at_a->plans.size() == 1);
  REQUIRE(at_a->plans[0].unique_id == "id");
  REQUIRE(at_a->plans[0].index == 1);
  REQUIRE(fixture.root->ready == std::vector<uint64_t>{first});
  REQUIRE_OK(fixture.book.Announce(fixture.root.get(), Fixture::Frame(first, 0)));
  REQUIRE(at_a->frames.size() == 1);
  REQUIRE_ERROR(fixture.book.Announce(fixture.root.get(), Fixture::Frame(first, 0)),
                absl::StatusCode::kFailedPrecondition, "frame 1 of group");

  // The next group is formed while this one goes on, and ends it with its first frame.
  const auto at_b = fixture.Hello(b, On("h1", "g0"));
  REQUIRE(fixture.root->plans.size() == 2);
  REQUIRE(at_a->ends.empty());
  REQUIRE_OK(fixture.book.Announce(fixture.root.get(), Fixture::Frame(first, 1)));
  const uint64_t second = fixture.Form({a, b});
  REQUIRE(second > first);
  REQUIRE(fixture.root->ready.back() == second);
  REQUIRE(at_a->ends.empty());
  REQUIRE_OK(fixture.book.Announce(fixture.root.get(), Fixture::Frame(first, 2)));
  REQUIRE_OK(fixture.book.Announce(fixture.root.get(), Fixture::Frame(second, 0)));
  REQUIRE(at_a->ends.size() == 1);
  REQUIRE(at_a->ends[0].first == first);
  REQUIRE(at_b->frames.size() == 1);
  REQUIRE_ERROR(fixture.book.Announce(fixture.root.get(), Fixture::Frame(first, 3)),
                absl::StatusCode::kFailedPrecondition, "has ended");
}

TEST_CASE(
    "a member that goes, or says that its group broke, ends it for all but is left out alone") {
  Fixture fixture;
  const RankProcess a = Process("a", 0);
  const RankProcess b = Process("b", 0);
  const auto at_a = fixture.Hello(a, On("h0", "g1"));
  const auto at_b = fixture.Hello(b, On("h0", "g2"));
  const uint64_t first = fixture.Form({a, b});
  REQUIRE(fixture.root->ready.back() == first);
  SECTION("it goes") {
    fixture.book.Gone(b, 0);
    REQUIRE(at_a->ends.back().first == first);
    REQUIRE_THAT(at_a->ends.back().second, WSTORE_CONTAINS("b/0"));
    REQUIRE(fixture.root->ends.back().first == first);
  }
  SECTION("it fails") {
    fixture.book.Joined(b, first, absl::UnavailableError("broken"), 0);
    REQUIRE_THAT(fixture.root->ends.back().second, WSTORE_CONTAINS("b/0: broken"));
    // It is asked again once it has said hello.
    REQUIRE(fixture.root->plans.back().members[1].choice.route == TransferRoute::kService);
  }
  REQUIRE(fixture.root->plans.back().size == 2);
  const uint64_t second = fixture.Form({a});
  REQUIRE(fixture.root->ready.back() == second);
  REQUIRE(at_b->plans.back().epoch == first);
  fixture.Hello(b, On("h0", "g2"));
  REQUIRE(fixture.root->plans.back().size == 3);
}

TEST_CASE("those that do not join in time are left out, and nothing waits for ever") {
  Fixture fixture;
  const RankProcess a = Process("a", 0);
  const RankProcess b = Process("b", 0);
  fixture.Hello(a, On("h0", "g1"));
  fixture.Hello(b, On("h0", "g2"));
  const uint64_t epoch = fixture.root->plans.back().epoch;
  fixture.book.Name(fixture.root.get(), epoch, "id", 0);
  fixture.book.Joined(a, epoch, absl::OkStatus(), 0);
  fixture.book.RootJoined(fixture.root.get(), epoch, absl::OkStatus(), 0);
  const int64_t due = fixture.book.Tick(0);
  REQUIRE(due < protocol::kNever);
  fixture.book.Tick(due);
  REQUIRE(fixture.root->ends.back().first == epoch);
  REQUIRE_THAT(fixture.root->ends.back().second, WSTORE_CONTAINS("b/0"));
  const uint64_t next = fixture.Form({a});
  REQUIRE(fixture.root->ready == std::vector<uint64_t>{next});
  REQUIRE(fixture.book.Tick(due) == protocol::kNever);
}

TEST_CASE("D04 one publisher leads as a contributor at a time") {
  Fixture fixture;
  const RankProcess a = Process("a", 0);
  const auto at_a = fixture.Hello(a, On("h0", "g0"));
  const uint64_t epoch = fixture.Form({a});
  REQUIRE(at_a->plans.back().route == TransferRoute::kShared);
  const auto other = std::make_shared<RootInbox>();
  REQUIRE_ERROR(fixture.book.Lead(0, other, "other", On("h0", "g0"), kFrameBytes, 0),
                absl::StatusCode::kFailedPrecondition, "led by trainer");
  // Another contributor leads beside it.
  REQUIRE_OK(fixture.book.Lead(1, other, "other", On("h0", "g1"), kFrameBytes, 0));
  REQUIRE(other->plans.back().members[0].choice.route == TransferRoute::kNccl);
  fixture.book.RootGone(fixture.root.get(), 0);
  REQUIRE(at_a->ends.back().first == epoch);
  REQUIRE_OK(
      fixture.book.Lead(0, std::make_shared<RootInbox>(), "next", On("h0", "g0"), kFrameBytes, 0));
}

TEST_CASE("members are numbered and named with what they want, and frames are for members") {
  Fixture fixture;
  const RankProcess a = Process("a", 0);
  const RankProcess b = Process("b", 0);
  const RankProcess c = Process("c", 0);
  const auto wanted = TensorSet::Create({{3, 7}}, 10);
  REQUIRE_OK(wanted);
  TransferHello some = On("h0", "g0");
  some.tensors = *wanted;
  const auto at_a = fixture.Hello(a, some);  // on the root's GPU
  const auto at_b = fixture.Hello(b, On("h0", "g1"));
  const uint64_t epoch = fixture.Form({a, b});
  const RootPlan plan = fixture.root->plans.back();
  const auto at_c = fixture.Hello(c, On("h0", "g1"));  // on the same GPU: by the service
  REQUIRE(plan.size == 2);
  REQUIRE(plan.members[0].index == 2);
  REQUIRE(plan.members[0].tensors == *wanted);
  REQUIRE(plan.members[1].index == 1);
  REQUIRE(plan.members[1].tensors.is_all());
  REQUIRE(fixture.root->plans.back().members[2].index == 0);
  REQUIRE(at_a->plans.back().index == 2);
  REQUIRE(at_b->plans.back().index == 1);
  // All members see it.
  FrameHeader frame = Fixture::Frame(epoch, 0);
  frame.audience = {2};
  REQUIRE_OK(fixture.book.Announce(fixture.root.get(), frame));
  REQUIRE(at_a->frames.back() == frame);
  REQUIRE(at_b->frames.back() == frame);
  REQUIRE(at_c->frames.empty());
  for (const std::vector<uint32_t>& audience : {std::vector<uint32_t>{0}, {2, 1}, {3}}) {
    frame.sequence = 1;
    frame.audience = audience;
    REQUIRE_ERROR(fixture.book.Announce(fixture.root.get(), frame),
                  absl::StatusCode::kInvalidArgument, "is refused");
  }
  // One that wants something else is in another group.
  some.tensors = TensorSet();
  fixture.Hello(a, some);
  REQUIRE(fixture.root->ends.back().first == epoch);
  REQUIRE(fixture.root->plans.back().epoch > epoch);
  REQUIRE(fixture.root->plans.back().members[0].tensors.is_all());
}

TEST_CASE("frames are limited as the root says, or where a rank keeps them") {
  Fixture fixture;
  // One that names no limit.
  fixture.book.RootGone(fixture.root.get(), 0);
  fixture.root = std::make_shared<RootInbox>();
  REQUIRE_OK(fixture.book.Lead(0, fixture.root, "trainer", On("h0", "g0"), 0, 0));
  const RankProcess a = Process("a", 0);
  const auto at_a = fixture.Hello(a, On("h0", "g0"));  // on the root's GPU
  REQUIRE(fixture.root->plans.back().size == 0);
  REQUIRE(fixture.root->plans.back().frame_bytes == kMaxFrameBytes);
  const uint64_t shared = fixture.Form({a});
  REQUIRE(at_a->plans.back().frame_bytes == kMaxFrameBytes);
  FrameHeader large = Fixture::Frame(shared, 0);
  large.size_bytes = kMaxFrameBytes;
  REQUIRE_OK(fixture.book.Announce(fixture.root.get(), large));
  REQUIRE(at_a->frames.back().size_bytes == kMaxFrameBytes);

  const RankProcess b = Process("b", 0);
  const auto at_b = fixture.Hello(b, On("h0", "g1"));
  REQUIRE(fixture.root->plans.back().frame_bytes == 64 << 20);
  const uint64_t both = fixture.Form({a, b});
  REQUIRE(at_a->plans.back().frame_bytes == 64 << 20);
  REQUIRE(at_b->plans.back().frame_bytes == 64 << 20);
  large.epoch = both;
  REQUIRE_ERROR(fixture.book.Announce(fixture.root.get(), large),
                absl::StatusCode::kInvalidArgument, "1 to 67108864 bytes were agreed");
  large.size_bytes = 64 << 20;
  REQUIRE_OK(fixture.book.Announce(fixture.root.get(), large));

  Fixture limited;
  limited.Hello(a, On("h0", "g0"));
  REQUIRE(limited.root->plans.back().frame_bytes == kFrameBytes);
}

TEST_CASE("D05 D08 routes and frames are checked before anybody meets") {
  const TransferHello root = On("h0", "g0");
  REQUIRE(ChooseRoute(root, On("h0", "g0")).route == TransferRoute::kShared);
  REQUIRE(ChooseRoute(root, On("h0", "g1")).route == TransferRoute::kNccl);
  REQUIRE(ChooseRoute(root, On("h1", "g0")).route == TransferRoute::kNccl);
  const RouteChoice older = ChooseRoute(root, On("h1", "g0", 22703));
  REQUIRE(older.route == TransferRoute::kService);
  REQUIRE(older.why == "NCCL 2.28.3 at the root, 2.27.3 here");
  TransferHello other = On("h1", "g0");
  other.environment = {{"NCCL_PROTO", "Simple"}};
  REQUIRE(ChooseRoute(root, other).why == "NCCL_PROTO unset at the root, 'Simple' here");
  REQUIRE(ChooseRoute(root, {}).route == TransferRoute::kService);
  // Builds that enter frames in different ways, on one GPU too.
  for (TransferHello newer : {On("h0", "g0"), On("h0", "g1")}) {
    newer.frame_format = kFrameFormat + 1;
    const RouteChoice choice = ChooseRoute(root, newer);
    REQUIRE(choice.route == TransferRoute::kService);
    REQUIRE(choice.why == "frames of format 1 at the root, 2 here: run one build of wstore");
    const auto sent = wire::FromProto(wire::ToProto(newer), 0);
    REQUIRE_OK(sent);
    REQUIRE(*sent == newer);
  }
  v1::TransferHello silent = wire::ToProto(root);
  silent.clear_frame_format();  // of a build before there was a number
  const auto before = wire::FromProto(silent, 0);
  REQUIRE_OK(before);
  REQUIRE(ChooseRoute(root, *before).route == TransferRoute::kService);
  // Two ranks of one GPU, which a communicator does not take.
  const std::vector<RouteChoice> routes =
      ChooseRoutes(root, {On("h0", "g1"), On("h0", "g1"), On("h0", "g0"), On("h0", "g0")});
  REQUIRE(routes[0].route == TransferRoute::kNccl);
  REQUIRE(routes[1].route == TransferRoute::kService);
  REQUIRE(routes[2].route == TransferRoute::kShared);
  REQUIRE(routes[3].route == TransferRoute::kShared);

  TransferPlan plan;
  plan.epoch = 9;
  plan.frame_bytes = 4096;
  FrameHeader frame;
  frame.epoch = 9;
  frame.size_bytes = 4096;
  frame.chunks = {{0, 100}, {112, 16}, {4080, 16}};
  REQUIRE_OK(CheckFrame(frame, plan, 0));
  REQUIRE_ERROR(CheckFrame(frame, plan, 1), absl::StatusCode::kFailedPrecondition, "frame 1");
  const auto refused = [&](auto change) {
    FrameHeader bad = frame;
    change(bad);
    REQUIRE_ERROR(CheckFrame(bad, plan, 0), absl::StatusCode::kInvalidArgument, "refused");
  };
  refused([](FrameHeader& bad) { bad.size_bytes = 4097; });
  refused([](FrameHeader& bad) { bad.size_bytes = 0; });
  refused([](FrameHeader& bad) { bad.chunks.clear(); });
  refused([](FrameHeader& bad) {
    bad.chunks.clear();
    bad.size_bytes = 0;
  });
  refused([](FrameHeader& bad) { bad.audience = {0}; });
  refused([](FrameHeader& bad) { bad.audience = {1, 3, 3}; });
  FrameHeader end;
  end.epoch = 9;
  end.is_last = true;
  REQUIRE_OK(CheckFrame(end, plan, 0));
  end.audience = {1};
  REQUIRE_ERROR(CheckFrame(end, plan, 0), absl::StatusCode::kInvalidArgument, "refused");
  refused([](FrameHeader& bad) { bad.chunks[1].offset = 96; });
  refused([](FrameHeader& bad) { bad.chunks[1].offset = 113; });
  refused([](FrameHeader& bad) { bad.chunks[1].size_bytes = 0; });
  refused([](FrameHeader& bad) { bad.chunks[2].size_bytes = 17; });
  refused([](FrameHeader& bad) { bad.chunks[2].size_bytes = UINT64_MAX; });
  refused([](FrameHeader& bad) { bad.chunks[2].offset = UINT64_MAX - 15; });
}

}  // namespace wstore::service
