#include "store/checkpoint/base_digest.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string_view>

#include "common/check.h"
#include "common/parallel.h"
#include "common/status_macros.h"

namespace wstore {
namespace {

// Small tensors are taken many at a time.
constexpr uint64_t kBatchBytes = kBaseLeafBytes;
constexpr uint64_t kBatchLeaves = 256;

// All leaves of a checkpoint, numbered in canonical order, and cut into batches.
class LeafPlan {
 public:
  explicit LeafPlan(const Manifest& manifest) {
    first_leaf_.reserve(manifest.size() + 1);
    uint64_t leaf = 0;
    uint64_t batch_bytes = 0;
    for (TensorIndex tensor = 0; tensor < manifest.size(); ++tensor) {
      first_leaf_.push_back(leaf);
      const uint64_t size = manifest.tensor(tensor).size_bytes();
      for (uint64_t at = 0; at < size; at += kBaseLeafBytes, ++leaf) {
        const uint64_t leaf_bytes = std::min(kBaseLeafBytes, size - at);
        const bool is_full = batch_bytes + leaf_bytes > kBatchBytes ||
                             leaf - (batches_.empty() ? 0 : batches_.back()) >= kBatchLeaves;
        if (batches_.empty() || is_full) {
          batches_.push_back(leaf);
          batch_bytes = 0;
        }
        batch_bytes += leaf_bytes;
      }
    }
    first_leaf_.push_back(leaf);
  }

  uint64_t leaves() const { return first_leaf_.back(); }
  uint64_t batches() const { return batches_.size(); }
  uint64_t first_leaf(TensorIndex tensor) const { return first_leaf_[tensor]; }
  uint64_t batch_begin(uint64_t batch) const { return batches_[batch]; }
  uint64_t batch_end(uint64_t batch) const {
    return batch + 1 < batches_.size() ? batches_[batch + 1] : leaves();
  }

  // The tensor that a leaf belongs to.
  TensorIndex TensorOf(uint64_t leaf) const {
    const auto after = std::upper_bound(first_leaf_.begin(), first_leaf_.end(), leaf);
    return static_cast<TensorIndex>(after - first_leaf_.begin() - 1);
  }

 private:
  std::vector<uint64_t> first_leaf_;  // by tensor, then the number of leaves
  std::vector<uint64_t> batches_;     // first leaf of each
};

// What the threads of one digest share.
class Digester {
 public:
  Digester(const Manifest& manifest, const TensorSource& source, const ProgressFn& progress)
      : manifest_(manifest),
        source_(source),
        progress_(progress),
        plan_(manifest),
        leaves_(plan_.leaves()) {}

  absl::StatusOr<BaseDigest> Run(int threads) {
    // One item a thread, so that each has one buffer; they take batches from a common counter.
    RETURN_IF_ERROR(ParallelFor(threads, threads, [this](uint64_t) { return RunThread(); }));
    BaseDigest result;
    result.tensors.resize(manifest_.size());
    constexpr uint64_t kTensorsAtOnce = 4096;
    const uint64_t groups = (manifest_.size() + kTensorsAtOnce - 1) / kTensorsAtOnce;
    RETURN_IF_ERROR(ParallelFor(groups, threads, [&](uint64_t group) {
      const uint64_t end = std::min<uint64_t>((group + 1) * kTensorsAtOnce, manifest_.size());
      for (uint64_t i = group * kTensorsAtOnce; i < end; ++i) {
        result.tensors[i] = Root(static_cast<TensorIndex>(i));
      }
      return absl::OkStatus();
    }));
    result.digest = ManifestDigest(manifest_, result.tensors);
    return result;
  }

 private:
  absl::Status RunThread() {
    std::vector<uint8_t> buffer(kBaseLeafBytes);
    while (!failed_) {
      const uint64_t batch = next_batch_++;
      if (batch >= plan_.batches()) break;
      const absl::Status status = DigestBatch(batch, absl::MakeSpan(buffer));
      if (!status.ok()) {
        failed_ = true;
        return status;
      }
    }
    return absl::OkStatus();
  }

  absl::Status DigestBatch(uint64_t batch, absl::Span<uint8_t> buffer) {
    uint64_t bytes = 0;
    TensorIndex tensor = plan_.TensorOf(plan_.batch_begin(batch));
    for (uint64_t leaf = plan_.batch_begin(batch); leaf < plan_.batch_end(batch); ++leaf) {
      while (leaf >= plan_.first_leaf(tensor + 1)) ++tensor;
      const uint64_t offset = (leaf - plan_.first_leaf(tensor)) * kBaseLeafBytes;
      const uint64_t size = manifest_.tensor(tensor).size_bytes();
      const auto data = buffer.first(std::min(kBaseLeafBytes, size - offset));
      RETURN_IF_ERROR(source_.Read(tensor, offset, data));
      leaves_[leaf] = LeafDigest(data);
      bytes += data.size();
    }
    if (progress_) {
      const std::lock_guard<std::mutex> lock(progress_mutex_);
      done_bytes_ += bytes;
      progress_(done_bytes_, manifest_.size_bytes());
    }
    return absl::OkStatus();
  }

  Digest Root(TensorIndex tensor) const {
    const uint64_t first = plan_.first_leaf(tensor);
    const auto leaves =
        absl::MakeConstSpan(leaves_).subspan(first, plan_.first_leaf(tensor + 1) - first);
    return RootDigest(leaves, manifest_.tensor(tensor).size_bytes());
  }

  const Manifest& manifest_;
  const TensorSource& source_;
  const ProgressFn& progress_;
  const LeafPlan plan_;
  std::vector<Digest> leaves_;
  std::atomic<uint64_t> next_batch_ = 0;
  std::atomic<bool> failed_ = false;
  std::mutex progress_mutex_;
  uint64_t done_bytes_ = 0;
};

}  // namespace

Digest ManifestDigest(const Manifest& manifest, absl::Span<const Digest> tensors) {
  WSTORE_CHECK(tensors.size() == manifest.size());
  constexpr std::string_view kLabel("wstore base 1\0", 14);
  Sha256 sha;
  sha.Update(kLabel).UpdateU64(manifest.size());
  for (TensorIndex i = 0; i < manifest.size(); ++i) {
    const TensorSpec& spec = manifest.tensor(i).spec;
    const auto dtype = static_cast<uint8_t>(spec.dtype);
    sha.UpdateU32(static_cast<uint32_t>(spec.name.size())).Update(spec.name);
    sha.Update(absl::MakeConstSpan(&dtype, 1)).UpdateU32(static_cast<uint32_t>(spec.shape.size()));
    for (const uint64_t dimension : spec.shape) sha.UpdateU64(dimension);
    sha.Update(tensors[i].bytes);
  }
  return sha.Finish();
}

absl::StatusOr<BaseDigest> DigestCheckpoint(const Manifest& manifest, const TensorSource& source,
                                            int threads, const ProgressFn& progress) {
  WSTORE_CHECK(threads >= 1);
  return Digester(manifest, source, progress).Run(threads);
}

}  // namespace wstore
