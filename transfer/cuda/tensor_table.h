// The table of tensors in device memory, and what else of the manifest the kernels read.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "transfer/cuda/buffer.h"
#include "transfer/cuda/diff_tables.h"
#include "wstore/cuda.h"
#include "wstore/fingerprint.h"
#include "wstore/manifest.h"

namespace wstore::cuda {

// Not thread-safe. `manifest` and the memory resource must outlive it.
class TensorTable {
 public:
  // Synchronizes the stream.
  static absl::StatusOr<TensorTable> Create(const Manifest& manifest, const FingerprintKey& key,
                                            absl::Span<const TensorShare> share, CudaStream stream,
                                            CudaMemory* memory);

  // Sets the addresses: by tensor of the manifest; `old_side` may be empty. Those that are set
  // already cost nothing; for others the stream is synchronized.
  //   kInvalidArgument: see CudaDiffer::Start
  absl::Status SetAddresses(absl::Span<const void* const> old_side,
                            absl::Span<const void* const> new_side);

  const TensorEntry* tensors() const { return device_tensors_.get(); }
  const uint32_t* tile_tensors() const { return tile_tensors_.get(); }
  // Null: all are.
  const uint32_t* held_tiles() const { return host_.holds_all ? nullptr : held_tiles_.get(); }
  const unsigned long long* multipliers() const { return multipliers_.get(); }

  const HostTables& host() const { return host_; }
  uint64_t size() const { return host_.tensors.size(); }
  // Of an entry, in the manifest.
  TensorIndex index(uint64_t entry) const { return host_.tensors[entry].index; }

 private:
  TensorTable(const Manifest& manifest, HostTables host, CudaStream stream)
      : manifest_(&manifest), host_(std::move(host)), stream_(stream) {}
  absl::Status CheckSide(absl::Span<const void* const> side, const char* name) const;

  const Manifest* manifest_;
  HostTables host_;
  CudaStream stream_;
  DeviceBuffer<TensorEntry> device_tensors_;
  DeviceBuffer<uint32_t> tile_tensors_;
  DeviceBuffer<uint32_t> held_tiles_;
  DeviceBuffer<unsigned long long> multipliers_;
};

}  // namespace wstore::cuda
