// The bits of one version in device memory, tensor by tensor.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/client/encoded_set.h"
#include "transfer/cuda/buffer.h"
#include "wstore/cuda_differ.h"
#include "wstore/manifest.h"

namespace wstore::client {

// One thread at a time. All device work is on the stream.
class DeviceShadow {
 public:
  // `manifest` and `memory` must outlive it.
  static absl::StatusOr<std::unique_ptr<DeviceShadow>> Make(const Manifest& manifest,
                                                            const FingerprintKey& key,
                                                            CudaMemory* memory, CudaStream stream);

  const std::vector<const void*>& tensors() const { return tensors_; }

  // Overwritten in part if it fails. Reads in as many threads as `streams`.
  absl::Status Fill(const DenseSource& dense, int streams);
  // XORs a set whose chunks were checked. Overwritten in part if it fails.
  absl::Status Apply(const EncodedSet& set);
  // Of all tensors together.
  absl::StatusOr<Fingerprint> Sum();

 private:
  DeviceShadow(const Manifest& manifest, CudaStream stream)
      : manifest_(manifest), stream_(stream) {}
  uint8_t* At(TilePlace place) const;

  const Manifest& manifest_;
  const CudaStream stream_;
  cuda::DeviceBuffer<uint8_t> bytes_;
  std::vector<const void*> tensors_;
  cuda::PinnedBuffer<uint8_t> window_;
  std::unique_ptr<CudaAuditor> auditor_;
};

}  // namespace wstore::client
