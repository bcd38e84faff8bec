// Two trainers on one GPU that publish together, each what it holds of every tensor, to a server
// and ranks in this process. The ranks' weights are in the GPU's memory, too. Or all of that over
// two GPUs, a trainer and a rank on each.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu/device_weights.h"
#include "tests/support/random.h"
#include "tests/unit/worker/served_model.h"
#include "transfer/cuda/device_scope.h"
#include "wstore/cuda_publisher.h"
#include "wstore/cuda_transfer.h"
#include "wstore/patch_digest.h"

namespace wstore::testing {
namespace {

constexpr uint32_t kTrainers = 2;

Deadline Soon() { return Deadline::After(20'000'000); }

// Every tensor in two: at a block within it, or all to one of the trainers.
std::vector<Share> Halves(const Manifest& manifest) {
  std::vector<Share> shares(kTrainers);
  size_t cut_tensors = 0;
  for (TensorIndex i = 0; i < manifest.size(); ++i) {
    const uint64_t elements = manifest.tensor(i).elements;
    uint64_t cut = elements / 2 / kShareElements * kShareElements;
    if (i % 5 == 0) cut = elements;
    if (i % 5 == 1) cut = 0;
    cut_tensors += cut % kTileElements != 0 && cut < elements ? 1 : 0;
    shares[0].push_back({i, {0, cut}});
    shares[1].push_back({i, {cut, elements}});
  }
  REQUIRE(cut_tensors > 0);
  return shares;
}

// One trainer: its weights on the GPU, and its publisher.
class Trainer {
 public:
  Trainer(ServedModel& served, uint32_t number, const Share& share, const Share& published_share)
      : served_(served), held_(*HeldRanges(served.manifest(), share)) {
    auto stream = OwnedCudaStream::Create();
    REQUIRE_OK(stream);
    stream_.emplace(*std::move(stream));
    auto client = Client::Connect(served.connect(), "trainer");
    REQUIRE_OK(client);
    client_ = *client;
    options_.stream = stream_->get();
    options_.memory = memory_.get();
    options_.patch_bytes = 4 << 20;
    options_.contributor = number;
    options_.contributors = kTrainers;
    options_.share = published_share;
    options_.parts = 2;
  }

  absl::Status Start() {
    auto started = CudaPublisher::Start(client_, served_.connect(), options_, Soon());
    if (!started.ok()) return started.status();
    publisher_ = *std::move(started);
    return absl::OkStatus();
  }

  CudaPublisher& publisher() { return *publisher_; }
  Client& client() { return *client_; }

  absl::StatusOr<Decision> Publish(const NaiveTensors& weights, const PublishOptions& options,
                                   Deadline deadline = Soon()) {
    Upload(weights);
    return publisher_->Publish(addresses_, options, deadline);
  }

  // The shadow has these bits where it has any.
  void RequireShadow(const NaiveTensors& weights) {
    for (TensorIndex i = 0; i < held_.size(); ++i) {
      const Manifest::Tensor& tensor = served_.manifest().tensor(i);
      INFO(tensor.spec.name);
      const void* const at = publisher_->shadow()[i];
      REQUIRE((at == nullptr) == held_[i].empty());
      if (at == nullptr) continue;
      const cuda::DeviceScope scope(*cuda::DeviceOf(stream_->get()));
      std::string bytes(held_[i].size() * tensor.element_bytes, '\0');
      REQUIRE_OK(cuda::CopyAsync(static_cast<const char*>(at), bytes.data(), bytes.size(),
                                 stream_->get()));
      REQUIRE_OK(cuda::Synchronize(stream_->get()));
      REQUIRE((bytes == Held(weights, i)));
    }
  }

 private:
  std::string Held(const NaiveTensors& weights, TensorIndex tensor) const {
    const Manifest::Tensor& info = served_.manifest().tensor(tensor);
    return weights.at(info.spec.name)
        .bytes.substr(held_[tensor].first * info.element_bytes,
                      held_[tensor].size() * info.element_bytes);
  }

  // Catch's macros are for one thread: what fails here shows as other weights than were meant.
  void Upload(const NaiveTensors& weights) {
    addresses_.resize(held_.size());
    tensors_.resize(held_.size());
    for (TensorIndex i = 0; i < held_.size(); ++i) {
      if (held_[i].empty()) continue;
      const std::string bytes = Held(weights, i);
      if (addresses_[i] == nullptr) {
        auto made = cuda::DeviceBuffer<char>::Create(bytes.size(), memory_.get(), stream_->get());
        if (!made.ok()) continue;
        tensors_[i] = *std::move(made);
        addresses_[i] = tensors_[i].get();
      }
      cuda::CopyAsync(bytes.data(), tensors_[i].get(), bytes.size(), stream_->get()).IgnoreError();
      cuda::Synchronize(stream_->get()).IgnoreError();
    }
  }

  ServedModel& served_;
  const std::vector<ElementRange> held_;
  std::unique_ptr<CudaMemory> memory_ = MakeCudaPoolMemory();
  std::optional<OwnedCudaStream> stream_;
  std::vector<cuda::DeviceBuffer<char>> tensors_;
  std::vector<const void*> addresses_;
  std::shared_ptr<Client> client_;
  CudaPublisherOptions options_;
  std::unique_ptr<CudaPublisher> publisher_;
};

// Where ranks have their weights, in turn.
class WeightsOn {
 public:
  explicit WeightsOn(int gpus) { setenv("WSTORE_TEST_DEVICE", gpus == 1 ? "0" : "0,1", 1); }
  ~WeightsOn() { unsetenv("WSTORE_TEST_DEVICE"); }
};

// A server, an instance of two ranks, and the trainers.
class TrainedFleet {
 public:
  explicit TrainedFleet(uint64_t seed, int gpus = 1)
      : gpus_(gpus), weights_on_(gpus), served(seed), instance(served, "near", 2) {
    for (int i = 0; i < 2; ++i) {
      const cuda::DeviceScope scope(i % gpus_);
      const auto port = MakeCudaTransferPort(rank_memory_.get());
      REQUIRE_OK(port);
      instance.ranks[i]->options.transfer = *port;
      instance.ranks[i]->options.on_thread = [device = i % gpus] {
        UseCudaDevice(device).IgnoreError();
      };
    }
    instance.Start();
    instance.AwaitServing(0);
    const std::vector<Share> shares = Halves(served.manifest());
    for (uint32_t i = 0; i < kTrainers; ++i) {
      const cuda::DeviceScope scope(static_cast<int>(i) % gpus_);
      trainers.push_back(std::make_unique<Trainer>(served, i, shares[i], shares[i]));
      REQUIRE_OK(trainers[i]->Start());
    }
    for (const auto& trainer : trainers) {
      REQUIRE_OK(trainer->publisher().lead()->AwaitRanks(2, Soon()));
    }
  }

  // All trainers at once. Their decisions, by number.
  std::vector<absl::StatusOr<Decision>> Publish(const NaiveTensors& weights,
                                                const std::vector<PublishOptions>& options,
                                                Deadline deadline = Soon()) {
    std::vector<absl::StatusOr<Decision>> decisions(kTrainers, absl::UnknownError("not run"));
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < kTrainers; ++i) {
      threads.emplace_back([&, i] {
        UseCudaDevice(static_cast<int>(i) % gpus_).IgnoreError();
        decisions[i] = trainers[i]->Publish(weights, options[i], deadline);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return decisions;
  }
  PublishOptions Next(PublishDurability durability = PublishDurability::kSync) {
    PublishOptions options;
    options.begin.transaction_id = "step " + std::to_string(++steps_);
    options.durability = durability;
    return options;
  }

  // It becomes the version, of which all hold every bit, and is the version that one contributor
  // would make.
  void MustPublish(const NaiveTensors& weights,
                   PublishDurability durability = PublishDurability::kSync) {
    const HeadInfo parent = trainers[0]->publisher().parent();
    const auto decisions = Publish(weights, std::vector(kTrainers, Next(durability)));
    for (const auto& decision : decisions) {
      REQUIRE_OK(decision);
      REQUIRE(decision->outcome != CommitResult::Outcome::kUnchanged);
      REQUIRE(decision->outcome != CommitResult::Outcome::kRepeated);
      REQUIRE(decision->version == decisions[0]->version);
    }
    const VersionId version = decisions[0]->version;
    for (const auto& trainer : trainers) {
      REQUIRE_OK(trainer->publisher().times().sent);
      REQUIRE(trainer->publisher().parent().version == version);
      REQUIRE_OK(trainer->publisher().AwaitDurable(Soon()));
      trainer->RequireShadow(weights);
    }
    served.versions[version.value()] = weights;
    instance.AwaitServing(version.value());
    instance.RequireHolds(weights);
    const auto info = trainers[0]->client().Version(ToString(version), Soon());
    REQUIRE_OK(info);
    Fingerprint sum;
    for (const auto& trainer : trainers) sum += trainer->publisher().fingerprint();
    REQUIRE((sum == info->fingerprint));
    PatchDigester digester(served.manifest());
    served.Chunks(served.versions.at(parent.version.value()), weights, 1, &digester);
    REQUIRE(ToHex(digester.Finish()) == ToHex(info->patch_digest));
  }

  uint64_t head() { return trainers[0]->publisher().parent().version.value(); }

 private:
  const int gpus_;
  const WeightsOn weights_on_;
  const std::unique_ptr<CudaMemory> rank_memory_ = MakeCudaPoolMemory();
  int steps_ = 0;

 public:
  ServedModel served;
  TestInstance instance;
  std::vector<std::unique_ptr<Trainer>> trainers;
};

// Weights where only the first trainer's tensors change.
NaiveTensors OfTheFirst(const Manifest& manifest, const NaiveTensors& from,
                        const NaiveTensors& to) {
  NaiveTensors weights = from;
  for (TensorIndex i = 0; i < manifest.size(); i += 5) {
    const std::string& name = manifest.tensor(i).spec.name;
    weights.at(name) = to.at(name);
  }
  return weights;
}

void PublishHalves(int gpus) {
  TrainedFleet fleet(TestSeed("gpu contributors"), gpus);
  ServedModel& served = fleet.served;
  for (const double density : {0.02, 0.7}) {
    for (const auto durability : {PublishDurability::kSync, PublishDurability::kAsync}) {
      fleet.MustPublish(served.Changed(served.versions.at(fleet.head()), density), durability);
    }
  }
  for (auto& rank : fleet.instance.ranks) REQUIRE(rank->worker().status().carried_bytes > 0);
  {
    INFO("one of them has no changes");
    const NaiveTensors& now = served.versions.at(fleet.head());
    fleet.MustPublish(OfTheFirst(served.manifest(), now, served.Changed(now, 0.1)));
  }
  {
    INFO("none has");
    const uint64_t head = fleet.head();
    const auto decisions =
        fleet.Publish(served.versions.at(head), std::vector(kTrainers, fleet.Next()));
    for (const auto& decision : decisions) {
      REQUIRE_OK(decision);
      REQUIRE(decision->outcome == CommitResult::Outcome::kUnchanged);
    }
    REQUIRE(fleet.head() == head);
  }
  {
    INFO("the same id again");
    const uint64_t head = fleet.head();
    const NaiveTensors next = served.Changed(served.versions.at(head), 0.1);
    const std::vector<PublishOptions> options(kTrainers, fleet.Next());
    for (const auto& decision : fleet.Publish(next, options)) REQUIRE_OK(decision);
    served.versions[fleet.head()] = next;
    for (const auto& decision : fleet.Publish(next, options)) {
      REQUIRE_OK(decision);
      REQUIRE(decision->version == VersionId(fleet.head()));
    }
    for (const auto& decision : fleet.Publish(served.Changed(next, 0.1), options)) {
      REQUIRE_ERROR(decision, absl::StatusCode::kAlreadyExists, "use another id");
    }
  }
  fleet.MustPublish(served.Changed(served.versions.at(fleet.head()), 0.1));
  fleet.instance.RequireNoFault();
}

}  // namespace

TEST_CASE("two trainers on a GPU publish their halves as one version, which ranks follow") {
  REQUIRE_GPU();
  PublishHalves(1);
}

TEST_CASE("two trainers on a GPU each publish their halves, which a rank on each follows",
          "[.][gpus]") {
  REQUIRE_GPUS(2);
  PublishHalves(2);
}

TEST_CASE("two trainers on a GPU follow an operator who goes back, one after the other") {
  REQUIRE_GPU();
  TrainedFleet fleet(TestSeed("gpu contributors go back"));
  ServedModel& served = fleet.served;
  fleet.MustPublish(served.Changed(served.versions.at(0), 0.05));
  fleet.MustPublish(served.Changed(served.versions.at(1), 0.05));
  v1::Decision back;
  REQUIRE(served.Rollback("v1", &back).ok());
  fleet.instance.AwaitServing(1);
  Trainer& first = *fleet.trainers[0];
  Trainer& second = *fleet.trainers[1];
  REQUIRE_OK(first.publisher().Rebase(Soon()));
  first.RequireShadow(served.versions.at(1));

  // The second one has not heard of it. It joins what the first one has begun.
  const NaiveTensors next = served.Changed(served.versions.at(1), 0.05);
  PublishOptions options = fleet.Next();
  PublishOptions of_second = options;
  std::atomic<bool> has_begun{false};
  options.before_sending = [&] {
    has_begun = true;
    return absl::OkStatus();
  };
  absl::StatusOr<Decision> decision = absl::UnknownError("not run");
  std::thread publishing([&] {
    UseCudaDevice(0).IgnoreError();
    decision = first.Publish(next, options);
  });
  const bool began = WaitUntil([&] { return has_begun.load(); });
  const absl::StatusOr<Decision> refused = second.Publish(next, of_second);
  publishing.join();
  REQUIRE(began);
  REQUIRE_ERROR(refused, absl::StatusCode::kFailedPrecondition, "has begun this publish on v1");
  REQUIRE_ERROR(decision, absl::StatusCode::kAborted, "gave up");
  first.RequireShadow(served.versions.at(1));
  second.RequireShadow(served.versions.at(2));
  fleet.instance.AwaitServing(1);
  fleet.instance.RequireHolds(served.versions.at(1));

  REQUIRE_OK(second.publisher().Rebase(Soon()));
  second.RequireShadow(served.versions.at(1));
  fleet.MustPublish(next);
  REQUIRE(fleet.head() > 2);
  fleet.instance.RequireNoFault();
}

TEST_CASE("a trainer on a GPU that gives up or dies takes the others' publish with it, no more") {
  REQUIRE_GPU();
  TrainedFleet fleet(TestSeed("gpu contributors die"));
  ServedModel& served = fleet.served;
  fleet.MustPublish(served.Changed(served.versions.at(0), 0.05));
  const NaiveTensors next = served.Changed(served.versions.at(1), 0.05);
  const auto require_as_before = [&] {
    for (const auto& trainer : fleet.trainers) trainer->RequireShadow(served.versions.at(1));
    fleet.instance.AwaitServing(1);
    fleet.instance.RequireHolds(served.versions.at(1));
  };
  {
    INFO("it gives up");
    std::vector<PublishOptions> options(kTrainers, fleet.Next());
    // Both have begun by then.
    std::atomic<bool> has_begun{false};
    options[0].before_sending = [&] {
      has_begun = true;
      return absl::OkStatus();
    };
    options[1].before_sending = [&]() -> absl::Status {
      if (!WaitUntil([&] { return has_begun.load(); })) return absl::UnknownError("alone");
      return absl::CancelledError("the loss is not a number");
    };
    const auto decisions = fleet.Publish(next, options);
    REQUIRE_ERROR(decisions[0], absl::StatusCode::kAborted, "the loss is not a number");
    REQUIRE_ERROR(decisions[1], absl::StatusCode::kCancelled, "the loss is not a number");
    require_as_before();
  }
  {
    INFO("it has begun, and is not heard of again");
    PublishOptions options = fleet.Next();
    options.contributors = kTrainers;
    PublishOptions of_second = options;
    of_second.contributor = 1;
    auto upload = fleet.trainers[1]->client().Begin(of_second, Soon());
    REQUIRE_OK(upload);
    Trainer& first = *fleet.trainers[0];
    REQUIRE_ERROR(first.Publish(next, options, Deadline::After(2'000'000)),
                  absl::StatusCode::kUnknown, options.begin.transaction_id);
    REQUIRE(first.publisher().in_doubt() == options.begin.transaction_id);
    require_as_before();
    // Whoever knows that it is dead says so.
    REQUIRE_OK(first.client().Abort(options.begin.transaction_id, "trainer 1 is dead", Soon()));
  }
  {
    INFO("another one takes its place, and reads its share anew");
    fleet.trainers[1].reset();
    const Share share = Halves(served.manifest())[1];
    fleet.trainers[1] = std::make_unique<Trainer>(served, 1, share, share);
    REQUIRE_OK(fleet.trainers[1]->Start());
    REQUIRE_OK(fleet.trainers[1]->publisher().lead()->AwaitRanks(2, Soon()));
    require_as_before();
  }
  fleet.MustPublish(next);
  REQUIRE(fleet.trainers[0]->publisher().in_doubt() == std::nullopt);
  fleet.instance.RequireNoFault();
}

TEST_CASE("a trainer on a GPU is refused where its part of a publish is not clear") {
  REQUIRE_GPU();
  ServedModel served(TestSeed("gpu contributors refused"));
  const std::vector<Share> shares = Halves(served.manifest());
  Trainer none(served, kTrainers, shares[1], shares[1]);
  REQUIRE_ERROR(none.Start(), absl::StatusCode::kInvalidArgument, "contributor 2 of 2");
  Trainer crooked(served, 1, shares[1], {{0, {1, 2}}});
  REQUIRE_ERROR(crooked.Start(), absl::StatusCode::kInvalidArgument, "elements 1 to 2 of");
  Trainer second(served, 1, shares[1], shares[1]);
  REQUIRE_OK(second.Start());
  PublishOptions options;
  REQUIRE_ERROR(second.Publish(served.versions.at(0), options), absl::StatusCode::kInvalidArgument,
                "need a transaction id");
  options.begin.transaction_id = "step";
  options.contributors = 3;
  REQUIRE_ERROR(second.Publish(served.versions.at(0), options), absl::StatusCode::kInvalidArgument,
                "started as 1 of 2");
}

}  // namespace wstore::testing
