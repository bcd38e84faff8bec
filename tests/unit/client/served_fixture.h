// A server in this process on the model of StoreFixture, or on another one, and a client of it.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "store/checkpoint/checkpoint.h"
#include "store/service/server.h"
#include "tests/support/catch.h"
#include "tests/unit/store/store_fixture.h"
#include "wstore/publisher.h"

namespace wstore::testing {

inline Deadline Soon() { return Deadline::After(20'000'000); }

inline service::ServerOptions QuickServer(const std::string& directory) {
  service::ServerOptions options;
  options.directory = directory;
  protocol::Timing& timing = options.coordinator.timing;
  timing.lease = 300'000;
  timing.skew = 100'000;
  timing.apply_deadline = 1'000'000;
  timing.hold_deadline = 2'000'000;
  return options;
}

inline absl::Span<const uint8_t> BytesOf(const NaiveTensor& tensor) {
  return {reinterpret_cast<const uint8_t*>(tensor.bytes.data()), tensor.bytes.size()};
}

// Weights as a trainer has them. `tensors` must outlive the result.
inline MemoryTensors InMemory(const Manifest& manifest, const NaiveTensors& tensors) {
  MemoryTensors memory(manifest);
  for (const auto& [name, tensor] : tensors) REQUIRE_OK(memory.Set(name, BytesOf(tensor)));
  REQUIRE_OK(memory.CheckComplete());
  return memory;
}

// Publishes versions of one element each, in this process, each on the one before. `first`: the
// element that the first of them changes.
inline void CommitManyVersions(StoreFixture& fixture, int64_t count, int64_t first = 0) {
  const uint8_t value = 1;
  for (int64_t n = first; n < first + count; ++n) {
    const int64_t i = n % 70'000;
    TensorPatch patch;
    patch.name = "layer.1.codes";
    patch.dtype = Dtype::kI8;
    patch.shape = {70'000};
    patch.indices = {&i, 1};
    patch.values = {&value, 1};
    patch.form = TensorPatch::Form::kXor;
    auto transaction = fixture.store().Begin({});
    REQUIRE_OK(transaction);
    REQUIRE_OK((*transaction)->Add({patch}));
    REQUIRE_OK((*transaction)->Commit());
  }
}

class ServedFixture {
 public:
  explicit ServedFixture(uint64_t seed = 1) : store(seed) {
    store.CloseStore();
    Start();
    client = Connect("unix:" + store.store_path() + "/wstore.sock");
  }

  void Start() {
    auto started = service::Server::Start(QuickServer(store.store_path()));
    REQUIRE_OK(started);
    server = *std::move(started);
  }
  void Stop() {
    if (server != nullptr) server->Shutdown(1'000'000);
    server.reset();
  }

  static std::shared_ptr<Client> Connect(const std::string& address) {
    ConnectOptions options;
    options.address = address;
    auto connected = Client::Connect(options, "trainer");
    REQUIRE_OK(connected);
    return *std::move(connected);
  }

  std::unique_ptr<Publisher> StartPublisher() { return StartPublisher(client); }
  static std::unique_ptr<Publisher> StartPublisher(std::shared_ptr<Client> client) {
    auto started = Publisher::Start(std::move(client), {}, Soon());
    REQUIRE_OK(started);
    return *std::move(started);
  }

  static absl::StatusOr<Decision> Publish(Publisher& publisher, const NaiveTensors& weights,
                                          const std::string& id, Deadline deadline = Soon()) {
    PublishOptions options;
    options.begin.transaction_id = id;
    return publisher.Publish(InMemory(publisher.manifest(), weights), options, deadline);
  }

  static bool ShadowIs(const Publisher& publisher, const NaiveTensors& weights) {
    for (const auto& [name, tensor] : weights) {
      if (publisher.shadow(*publisher.manifest().Find(name)) != BytesOf(tensor)) return false;
    }
    return true;
  }

  // Every version in `versions` exports bit for bit, and nothing else was committed.
  void RequireVersions(const std::map<uint64_t, NaiveTensors>& versions) {
    Stop();
    store.Reopen();
    for (const auto& [version, tensors] : versions) {
      INFO("v" << version);
      REQUIRE((store.Exported(version) == tensors));
    }
    REQUIRE(store.store().versions().size() == versions.size());
    VerifyOptions options;
    options.all = true;
    const auto report = store.store().Verify(options);
    REQUIRE_OK(report);
    REQUIRE(report->ok());
    store.CloseStore();
  }

  StoreFixture store;
  std::unique_ptr<service::Server> server;
  std::shared_ptr<Client> client;
};

}  // namespace wstore::testing
