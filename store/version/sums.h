// Fingerprints of whole dense versions.
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "wstore/fingerprint.h"
#include "wstore/manifest.h"
#include "wstore/patch_source.h"
#include "wstore/progress.h"

namespace wstore {

// Counts bytes of work done by many threads and reports them in order.
class ProgressCounter {
 public:
  ProgressCounter(ProgressFn report, uint64_t total_bytes)
      : report_(std::move(report)), total_bytes_(total_bytes) {}
  void Add(uint64_t bytes);

 private:
  const ProgressFn report_;
  const uint64_t total_bytes_;
  std::mutex mutex_;
  uint64_t done_bytes_ = 0;
};

// Reads every tile of a dense version, hands it to `visit` (from several threads; may be empty) and
// returns the fingerprint of each tensor. Memory: a tile a thread.
absl::StatusOr<std::vector<Fingerprint>> SumVersion(
    const Manifest& manifest, const FingerprintKey& key, const DenseSource& version, int threads,
    const ProgressFn& progress,
    const std::function<absl::Status(TilePlace, absl::Span<const uint8_t>)>& visit = {});

Fingerprint Total(const std::vector<Fingerprint>& fingerprints);

}  // namespace wstore
