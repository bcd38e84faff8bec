// The bits of one version in device memory, tensor by tensor; or of a share of it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/client/encoded_set.h"
#include "transfer/cuda/buffer.h"
#include "wstore/cuda_differ.h"
#include "wstore/manifest.h"
#include "wstore/share.h"

namespace wstore::client {

// One thread at a time. All device work is on the stream.
class DeviceShadow {
 public:
  // `manifest`, `key` and `memory` must outlive it.
  //   kInvalidArgument: see HeldRanges
  static absl::StatusOr<std::unique_ptr<DeviceShadow>> Make(const Manifest& manifest,
                                                            const FingerprintKey& key,
                                                            const Share& share, CudaMemory* memory,
                                                            CudaStream stream);

  // By tensor of the manifest: the first element that is held; null: none is.
  const std::vector<const void*>& tensors() const { return tensors_; }
  // By tensor of the manifest.
  const std::vector<ElementRange>& held() const { return held_; }
  uint64_t size_bytes() const { return size_bytes_; }

  // Overwritten in part if it fails. Reads in as many threads as `streams`, only tiles with
  // elements that are held.
  absl::Status Fill(const DenseSource& dense, int streams);
  // XORs what is held of a set whose chunks were checked, and returns by how much that changes the
  // sum. Overwritten in part if it fails.
  absl::StatusOr<Fingerprint> Apply(const EncodedSet& set);
  // Of all that is held.
  absl::StatusOr<Fingerprint> Sum();

 private:
  // What is held of a tile: so many bytes of it, from `offset_bytes` of the tile on.
  struct HeldTile {
    uint8_t* at = nullptr;
    uint64_t offset_bytes = 0;
    uint64_t size_bytes = 0;
  };

  DeviceShadow(const Manifest& manifest, const FingerprintKey& key, std::vector<ElementRange> held,
               CudaStream stream)
      : manifest_(manifest), key_(key), held_(std::move(held)), stream_(stream) {}
  HeldTile Find(TilePlace place) const;
  absl::Status FillStretch(const DenseSource& dense, int streams, uint32_t* first_span);
  Fingerprint SumOnHost(TilePlace place, const HeldTile& tile, const uint8_t* bytes) const;

  const Manifest& manifest_;
  const FingerprintKey& key_;
  const std::vector<ElementRange> held_;
  const CudaStream stream_;
  uint64_t size_bytes_ = 0;  // of what is held
  cuda::DeviceBuffer<uint8_t> bytes_;
  std::vector<const void*> tensors_;
  cuda::PinnedBuffer<uint8_t> window_;
  std::unique_ptr<CudaAuditor> auditor_;
};

}  // namespace wstore::client
