// A model in the memory of a GPU, its store, a server of that, and a rank that serves it.
#pragma once

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

// An instance of one rank that holds every tensor whole, and an engine that makes short steps.
class LiveRank {
 public:
  // Begins with `weights`, which are the base's. The device of the calling thread is the rank's.
  static absl::StatusOr<std::unique_ptr<LiveRank>> Start(const Gpu& gpu, int device,
                                                         const Model& model, const Served& served,
                                                         const DenseSource& base,
                                                         const uint8_t* weights,
                                                         uint64_t undo_bytes);
  ~LiveRank();

  // Until it serves `version`.
  absl::Status Await(VersionId version) const;
  // Of the latest update, in seconds.
  double pause() const { return static_cast<double>(worker_->status().last_pause_micros) / 1e6; }
  const uint8_t* weights() const { return weights_.get(); }

 private:
  std::unique_ptr<CudaMemory> memory_;
  std::optional<OwnedCudaStream> stream_;
  cuda::DeviceBuffer<uint8_t> weights_;
  std::unique_ptr<Worker> worker_;
  std::thread engine_;
};

}  // namespace wstore::bench
