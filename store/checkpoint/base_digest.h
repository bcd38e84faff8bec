// The base digest: names a dense checkpoint by its content. docs/formats/checkpoint.md gives every
// byte.
//
// It covers name, dtype, shape and bytes of every tensor in canonical order, so the same tensors
// give the same digest however they are split into files, ordered or annotated.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/digest.h"
#include "wstore/manifest.h"
#include "wstore/progress.h"

namespace wstore {

// A tensor's content digest is TreeDigest over its bytes with leaves of this size.
inline constexpr uint64_t kBaseLeafBytes = 1 << 20;

struct BaseDigest {
  Digest digest;
  std::vector<Digest> tensors;  // content digests, by tensor index

  friend bool operator==(const BaseDigest&, const BaseDigest&) = default;
};

// The digest over the manifest and the tensors' content digests (manifest.size() of them).
Digest ManifestDigest(const Manifest& manifest, absl::Span<const Digest> tensors);

// Reads all of `source` once, with `threads` threads: work is cut by leaves, so one large tensor
// takes all of them. Blocks. Memory: one leaf a thread, and 32 bytes a leaf.
//   errors of TensorSource::Read
absl::StatusOr<BaseDigest> DigestCheckpoint(const Manifest& manifest, const TensorSource& source,
                                            int threads, const ProgressFn& progress);

}  // namespace wstore
