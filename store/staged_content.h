// The content of one publish on its way into the journal, as its contributors send it.
//
// Chunks are kept in files without a name beside the journal: nothing of them outlives the process,
// whose end aborts the transaction. They can be read again, to be joined into one patch set and to
// be passed on to ranks.
//
// Each contributor numbers its chunks 0, 1, 2, ... and may send any of them again: after a broken
// connection it goes on from next_sequence(). Its chunks have ascending keys (span, part) and
// tiles.
//
// Threads: any. Calls for one contributor are serialized, those for several are not.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "wstore/chunk.h"
#include "wstore/fingerprint.h"
#include "wstore/manifest.h"
#include "wstore/patch_source.h"
#include "wstore/tensor_set.h"

namespace wstore {

// What a contributor says that it sent, all of it.
struct ContributorSummary {
  uint64_t chunks = 0;
  std::optional<uint64_t> elements;  // that change; nothing: as the chunks say
  Digest digest;                     // of PatchDigester over its tiles
  // Of the elements it sent. Nothing: the store takes the sums from the parent's bits.
  std::optional<TouchedByTensor> sums;

  // Whether it says all that a decision needs, so that chunks may come after it.
  bool IsForetelling() const {
    return chunks > 0 && elements.value_or(0) > 0 && sums.has_value() && !sums->empty();
  }
};

class StagedContent {
 public:
  struct Limits {
    uint64_t max_size_bytes = uint64_t{1} << 40;  // of all chunks
    uint32_t max_chunks = 1 << 22;                // of one contributor
  };

  // `manifest` must outlive the object. Files are made in `directory` as they are needed.
  StagedContent(const Manifest& manifest, std::string directory, TransactionNumber transaction,
                uint32_t contributors, const Limits& limits);
  ~StagedContent();

  TransactionNumber transaction() const { return transaction_; }
  uint32_t contributors() const { return static_cast<uint32_t>(contributors_.size()); }
  uint64_t size_bytes() const { return size_bytes_; }

  // Adds a chunk as ChunkBuilder wrote it. One that was added before changes nothing. All that is
  // wrong leaves everything as it was.
  //   kInvalidArgument, kDataLoss: see ChunkView::Parse; of another transaction or contributor; a
  //     key or tile that does not come after the one before
  //   kOutOfRange: not the next sequence number (both are shown)
  //   kAlreadyExists: this sequence number was used for another chunk
  //   kFailedPrecondition: the contributor has finished
  //   kResourceExhausted: past a limit, or no space
  absl::Status Put(uint32_t contributor, uint64_t sequence, std::string_view chunk);

  // The sequence number that is expected; kInvalidArgument if there is no such contributor.
  absl::StatusOr<uint64_t> next_sequence(uint32_t contributor) const;

  // Says that this was all. Again, with the same: nothing happens.
  //   kInvalidArgument: other than the chunks that were put, or unknown tensors
  //   kAlreadyExists: it finished with another summary
  absl::Status Finish(uint32_t contributor, ContributorSummary summary);
  // Says what it will be, once so many chunks have been put. Errors as above.
  absl::Status Declare(uint32_t contributor, ContributorSummary summary);
  // It has finished, and all that it declared is there.
  bool is_whole(uint32_t contributor) const;

  // Nothing until the contributor has finished.
  std::shared_ptr<const ContributorSummary> summary(uint32_t contributor) const;

  // Calls `visit` for chunk `sequence` of a contributor, and true; or false if it is not there yet.
  //   kUnavailable: cannot be read
  absl::StatusOr<bool> Read(uint32_t contributor, uint64_t sequence,
                            const std::function<absl::Status(std::string_view)>& visit) const;

  // Whether a chunk has a tile of any of `tensors`; nothing if it is not there yet.
  std::optional<bool> HasAny(uint32_t contributor, uint64_t sequence,
                             const TensorSet& tensors) const;

  // What one contributor sent. The object must outlive it; no more is put.
  std::unique_ptr<PatchSource> Patches(uint32_t contributor) const;

  // Elements that one contributor sent.
  uint64_t elements(uint32_t contributor) const;

  // Nothing will come of it. What was put can still be read.
  void Discard();
  bool is_discarded() const { return discarded_; }

  // Has `changed` called after every chunk that is added, after Discard and Announce, until it is
  // unwatched; from other threads, and under a lock: it must not block, nor call back. After
  // Unwatch no call is under way.
  uint64_t Watch(std::function<void()> changed);
  void Unwatch(uint64_t watch);
  // Calls all of them: something is known of the content that the object itself does not know.
  void Announce();

 private:
  struct Contributor;
  class Source;

  absl::StatusOr<Contributor*> Find(uint32_t contributor) const;
  absl::Status Settle(uint32_t contributor, ContributorSummary summary, bool chunks_follow);
  absl::StatusOr<bool> Add(uint32_t contributor, uint64_t sequence, std::string_view chunk);
  absl::Status CheckNext(const Contributor& contributor, uint32_t number, uint64_t sequence,
                         std::string_view bytes, const ChunkView& chunk) const;
  absl::StatusOr<std::string> ReadChunk(const Contributor& contributor, uint64_t sequence) const;

  const Manifest& manifest_;
  const std::string directory_;
  const TransactionNumber transaction_;
  const Limits limits_;
  std::atomic<uint64_t> size_bytes_ = 0;
  std::atomic<bool> discarded_ = false;
  std::vector<std::unique_ptr<Contributor>> contributors_;

  std::mutex watchers_mutex_;  // guards what follows; locked with no other
  std::map<uint64_t, std::function<void()>> watchers_;
  uint64_t next_watch_ = 1;
};

}  // namespace wstore
