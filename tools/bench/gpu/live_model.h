// A model in the memory of a GPU, its store, a server of that, and an instance that serves it.
#pragma once

#include <barrier>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/bench/gpu/gpu.h"
#include "tools/bench/served_store.h"
#include "transfer/cuda/buffer.h"
#include "wstore/cuda_differ.h"
#include "wstore/cuda_publisher.h"
#include "wstore/worker.h"

namespace wstore::bench {

// Weights that a trainer changes, and a publisher of them.
class Trainer {
 public:
  // Random weights, also written to `path` as safetensors.
  static absl::StatusOr<std::unique_ptr<Trainer>> Make(const Gpu& gpu, const Model& model,
                                                       const std::string& path);

  // parts: of CudaPublisherOptions; 0: as these have it.
  absl::Status Connect(const Served& served, const TensorSource& base, uint64_t patch_bytes,
                       uint32_t parts);
  // Changes so many of the first `elements`.
  absl::Status Change(uint64_t elements, double density);
  absl::StatusOr<Decision> Publish(PublishDurability durability);
  // Takes the shadow's bits.
  absl::Status Reset();

  const uint8_t* weights() const { return weights_.get(); }
  CudaPublisher& publisher() { return *publisher_; }

 private:
  Trainer(const Gpu& gpu, const Model& model) : gpu_(gpu), model_(model) {}

  const Gpu& gpu_;
  const Model& model_;
  cuda::DeviceBuffer<uint8_t> weights_;
  std::unique_ptr<CudaPublisher> publisher_;
  uint64_t seed_ = 100;
};

// Where the ranks of an instance are.
struct InstancePlace {
  int first_device = 0;  // of rank 0; the others are on the next ones
  // 1: a rank that holds every tensor whole. More: attention is split (tensor parallelism), experts
  // are whole on one of them each (expert parallelism), and the rest is on all.
  uint32_t ranks = 1;
  bool subscribes = false;
};

// An instance, and an engine that makes short steps, on all ranks alike.
class LiveInstance {
 public:
  // Begins with `weights` on the device of `gpu`, which are the base's.
  static absl::StatusOr<std::unique_ptr<LiveInstance>> Start(
      const Gpu& gpu, const InstancePlace& place, const Model& model, const Served& served,
      const DenseSource& base, const uint8_t* weights, uint64_t undo_bytes);
  ~LiveInstance();

  // Until all ranks serve `version`.
  absl::Status Await(VersionId version) const;
  // Of the latest update, in seconds: the longest of a rank.
  double pause() const;
  // Of chunks that have come to a rank past the server, and from it.
  uint64_t received_bytes(uint32_t rank) const;
  // Of the rank that holds all, where there is only one.
  const uint8_t* weights() const { return ranks_[0]->weights.get(); }

 private:
  struct Rank {
    std::unique_ptr<CudaMemory> memory;
    std::optional<OwnedCudaStream> stream;
    cuda::DeviceBuffer<uint8_t> weights;
    std::unique_ptr<Worker> worker;
    std::thread engine;
  };

  explicit LiveInstance(uint32_t ranks) : step_(ranks) {}
  absl::Status StartRank(const InstancePlace& place, uint32_t number, const Model& model,
                         const Served& served, const DenseSource& base,
                         std::shared_ptr<InstanceGroup> group, uint64_t undo_bytes,
                         const std::function<absl::Status(Rank&)>& fill);

  std::barrier<> step_;  // between two of which all ranks make one step
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace wstore::bench
