// Diff and encode on the GPU: a shadow and new weights in, chunks out, in one pass over memory and
// one launch for all tensors. The same pass sums both sides. The bytes are those of the host's
// encoder (ChunkBuilder), the cuts those of the host's diff, and so is the digest.
//
//   ASSIGN_OR_RETURN(auto differ, CudaDiffer::Create(manifest, key, options));
//   RETURN_IF_ERROR(differ->Start(shadow, weights, transaction));   // on the stream
//   ASSIGN_OR_RETURN(const CudaDiff diff, differ->Finish());        // waits for the stream
//   ... send the chunks, or ReadChunk; when the version is committed:
//   RETURN_IF_ERROR(differ->MoveShadow());
//
// A pass may be done in parts, so that the chunks of one can be sent while the next is compared;
// and it may be begun before the transaction's number is known, which chunks are sealed with:
//
//   RETURN_IF_ERROR(differ->Start(shadow, weights));                // the first part
//   RETURN_IF_ERROR(differ->Seal(transaction));                     // and the rest
//   for (bool is_last = false; !is_last;) {
//     ASSIGN_OR_RETURN(const CudaDiffPart part, differ->NextPart());  // waits for it
//     ... send part.chunks
//     is_last = part.is_last;
//   }
//   ASSIGN_OR_RETURN(const CudaDiff diff, differ->Finish());
//
// What the chunks are, and the digest, does not depend on the parts.
//
// Weights are read in place and never written. The shadow is written by MoveShadow alone. Either
// may be in device memory or in pinned host memory, which costs the bus's bandwidth. Where more
// than about a quarter of a tile's elements change (of bf16; less of wider ones), some of it is
// read twice.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/cuda.h"
#include "wstore/digest.h"
#include "wstore/fingerprint.h"
#include "wstore/manifest.h"
#include "wstore/patch_source.h"
#include "wstore/share.h"
#include "wstore/types.h"

namespace wstore {

struct CudaDifferOptions {
  CudaStream stream = nullptr;
  CudaMemory* memory = nullptr;  // must outlive the differ
  // Room for encoded changes. The differ takes a little more than twice as much device memory, and
  // for each tile of the checkpoint some 70 bytes; all of it is taken by Create.
  uint64_t patch_bytes = 0;
  uint16_t contributor = 0;
  // Whether to compute the digest of the patch set.
  bool with_digest = true;
  // Whether to sum the changed elements on both sides: what a publish declares, and what gives the
  // sums of the shadow, by which one that has drifted from the parent version is seen.
  bool with_touched_sums = true;
  // How many parts a pass is done in, 1 to kMaxDiffParts. Each but the first costs launches. The
  // last ones are smaller.
  uint32_t parts = 1;
  // What is compared. Chunks, digest and sums are those of a contributor that has just these
  // elements, also where it has a tile in part.
  Share share;
};

inline constexpr uint32_t kMaxDiffParts = 8;

// A chunk in device memory, on the differ's stream, until the next Start.
struct CudaChunk {
  ChunkKey key;
  const uint8_t* data = nullptr;
  uint64_t size_bytes = 0;
  uint64_t changed = 0;  // elements
};

// The changes of a range of spans, which follows that of the part before. May have no chunks.
struct CudaDiffPart {
  std::vector<CudaChunk> chunks;  // by key
  bool is_last = false;
};

struct CudaDiff {
  std::vector<CudaChunk> chunks;  // of all parts, by key
  uint64_t changed = 0;           // elements
  std::optional<Digest> digest;   // of the patch set, if asked for
  // By tensor of the manifest: all of it that is in the share, in the shadow (if touched sums were
  // asked for) and in the weights.
  std::vector<TouchedSums> sums;
  // If asked for: of each tensor with changes, ascending, the sums over the changed elements alone.
  // They are what a contributor declares (UpdateSummary::declared); those of contributors of
  // disjoint parts add up. With them, ranks can be judged though nobody reads the parent version.
  std::vector<TensorSums> touched;
};

// Not thread-safe. All device work is on the stream of the options.
class CudaDiffer {
 public:
  // Keeps `manifest`, which must outlive it. Synchronizes the stream.
  //   kInvalidArgument: no memory resource, other than 1 to kMaxDiffParts parts, or a share that is
  //     none (HeldRanges)
  static absl::StatusOr<std::unique_ptr<CudaDiffer>> Create(const Manifest& manifest,
                                                            const FingerprintKey& key,
                                                            const CudaDifferOptions& options);
  virtual ~CudaDiffer() = default;

  // Puts the comparison of the first part (of one: of all) on the stream and returns.
  // A pass that was not finished is given up. shadow, weights: for each tensor of the manifest the
  // address of its first element in the share, at a multiple of the element's width (null where
  // there is none); the memory must stay, and the weights unchanged, until the pass is done, or
  // what is on the stream.
  // Addresses other than the last ones are checked and sent to the device first, which waits for
  // earlier passes.
  //   kInvalidArgument: other than one address a tensor, null or misaligned ones, or ones that the
  //     device cannot reach. They are listed
  virtual absl::Status Start(absl::Span<const void* const> shadow,
                             absl::Span<const void* const> weights) = 0;

  // Puts the rest of the pass on the stream and returns: what was compared becomes chunks of this
  // transaction, and the other parts are compared.
  //   kFailedPrecondition: no pass was started, or it has its number already
  virtual absl::Status Seal(TransactionNumber transaction) = 0;

  // Both.
  absl::Status Start(absl::Span<const void* const> shadow, absl::Span<const void* const> weights,
                     TransactionNumber transaction) {
    const absl::Status status = Start(shadow, weights);
    return status.ok() ? Seal(transaction) : status;
  }

  // Waits for the next part. Its chunks are complete, for other streams too. Before that, the part
  // before is digested, while the device works.
  //   kFailedPrecondition: there is no pass with a number, or it has no more parts
  //   kOutOfRange: as Finish. Parts that came before are as they were said to be
  virtual absl::StatusOr<CudaDiffPart> NextPart() = 0;

  // Waits for all parts and returns what the pass found, whether or not NextPart has given it. What
  // is in the chunks stays on the device.
  //   kFailedPrecondition: no pass was started, or it has no number
  //   kOutOfRange: the changes take more than patch_bytes; how much they take is in the message.
  //     Nothing was written; a differ with that much room can do the same pass
  virtual absl::StatusOr<CudaDiff> Finish() = 0;

  // Copies a chunk of the last pass to `out`, of its size. Waits for the stream.
  virtual absl::Status ReadChunk(const CudaChunk& chunk, absl::Span<char> out) = 0;

  // After Finish: XORs the changes into the shadow, on the stream, and returns. Once: a second call
  // is refused.
  //   kFailedPrecondition: there is no finished pass, or it was moved already
  virtual absl::Status MoveShadow() = 0;
};

// Sums whole tensors, or what a share has of them. Not thread-safe; a stream and a memory resource
// as above.
class CudaAuditor {
 public:
  static absl::StatusOr<std::unique_ptr<CudaAuditor>> Create(
      const Manifest& manifest, const FingerprintKey& key, CudaStream stream, CudaMemory* memory,
      absl::Span<const TensorShare> share = {});
  virtual ~CudaAuditor() = default;

  // As CudaDiffer::Start, for one side and all of it.
  virtual absl::Status Start(absl::Span<const void* const> weights) = 0;
  // Waits for it. By tensor.
  virtual absl::StatusOr<std::vector<Fingerprint>> Finish() = 0;
};

}  // namespace wstore
