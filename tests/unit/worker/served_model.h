// A small Qwen3 MoE model, a server of its store, and instances whose ranks are threads: engines
// that run in step, each with real weights in memory, and a worker.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "store/checkpoint/checkpoint.h"
#include "store/service/server.h"
#include "tests/conformance/replica/device.h"
#include "tests/support/catch.h"
#include "tests/support/naive_safetensors.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/transfer/test_models.h"
#include "wstore/layout_file.h"
#include "wstore/patch_digest.h"
#include "wstore/patch_set.h"
#include "wstore/placement_rules.h"
#include "wstore/store.h"
#include "wstore/v1/service.grpc.pb.h"
#include "wstore/worker.h"

namespace wstore::testing {

using namespace std::chrono_literals;
inline constexpr auto kPatience = 20s;

inline bool WaitUntil(const std::function<bool()>& done,
                      std::chrono::steady_clock::duration patience = kPatience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!done()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

class ServedModel {
 public:
  explicit ServedModel(uint64_t seed) : random_(seed) {
    DecoderSizes sizes;
    sizes.hidden = 32;
    model_ = MakeDecoder("Qwen3MoeForCausalLM", sizes);
    NaiveTensors base;
    for (const TensorSpec& spec : model_.tensors) {
      uint64_t elements = 1;
      for (const uint64_t dim : spec.shape) elements *= dim;
      base[spec.name] = {
          "BF16", {spec.shape.begin(), spec.shape.end()}, RandomBytes(random_, elements * 2)};
    }
    std::filesystem::create_directory(base_path());
    WriteFile(base_path() + "/model.safetensors", NaiveWrite(base, NamesOf(base)));
    WriteFile(base_path() + "/config.json", model_.config.dump());
    CreateOptions create;
    create.actor = "tester";
    REQUIRE_OK(Store::Create(store_path(), base_path(), create));
    versions[0] = std::move(base);
    auto opened = Checkpoint::Open(base_path());
    REQUIRE_OK(opened);
    checkpoint_ = *std::move(opened);
    dense_ = MakeDense(checkpoint_->manifest(), *checkpoint_);
    options.directory = store_path();
    protocol::Timing& timing = options.coordinator.timing;
    timing.lease = 600'000;
    timing.skew = 100'000;
    timing.vote_deadline = 5'000'000;
    timing.apply_deadline = 1'500'000;
    timing.hold_deadline = 3'000'000;
    StartServer();
  }

  std::string base_path() const { return directory_ / "base"; }
  std::string store_path() const { return directory_ / "store"; }
  std::string path(const std::string& name) const { return directory_ / name; }
  const Manifest& manifest() const { return checkpoint_->manifest(); }
  const DenseSource& dense() const { return *dense_; }
  ConnectOptions connect() const { return {"unix:" + store_path() + "/wstore.sock", {}, false}; }

  void StartServer() {
    auto started = service::Server::Start(options);
    REQUIRE_OK(started);
    server = *std::move(started);
    channel_ = grpc::CreateChannel(connect().address, grpc::InsecureChannelCredentials());
    stub = v1::Store::NewStub(channel_);
    REQUIRE(WaitUntil([&] {
      v1::Status status;
      return stub->GetStatus(Context().get(), {}, &status).ok() && status.state() != "recovering";
    }));
  }
  void StopServer() {
    server->Shutdown(1'000'000);
    server.reset();
  }

  static std::unique_ptr<grpc::ClientContext> Context() {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + kPatience);
    context->set_wait_for_ready(true);
    return context;
  }

  // The layouts of an instance with tensor parallelism over all ranks, experts whole.
  std::vector<std::shared_ptr<const Layout>> Layouts(uint32_t ranks, uint64_t generation = 1) {
    std::vector<std::shared_ptr<const Layout>> layouts;
    for (uint32_t i = 0; i < ranks; ++i) {
      RankSpec spec;
      spec.tp_rank = i;
      spec.tp_size = ranks;
      spec.expert_parallel = ranks > 1;
      auto layout = MakeLayout(model_.config.dump(), manifest(), spec, generation);
      REQUIRE_OK(layout);
      layouts.push_back(std::make_shared<const Layout>(*std::move(layout)));
    }
    return layouts;
  }

  // The model with about `density` of its elements changed.
  NaiveTensors Changed(const NaiveTensors& from, double density) {
    NaiveTensors to = from;
    std::uniform_real_distribution<double> uniform;
    for (auto& [name, tensor] : to) {
      for (char& byte : tensor.bytes) {
        if (uniform(random_) < density) byte = static_cast<char>(byte ^ (1 + random_() % 255));
      }
    }
    return to;
  }

  // Begins, sends and awaits the decision.
  grpc::Status Publish(const std::string& id, const NaiveTensors& to, v1::Decision* decision,
                       v1::Policy policy = v1::POLICY_ALL, bool candidate = false) {
    v1::BeginRequest begin;
    begin.set_id(id);
    begin.set_policy(policy);
    begin.set_candidate(candidate);
    v1::BeginResponse begun;
    grpc::Status status;
    // After a decision the instances may still be on their way to it.
    REQUIRE(WaitUntil([&] {
      status = stub->Begin(Context().get(), begin, &begun);
      return status.error_code() != grpc::UNAVAILABLE;
    }));
    if (!status.ok()) return status;
    if (begun.has_repeated()) {
      *decision = begun.repeated();
      return status;
    }
    const NaiveTensors& from = versions.at(begun.parent().version());
    PatchDigester digester(manifest());
    std::vector<std::string> chunks = Chunks(from, to, begun.transaction(), &digester);
    auto context = Context();
    const auto stream = stub->Put(context.get());
    v1::PutRequest request;
    request.set_transaction(begun.transaction());
    stream->Write(request);
    for (size_t i = 0; i < chunks.size(); ++i) {
      request.set_chunk(chunks[i]);
      request.set_sequence(i);
      stream->Write(request);
    }
    stream->WritesDone();
    v1::PutResponse response;
    while (stream->Read(&response)) {
    }
    status = stream->Finish();
    if (!status.ok()) return status;
    v1::CommitRequest commit;
    commit.set_transaction(begun.transaction());
    commit.set_chunks(chunks.size());
    commit.set_digest(ToBytes(digester.Finish()));
    status = stub->Commit(Context().get(), commit, decision);
    if (status.ok() && decision->outcome() == v1::OUTCOME_COMMITTED) {
      versions[decision->version().version()] = to;
    }
    return status;
  }

  grpc::Status Rollback(const std::string& to, v1::Decision* decision) {
    v1::RollbackRequest request;
    request.set_id("rollback to " + to + std::to_string(++rollbacks_));
    request.set_version(to);
    const grpc::Status status = stub->Rollback(Context().get(), request, decision);
    v1::SetHoldRequest resume;
    v1::SetHoldResponse resumed;
    if (status.ok()) REQUIRE(stub->SetHold(Context().get(), resume, &resumed).ok());
    return status;
  }

  std::map<std::pair<std::string, uint32_t>, v1::Worker> Workers() {
    v1::ListWorkersResponse response;
    REQUIRE(stub->ListWorkers(Context().get(), {}, &response).ok());
    std::map<std::pair<std::string, uint32_t>, v1::Worker> workers;
    for (const v1::Worker& worker : response.workers()) {
      workers[{worker.instance(), worker.rank()}] = worker;
    }
    return workers;
  }

  std::map<uint64_t, NaiveTensors> versions;
  uint64_t chunk_bytes = 4096;  // small, so that there are several
  service::ServerOptions options;
  std::unique_ptr<service::Server> server;
  std::unique_ptr<v1::Store::Stub> stub;

  std::vector<std::string> Chunks(const NaiveTensors& from, const NaiveTensors& to,
                                  uint64_t transaction, PatchDigester* digester) {
    std::vector<std::string> chunks;
    ChunkBuilder builder(manifest());
    for (TensorIndex i = 0; i < manifest().size(); ++i) {
      const std::string& name = manifest().tensor(i).spec.name;
      const std::string& before = from.at(name).bytes;
      const std::string& after = to.at(name).bytes;
      std::vector<uint16_t> offsets;
      std::string values;
      for (size_t at = 0; at < before.size(); at += 2) {  // all are BF16, of one tile
        if (std::memcmp(&before[at], &after[at], 2) == 0) continue;
        offsets.push_back(static_cast<uint16_t>(at / 2));
        values.push_back(static_cast<char>(before[at] ^ after[at]));
        values.push_back(static_cast<char>(before[at + 1] ^ after[at + 1]));
      }
      if (offsets.empty()) continue;
      builder.AddTile({i, 0}, offsets, reinterpret_cast<const uint8_t*>(values.data()));
      if (builder.size_bytes() > chunk_bytes) {
        const auto part = static_cast<uint16_t>(chunks.size());
        chunks.push_back(builder.Finish({TransactionNumber(transaction), ChunkKey{0, 0, part}}));
      }
    }
    if (!builder.empty()) {
      const auto part = static_cast<uint16_t>(chunks.size());
      chunks.push_back(builder.Finish({TransactionNumber(transaction), ChunkKey{0, 0, part}}));
    }
    for (const std::string& chunk : chunks) {
      const auto view = ChunkView::Parse(chunk, manifest());
      REQUIRE_OK(view);
      for (const EncodedTile& tile : view->tiles()) {
        digester->Add(tile.place, tile.form, tile.changed, TileDigest(tile));
      }
    }
    return chunks;
  }

 private:
  TempDir directory_;
  std::mt19937_64 random_;
  TestModel model_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<DenseSource> dense_;
  std::shared_ptr<grpc::Channel> channel_;
  int rollbacks_ = 0;
};

// A rank: memory of a device, an engine that sums it in every step, and a worker.
class TestRank {
 public:
  TestRank(ServedModel& model, std::shared_ptr<const Layout> layout) : model_(model) {
    SetLayout(std::move(layout));
  }
  ~TestRank() { Stop(); }

  void SetLayout(std::shared_ptr<const Layout> layout) {
    layout_ = std::move(layout);
    buffers_.clear();
    for (uint32_t i = 0; i < layout_->buffers().size(); ++i) {
      const uint64_t size = layout_->buffer_bytes(i);
      buffers_.push_back({device_->Allocate(size), size});
    }
  }

  // Called before Start.
  WorkerOptions options;

  absl::Status Start(Deadline deadline) {
    options.replica.threads = 1;
    options.replica.backend = device_->MakeBackend(options.replica.threads);
    options.replica.undo_budget_bytes = 1 << 24;
    options.replica.on_change = [this](const ChangeEvent& event) {
      const std::lock_guard<std::mutex> lock(mutex_);
      events_.push_back(event);
    };
    options.log = [this](const std::string& line) {
      const std::lock_guard<std::mutex> lock(mutex_);
      log_ += line + "\n";
    };
    auto base = ReadWorkerBase(options.connect, deadline);
    if (!base.ok()) return base.status();
    base_ = *base;
    auto started = Worker::Start(base_, layout_, buffers_, options, deadline);
    if (!started.ok()) return started.status();
    worker_ = *std::move(started);
    engine_ = std::thread([this] { RunEngine(); });
    return absl::OkStatus();
  }

  void Stop() {
    if (worker_ != nullptr) worker_->Leave(Deadline::After(3'000'000));
    if (engine_.joinable()) engine_.join();
    worker_.reset();
  }

  Worker& worker() { return *worker_; }
  std::vector<ChangeEvent> events() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return events_;
  }
  std::string log() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return log_;
  }
  const Layout& layout() const { return *layout_; }
  const std::vector<LocalBuffer>& buffers() const { return buffers_; }

  bool Serves(uint64_t version) {
    const WorkerStatus status = worker_->status();
    return status.may_serve && status.version && status.version->version == VersionId(version);
  }

  // Puts this rank's elements where the checkpoint has them. Call where the engine does not change
  // them.
  void GatherInto(NaiveTensors* tensors, std::map<std::string, std::vector<bool>>* covered) const {
    for (const Placement& placement : layout_->placements()) {
      const std::string& name = model_.manifest().tensor(placement.tensor).spec.name;
      std::string& bytes = tensors->at(name).bytes;
      std::vector<bool>& seen = (*covered)[name];
      seen.resize(bytes.size() / 2);
      const std::vector<uint8_t> local = Read(buffers_[placement.buffer]);
      SegmentCursor cursor(placement);
      do {
        const Segment& segment = cursor.segment();
        for (uint64_t i = 0; i < segment.end - segment.begin; ++i) {
          const uint64_t at = segment.local_begin + i * segment.local_stride;
          std::memcpy(&bytes[2 * (segment.begin + i)], &local[2 * at], 2);
          seen[segment.begin + i] = true;
        }
      } while (cursor.Next());
    }
  }

  // Flips a bit of a byte that holds an element.
  void FlipBit() {
    const Placement& placement = layout_->placements().back();
    const LocalBuffer& buffer = buffers_[placement.buffer];
    const uint8_t flipped = Read(buffer)[2 * placement.local_offset] ^ 4;
    device_->Write(&flipped, 1, static_cast<uint8_t*>(buffer.data) + 2 * placement.local_offset);
  }

  std::atomic<uint64_t> steps{0};
  std::atomic<uint64_t> released{0};
  std::atomic<bool> engine_is_stuck{false};
  std::string fault() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return fault_;
  }
  // What was released in each step: sums of the memory.
  std::set<uint64_t> released_sums() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return released_sums_;
  }
  uint64_t Sum() const {
    uint64_t sum = 0;
    for (const LocalBuffer& buffer : buffers_) {
      for (const uint8_t byte : Read(buffer)) sum = sum * 1099511628211u + byte;
    }
    return sum;
  }
  std::function<bool()> meet;  // a collective in the middle of each step; false: ends

 private:
  std::vector<uint8_t> Read(const LocalBuffer& buffer) const {
    std::vector<uint8_t> bytes(buffer.size_bytes);
    device_->Read(buffer.data, bytes.size(), bytes.data());
    return bytes;
  }
  void RunEngine() {
    while (worker_->AtSafePoint() == SafePoint::kRun) {
      const uint64_t before = Sum();
      if (meet && !meet()) break;
      std::this_thread::sleep_for(200us);
      while (engine_is_stuck) std::this_thread::sleep_for(1ms);
      const uint64_t after = Sum();
      ++steps;
      const std::lock_guard<std::mutex> lock(mutex_);
      if (before != after) fault_ = "weights changed within a step";
      if (!worker_->MayServe()) continue;
      ++released;
      released_sums_.insert(after);
    }
  }

  ServedModel& model_;
  std::shared_ptr<const WorkerBase> base_;
  std::shared_ptr<const Layout> layout_;
  const std::unique_ptr<TestDevice> device_ = MakeTestDevice();
  std::vector<LocalBuffer> buffers_;
  std::unique_ptr<Worker> worker_;
  std::thread engine_;
  std::mutex mutex_;
  std::vector<ChangeEvent> events_;
  std::string log_;
  std::string fault_;
  std::set<uint64_t> released_sums_;
};

// The ranks of one instance, as threads of this process.
class TestInstance {
 public:
  TestInstance(ServedModel& model, const std::string& name, uint32_t count, bool in_step = true)
      : model_(model), name_(name), in_step_(in_step) {
    auto layouts = model.Layouts(count);
    for (auto& group : MakeThreadGroups(count)) groups_.push_back(std::move(group));
    for (uint32_t i = 0; i < count; ++i) {
      ranks.push_back(std::make_unique<TestRank>(model, layouts[i]));
      Prepare(i);
    }
  }
  ~TestInstance() { Stop(); }

  void Prepare(uint32_t rank) {
    WorkerOptions& options = ranks[rank]->options;
    options.connect = model_.connect();
    options.instance = name_;
    if (ranks.size() > 1 || groups_.size() > 1) options.group = groups_[rank];
    options.base = &model_.dense();
    if (in_step_) ranks[rank]->meet = [this] { return Meet(); };
  }

  void Start() {
    std::vector<std::thread> starting;
    std::vector<absl::Status> statuses(ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      starting.emplace_back([&, i] { statuses[i] = ranks[i]->Start(Deadline::After(10'000'000)); });
    }
    for (std::thread& thread : starting) thread.join();
    for (const absl::Status& status : statuses) REQUIRE_OK(status);
  }

  // A process that has died: nothing of it is left but what it showed. Then another of its name.
  void Restart(uint32_t rank, const std::function<void(WorkerOptions&)>& change = nullptr) {
    auto layout = std::make_shared<const Layout>(ranks[rank]->layout());
    ranks[rank] = std::make_unique<TestRank>(model_, layout);
    Prepare(rank);
    if (change) change(ranks[rank]->options);
    REQUIRE_OK(ranks[rank]->Start(Deadline::After(10'000'000)));
  }

  void Stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
      all_.notify_all();
    }
    for (auto& rank : ranks) rank->Stop();
  }

  bool Serves(uint64_t version) {
    for (auto& rank : ranks) {
      if (!rank->Serves(version)) return false;
    }
    return true;
  }
  void AwaitServing(uint64_t version) {
    const bool serves = WaitUntil([&] { return Serves(version); });
    for (auto& rank : ranks) {
      const WorkerStatus status = rank->worker().status();
      INFO(name_ << ": " << status.standing << " " << status.stage << " " << status.detail << "\n"
                 << rank->log());
      if (!serves) CHECK(rank->Serves(version));
    }
    REQUIRE(serves);
  }

  // All ranks together hold exactly this model, element for element.
  void RequireHolds(const NaiveTensors& model) {
    NaiveTensors gathered = model;
    for (auto& [name, tensor] : gathered) tensor.bytes.assign(tensor.bytes.size(), '\0');
    std::map<std::string, std::vector<bool>> covered;
    for (auto& rank : ranks) rank->GatherInto(&gathered, &covered);
    for (const auto& [name, tensor] : model) {
      INFO(name_ << ": " << name);
      for (const bool seen : covered[name]) REQUIRE(seen);
      REQUIRE((gathered.at(name).bytes == tensor.bytes));
    }
  }
  void RequireNoFault() {
    for (auto& rank : ranks) REQUIRE(rank->fault() == "");
  }

  std::vector<std::unique_ptr<TestRank>> ranks;

 private:
  bool Meet() {
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t step = step_;
    if (++arrived_ == ranks.size()) {
      arrived_ = 0;
      ++step_;
      all_.notify_all();
    }
    all_.wait(lock, [&] { return step_ != step || ended_; });
    return !ended_;
  }

  ServedModel& model_;
  const std::string name_;
  const bool in_step_;
  std::vector<std::shared_ptr<InstanceGroup>> groups_;
  std::mutex mutex_;
  std::condition_variable all_;
  uint64_t arrived_ = 0;
  uint64_t step_ = 0;
  bool ended_ = false;
};

}  // namespace wstore::testing
