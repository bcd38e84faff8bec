// A fleet in one process: a store, the service's core, and ranks that hold real replicas and run
// the worker's half of the protocol. Nothing but the network is left out.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "store/protocol/worker.h"
#include "store/service/fleet.h"
#include "tests/unit/store/live_fixture.h"
#include "wstore/layout_builder.h"
#include "wstore/replica.h"

namespace wstore::testing {

inline constexpr auto kPatience = std::chrono::seconds(20);

inline service::Fleet::Options FastOptions() {
  service::Fleet::Options options;
  options.actor = "server";
  protocol::Timing& timing = options.coordinator.timing;
  timing.lease = 400'000;
  timing.skew = 100'000;
  timing.vote_deadline = 5'000'000;
  timing.apply_deadline = 1'000'000;
  timing.hold_deadline = 2'000'000;
  return options;
}

// Waits for the callback of one asynchronous call.
template <typename Result>
class Later {
 public:
  std::function<void(Result)> Callback() {
    return [promise = promise_](Result result) { promise->set_value(std::move(result)); };
  }
  bool IsThere() const {
    return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  const Result& Get() {
    if (!result_) {
      REQUIRE(future_.wait_for(kPatience) == std::future_status::ready);
      result_ = future_.get();
    }
    return *result_;
  }

 private:
  std::shared_ptr<std::promise<Result>> promise_ = std::make_shared<std::promise<Result>>();
  std::future<Result> future_ = promise_->get_future();
  std::optional<Result> result_;
};
using LaterAnswer = Later<service::FleetAnswer>;
using LaterStatus = Later<absl::Status>;

// A rank. Driven by the test's thread; only its inbox is shared.
class FakeRank {
 public:
  // Every tensor whole, but "embed.weight", of which each rank holds an equal part of the rows.
  static Layout MakeLayout(const Manifest& manifest, uint32_t rank, uint32_t ranks) {
    LayoutBuilder builder(manifest);
    for (TensorIndex i = 0; i < manifest.size(); ++i) {
      const TensorSpec& spec = manifest.tensor(i).spec;
      if (spec.name != "embed.weight") {
        builder.Place(builder.Tensor(i), builder.Buffer(spec));
        continue;
      }
      const uint64_t rows = spec.shape[0] / ranks;
      TensorSpec part = spec;
      part.shape[0] = rows;
      builder.Place(builder.Tensor(i).Slice(0, rank * rows, (rank + 1) * rows),
                    builder.Buffer(part));
    }
    auto layout = builder.Build(1);
    REQUIRE_OK(layout);
    return *std::move(layout);
  }

  FakeRank(LiveFixture& fixture, service::Fleet*& fleet, const std::string& instance, uint32_t rank,
           uint32_t ranks, uint64_t generation)
      : fixture_(fixture), fleet_(fleet), id_{instance, rank}, ranks_(ranks) {
    protocol::WorkerConfig config;
    config.rank = id_;
    config.ranks = ranks;
    config.incarnation = {generation, 1};
    config.report_interval = 100'000;
    state_ = protocol::StartWorker(config);
    const Manifest& manifest = fixture.live->manifest();
    std::vector<Layout> layouts;
    std::vector<const Layout*> pointers;
    for (uint32_t i = 0; i < ranks; ++i) layouts.push_back(MakeLayout(manifest, i, ranks));
    for (const Layout& layout : layouts) pointers.push_back(&layout);
    auto regions = RegionMap::Create(manifest, pointers);
    REQUIRE_OK(regions);
    layout_ = std::make_shared<const Layout>(layouts[rank]);
    ReplicaPlacement placement;
    placement.layout = layout_;
    placement.regions = std::make_shared<const RegionMap>(*std::move(regions));
    placement.rank = rank;
    std::vector<LocalBuffer> buffers;
    for (uint32_t i = 0; i < layout_->buffers().size(); ++i) {
      memory_.emplace_back(layout_->buffer_bytes(i) / 8 + 1);
      buffers.push_back({memory_.back().data(), layout_->buffer_bytes(i)});
    }
    ReplicaOptions options;
    options.threads = 1;
    options.undo_budget_bytes = 1 << 30;
    auto replica =
        Replica::Attach(manifest, fixture.live->fingerprint_key(), placement, buffers, options);
    REQUIRE_OK(replica);
    replica_ = *std::move(replica);
  }

  // Loads a version and says so: as a rank would at its start, from files.
  void Load(VersionId version, MoveNumber move) {
    const auto store = fixture_.live->store();
    const auto dense = store->Materialise(version);
    REQUIRE_OK(dense);
    REQUIRE_OK(replica_->Load(**dense));
    const auto proof = replica_->Audit();
    REQUIRE_OK(proof);
    const VersionInfo info = store->version(version).value();
    REQUIRE_OK(replica_->Adopt(*proof, {version, info.chain_digest}, move));
    Feed(protocol::Proved{{move, version, info.chain_digest}, 1});
  }

  void Connect() {
    sink_ = std::make_shared<Inbox>();
    fleet_->Attach({process(), ranks_, layout_, "test"}, sink_);
  }
  void Disconnect() {
    if (sink_ != nullptr && fleet_ != nullptr) fleet_->Detach(process(), sink_.get());
    sink_ = nullptr;
  }

  // Handles what has come and what is due.
  void Pump() {
    if (sink_ != nullptr) {
      for (const service::RankOrder& order : sink_->Take()) {
        last_order_ = order;
        Feed(protocol::OrderReceived{order.order});
      }
    }
    if (now() >= wake_at_) Feed(protocol::WorkerTick{});
  }

  bool serving() const { return protocol::MayServe(state_, now()); }
  const protocol::WorkerState& state() const { return state_; }
  Replica& replica() { return *replica_; }
  const std::optional<protocol::ReadyKey>& ready() const { return ready_; }
  void AllReady(const protocol::ReadyKey& key) { Feed(protocol::AllReady{key}); }
  std::optional<service::AuditVerdict> verdict() { return sink_->verdict(); }
  const std::shared_ptr<service::RankSink> sink() const { return sink_; }
  const protocol::RankId& id() const { return id_; }
  service::RankProcess process() const { return {id_, state_.config.incarnation}; }

  // Whether the memory is exactly this model's part.
  bool Holds(const NaiveTensors& model) const {
    for (uint32_t i = 0; i < layout_->buffers().size(); ++i) {
      const LayoutBuffer& buffer = layout_->buffers()[i];
      const std::string& all = model.at(buffer.name).bytes;
      const uint64_t size = layout_->buffer_bytes(i);
      const uint64_t offset = size == all.size() ? 0 : id_.rank * size;
      if (std::memcmp(memory_[i].data(), all.data() + offset, size) != 0) return false;
    }
    return true;
  }
  void FlipBit(const std::string& buffer) {
    for (uint32_t i = 0; i < layout_->buffers().size(); ++i) {
      if (layout_->buffers()[i].name == buffer) memory_[i][0] ^= 4;
    }
  }
  bool frozen = false;  // does nothing any more

 private:
  class Inbox final : public service::RankSink {
   public:
    void Send(const service::RankOrder& order) override {
      const std::lock_guard<std::mutex> lock(mutex_);
      orders_.push_back(order);
    }
    void Send(const service::AuditVerdict& verdict) override {
      const std::lock_guard<std::mutex> lock(mutex_);
      verdict_ = verdict;
    }
    void RequestAudit() override {}
    void Send(const TransferPlan&, uint32_t) override {}
    void SendTransferEnd(uint64_t, const std::string&) override {}
    void Send(const FrameHeader&) override {}
    void Superseded() override {}
    std::deque<service::RankOrder> Take() {
      const std::lock_guard<std::mutex> lock(mutex_);
      return std::exchange(orders_, {});
    }
    std::optional<service::AuditVerdict> verdict() {
      const std::lock_guard<std::mutex> lock(mutex_);
      return verdict_;
    }

   private:
    std::mutex mutex_;
    std::deque<service::RankOrder> orders_;
    std::optional<service::AuditVerdict> verdict_;
  };

  static int64_t now() { return SystemClock().NowMonotonicMicros(); }

  // Events that follow from effects are fed after the effects of the step are carried out.
  void Feed(const protocol::WorkerEvent& event) {
    std::deque<protocol::WorkerEvent> events = {event};
    while (!events.empty()) {
      const protocol::WorkerEvent next = std::move(events.front());
      events.pop_front();
      const protocol::WorkerEffects effects = protocol::Step(state_, now(), next);
      wake_at_ = effects.wake_at;
      for (const protocol::WorkerEffect& effect : effects.list) {
        std::visit([&](const auto& one) { Carry(one, &events); }, effect);
      }
    }
  }

  using Events = std::deque<protocol::WorkerEvent>;

  void Carry(const protocol::SendReport& effect, Events*) {
    if (sink_ != nullptr) fleet_->Report(effect.report, {}, sink_.get());
  }
  void Carry(const protocol::Begin& effect, Events* events) {
    const protocol::Plan& plan = effect.plan;
    UpdateHeader header;
    header.transaction = plan.transaction;
    header.parent_move = plan.from.move;
    header.move = plan.to.move;
    header.from = {plan.from.version, plan.from.chain_digest};
    header.to = plan.to.version;
    header.base_digest = fixture_.live->fingerprint_key().base_digest();
    header.layout_generation = plan.layout_generation;
    header.contributors = static_cast<uint16_t>(last_order_.contributors);
    open_publish_ = last_order_.open_publish;
    const absl::StatusOr<bool> begun = replica_->BeginUpdate(header);
    if (!begun.ok()) Fail(plan.transaction, begun.status(), events);
  }
  void Carry(const protocol::Finish& effect, Events* events) {
    const absl::StatusOr<StagedReport> report = Stage(effect.plan);
    if (!report.ok()) return Fail(effect.plan.transaction, report.status(), events);
    fleet_->Vote(process(), effect.plan.transaction, report->cells);
    events->push_back(protocol::StagingDone{effect.plan.transaction, true, report->total, ""});
  }
  void Fail(TransactionNumber transaction, const absl::Status& status, Events* events) {
    replica_->Abort(transaction).IgnoreError();
    events->push_back(protocol::StagingDone{transaction, false, {}, std::string(status.message())});
  }
  void Carry(const protocol::Drop& effect, Events*) {
    REQUIRE_OK(replica_->Abort(effect.transaction));
  }
  void Carry(const protocol::Pause&, Events* events) { events->push_back(protocol::Paused{}); }
  void Carry(const protocol::Apply& effect, Events* events) {
    absl::Status status = replica_->Approve(effect.transaction);
    if (status.ok()) status = replica_->Apply(effect.transaction);
    events->push_back(protocol::ApplyDone{effect.transaction, status.ok(), state_.update->sums,
                                          std::string(status.message())});
  }
  void Carry(const protocol::Commit& effect, Events*) {
    REQUIRE_OK(replica_->Commit(effect.transaction));
  }
  void Carry(const protocol::Undo& effect, Events* events) {
    REQUIRE_OK(replica_->Abort(effect.transaction));
    events->push_back(protocol::UndoDone{});
  }
  void Carry(const protocol::TakeBack&, Events*) { FAIL("nothing is taken back in these tests"); }
  void Carry(const protocol::ForgetUndo&, Events*) {}
  void Carry(const protocol::Ready& effect, Events*) { ready_ = effect.key; }
  void Carry(const protocol::NotReady&, Events*) { ready_.reset(); }
  void Carry(const protocol::Start&, Events*) {}
  void Carry(const protocol::Stop&, Events*) {}
  void Carry(const protocol::WorkerLog&, Events*) {}

  // Fetches the content, as a client of the service would, and stages it.
  absl::StatusOr<StagedReport> Stage(const protocol::Plan& plan) {
    UpdateSummary summary;
    summary.to_chain_digest = plan.to.chain_digest;
    if (open_publish_) {
      const auto content = fixture_.live->FindContent(plan.transaction);
      if (!content.ok()) return content.status();
      for (uint32_t i = 0; i < (*content)->contributors(); ++i) {
        const auto stage = [&](std::string_view chunk) { return replica_->StageChunk(chunk); };
        for (uint64_t sequence = 0;; ++sequence) {
          const absl::StatusOr<bool> more = (*content)->Read(i, sequence, stage);
          if (!more.ok()) return more.status();
          if (!*more) break;
        }
        const auto declared = (*content)->summary(i);
        summary.contents.push_back({declared->chunks, declared->digest});
      }
    } else {
      const auto difference =
          fixture_.live->store()->Difference(plan.from.version, plan.to.version);
      if (!difference.ok()) return difference.status();
      const auto staged = replica_->StageAll(**difference);
      if (!staged.ok()) return staged.status();
      const auto info = fleet_->Describe(plan.from.version, plan.to.version);
      if (!info.ok()) return info.status();
      if ((*info)->elements > 0) {
        summary.contents.push_back({staged->chunks, (*info)->patch_digest});
      }
    }
    return replica_->FinishStaging(summary);
  }

  LiveFixture& fixture_;
  service::Fleet*& fleet_;
  const protocol::RankId id_;
  const uint32_t ranks_;
  protocol::WorkerState state_;
  std::shared_ptr<const Layout> layout_;
  std::vector<std::vector<uint64_t>> memory_;
  std::unique_ptr<Replica> replica_;
  std::shared_ptr<Inbox> sink_;
  service::RankOrder last_order_;
  bool open_publish_ = false;
  std::optional<protocol::ReadyKey> ready_;
  int64_t wake_at_ = 0;
};

class FakeFleet {
 public:
  explicit FakeFleet(service::Fleet::Options options = FastOptions(), uint64_t seed = 1)
      : fixture(seed), options_(std::move(options)) {
    StartServer();
  }
  ~FakeFleet() {
    for (auto& rank : ranks) rank->Disconnect();
    StopServer(0);
  }

  void StartServer() {
    server_ = std::make_unique<service::Fleet>(*fixture.live, options_);
    fleet = server_.get();
    REQUIRE_OK(fleet->Start());
  }
  void StopServer(int64_t grace_micros) {
    if (server_ == nullptr) return;
    server_->Stop(grace_micros);
    server_.reset();
    fleet = nullptr;
  }

  FakeRank& AddRank(const std::string& instance, uint32_t rank, uint32_t number_of_ranks,
                    VersionId version, MoveNumber move) {
    ranks.push_back(std::make_unique<FakeRank>(fixture, fleet, instance, rank, number_of_ranks,
                                               next_generation_++));
    ranks.back()->Connect();
    ranks.back()->Load(version, move);
    return *ranks.back();
  }

  // Lets ranks work until `done`, or fails the test.
  void PumpUntil(const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!done()) {
      REQUIRE(std::chrono::steady_clock::now() < deadline);
      Pump();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  void Pump() {
    for (auto& rank : ranks) {
      if (!rank->frozen) rank->Pump();
    }
    // All ranks of an instance compare before they serve.
    for (auto& rank : ranks) {
      if (!rank->ready() || rank->frozen) continue;
      bool all = true;
      for (auto& mate : ranks) {
        if (mate->id().instance != rank->id().instance) continue;
        all = all && mate->ready() == rank->ready();
      }
      if (all) rank->AllReady(*rank->ready());
    }
  }
  bool AllServe(const protocol::Position& position) {
    for (auto& rank : ranks) {
      if (rank->frozen) continue;
      if (!rank->serving() || rank->state().position != position) return false;
    }
    return true;
  }
  void WaitUntilReady() {
    PumpUntil([&] { return fleet->head().phase == protocol::CoordinatorPhase::kReady; });
  }

  service::FleetAnswer Get(LaterAnswer& later) {
    PumpUntil([&] { return later.IsThere(); });
    return later.Get();
  }
  absl::Status Get(LaterStatus& later) {
    PumpUntil([&] { return later.IsThere(); });
    return later.Get();
  }

  service::FleetAnswer Begin(service::BeginPublish request) {
    LaterAnswer begun;
    fleet->Begin(std::move(request), begun.Callback());
    return Get(begun);
  }
  // Begins, sends and awaits the decision.
  service::FleetAnswer Publish(const std::string& id, const NaiveTensors& to,
                               service::BeginPublish request = {}) {
    request.id = id;
    request.caller = {"trainer", "uid 7"};
    const service::FleetAnswer begun = Begin(request);
    if (begun.kind != protocol::AnswerKind::kBegun) return begun;
    LaterAnswer decided;
    fleet->AwaitTransaction(begun.transaction, decided.Callback());
    const uint32_t contributors = std::max(request.contributors, 1u);
    for (uint16_t i = 0; i < contributors; ++i) {
      const auto& from = fixture.versions.at(begun.parent.version.value());
      fixture.Send(fixture.MakePart(from, to, begun.transaction, i, contributors),
                   begun.transaction, i);
      fleet->ContentStaged(begun.transaction, i);
    }
    const service::FleetAnswer answer = Get(decided);
    if (answer.kind == protocol::AnswerKind::kCommitted ||
        answer.kind == protocol::AnswerKind::kServedNotDurable) {
      fixture.versions[answer.to.version.value()] = to;
    }
    return answer;
  }
  service::FleetAnswer Rollback(const std::string& id, const std::string& to) {
    LaterAnswer moved;
    fleet->Rollback({id, to, "back", false, {"operator", "uid 0"}}, moved.Callback());
    return Get(moved);
  }

  LiveFixture fixture;
  service::Fleet* fleet = nullptr;
  std::vector<std::unique_ptr<FakeRank>> ranks;

 private:
  const service::Fleet::Options options_;
  std::unique_ptr<service::Fleet> server_;
  uint64_t next_generation_ = 100;
};

}  // namespace wstore::testing
