// Replicas of the ranks of one instance, with the memory that they work on and a plain picture of
// what it must hold.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/conformance/replica/device.h"
#include "tests/conformance/replica/publisher.h"
#include "wstore/replica.h"

namespace wstore::testing {

// Does what the coordinator and the ranks of one instance do together.
class Instance {
 public:
  struct Options {
    int threads = 2;
    uint64_t undo_budget_bytes = 1 << 30;
    uint64_t stage_budget_bytes = UINT64_MAX;
    uint64_t read_ahead_groups = 3;  // some are read as they come, and some in the end
    // Wraps the backend of a rank.
    std::function<std::shared_ptr<MemoryBackend>(uint32_t rank, std::shared_ptr<MemoryBackend>)>
        wrap = nullptr;
  };

  // Attaches a replica for each layout, to memory that holds nothing but padding.
  Instance(const Manifest& manifest, const FingerprintKey& key, std::vector<Layout> layouts,
           Options options);

  size_t ranks() const { return ranks_.size(); }
  Replica& replica(uint32_t rank) { return *ranks_[rank].replica; }
  TestDevice& device() { return *device_; }
  const std::vector<ChangeEvent>& events(uint32_t rank) const { return *ranks_[rank].events; }
  // So that the next events need no memory.
  void ReserveEvents() {
    for (Rank& rank : ranks_) rank.events->reserve(rank.events->size() + 8);
  }
  std::vector<LocalBuffer>& buffers(uint32_t rank) { return ranks_[rank].buffers; }

  // Writes what an engine would load.
  void Write(const Model& model);
  // Audits all ranks, judges their sums and adopts head.
  absl::Status Prove(const Publisher& publisher);
  void Load(const Publisher& publisher);  // both

  // Every byte of every buffer, padding included, is what the model says. Reads the memory.
  bool Holds(uint32_t rank, const Model& model);
  bool Holds(const Model& model);
  // XORs one element of a buffer, behind the replica's back.
  void Flip(uint32_t rank, uint32_t buffer, uint64_t byte, uint8_t bits);
  std::vector<uint8_t> ReadBuffer(uint32_t rank, uint32_t buffer);

  // One step on all ranks; the first error ends it.
  absl::Status Begin(const Update& update);
  // In turn as bytes, and where the weights are.
  absl::Status StageChunks(const Update& update);
  // Puts chunks where the weights are, until the next call.
  std::vector<DeviceChunk> Place(absl::Span<const std::string> chunks);
  // Finishes, and judges all ranks' sums against the declared ones.
  absl::Status Finish(const Update& update);
  absl::Status Stage(const Update& update);  // all of the above
  absl::Status Apply(const Update& update);
  absl::Status Commit(const Update& update);
  absl::Status Abort(const Update& update);
  absl::Status Run(const Update& update);  // all of it

  // Memory for a layout, all padding.
  std::vector<LocalBuffer> NewBuffers(const Layout& layout);

 private:
  struct Rank {
    std::shared_ptr<const Layout> layout;
    std::vector<LocalBuffer> buffers;
    std::shared_ptr<std::vector<ChangeEvent>> events;
    std::unique_ptr<Replica> replica;
  };

  absl::Status ForEach(const std::function<absl::Status(Replica&)>& step);
  // The bytes of all buffers of a rank when it holds `model`.
  std::vector<std::vector<uint8_t>> Picture(uint32_t rank, const Model& model) const;

  const Manifest& manifest_;
  std::unique_ptr<TestDevice> device_;
  std::shared_ptr<const RegionMap> regions_;
  std::vector<Rank> ranks_;
  uint64_t stagings_ = 0;
  uint8_t* room_ = nullptr;  // for chunks
  uint64_t room_bytes_ = 0;
};

// A layout of one buffer per tensor, whole.
Layout WholeLayout(const Manifest& manifest, uint64_t generation = 1);

}  // namespace wstore::testing
