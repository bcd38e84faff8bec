// The work of a publish: from a parent and what is new, to chunks, digests and sums.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/status/statusor.h"
#include "wstore/fingerprint.h"
#include "wstore/manifest.h"
#include "wstore/patch_source.h"
#include "wstore/progress.h"

namespace wstore {

struct PublishInput {
  const Manifest* manifest = nullptr;
  const FingerprintKey* key = nullptr;
  // With `patches` it may be left out: then no sums are taken.
  const DenseSource* parent = nullptr;
  // One of these: the new version whole, or what changes.
  const DenseSource* target = nullptr;
  const PatchSource* patches = nullptr;
  TransactionNumber transaction;
  bool packed = true;  // chunks are packed, as they are stored; otherwise as they are sent
  int threads = 1;
  ProgressFn progress;  // bytes of the model looked at
};

struct PublishOutcome {
  Digest patch_digest;
  uint64_t elements = 0;  // changed
  TouchedByTensor touched;
  // With a target: the sums of all its tensors, taken from its bits alone.
  std::vector<Fingerprint> target_sums;
};

// Calls `write` with every chunk in order of keys. All cores, one pass over the inputs,
// memory of a few chunks a thread whatever the model's size.
//   any error of the sources or of `write`
absl::StatusOr<PublishOutcome> EncodePublish(
    const PublishInput& input,
    const std::function<absl::Status(const ChunkKey&, std::string_view)>& write);

}  // namespace wstore
