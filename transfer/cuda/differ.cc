#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/parallel.h"
#include "common/status_macros.h"
#include "transfer/cuda/buffer.h"
#include "transfer/cuda/diff_tables.h"
#include "transfer/cuda/kernels.h"
#include "transfer/cuda/tensor_table.h"
#include "wstore/chunk.h"
#include "wstore/cuda_differ.h"
#include "wstore/patch_digest.h"

namespace wstore {
namespace {

using cuda::CopyAsync;
using cuda::DeviceBuffer;
using cuda::PinnedBuffer;
using cuda::Synchronize;

constexpr int kDigestThreads = 8;

Fingerprint ToFingerprint(const unsigned long long (&lanes)[2]) { return {{lanes[0], lanes[1]}}; }

class Differ final : public CudaDiffer {
 public:
  Differ(const Manifest& manifest, const CudaDifferOptions& options, cuda::TensorTable table)
      : manifest_(manifest), options_(options), table_(std::move(table)) {}

  // Takes all memory.
  absl::Status Reserve();

  absl::Status Start(absl::Span<const void* const> shadow, absl::Span<const void* const> weights,
                     TransactionNumber transaction) override;
  absl::StatusOr<CudaDiff> Finish() override;
  absl::Status ReadChunk(const CudaChunk& chunk, absl::Span<char> out) override;
  absl::Status MoveShadow() override;

 private:
  enum class Stage { kIdle, kStarted, kFinished };

  absl::Status CheckRoom() const;
  absl::Status ReadChunkList(CudaDiff* diff);
  Digest JoinDigests() const;

  const Manifest& manifest_;
  const CudaDifferOptions options_;
  cuda::TensorTable table_;
  Stage stage_ = Stage::kIdle;

  cuda::DiffTables tables_{};
  DeviceBuffer<cuda::TileRecord> tiles_;
  DeviceBuffer<cuda::TensorSumsEntry> sums_;
  DeviceBuffer<cuda::Counters> counters_;
  DeviceBuffer<uint8_t> slab_;
  DeviceBuffer<uint8_t> arena_;
  DeviceBuffer<cuda::ChunkItem> items_;
  DeviceBuffer<cuda::ChunkRecord> chunks_;
  DeviceBuffer<cuda::Piece> pieces_;
  DeviceBuffer<unsigned long long> block_sums_;
  DeviceBuffer<cuda::LeafJob> leaves_;
  DeviceBuffer<uint32_t> leaf_digests_;
  DeviceBuffer<uint32_t> tile_digests_;

  PinnedBuffer<cuda::Counters> host_counters_;
  PinnedBuffer<cuda::TensorSumsEntry> host_sums_;
  PinnedBuffer<cuda::ChunkRecord> host_chunks_;
  PinnedBuffer<cuda::TileRecord> host_tiles_;
  PinnedBuffer<Digest> host_digests_;
};

absl::Status Differ::Reserve() {
  const cuda::TableSizes sizes =
      cuda::SizesFor(manifest_, options_.patch_bytes, options_.with_digest);
  const uint64_t tile_count = manifest_.tiles();
  const uint64_t digests = options_.with_digest ? tile_count : 0;
  const auto take = [this](auto* buffer, uint64_t count) {
    auto made =
        std::remove_pointer_t<decltype(buffer)>::Create(count, options_.memory, options_.stream);
    if (made.ok()) *buffer = *std::move(made);
    return made.status();
  };
  RETURN_IF_ERROR(take(&tiles_, tile_count));
  RETURN_IF_ERROR(take(&sums_, table_.size()));
  RETURN_IF_ERROR(take(&counters_, 1));
  RETURN_IF_ERROR(take(&slab_, sizes.slab_bytes));
  RETURN_IF_ERROR(take(&arena_, sizes.arena_bytes));
  RETURN_IF_ERROR(take(&items_, manifest_.spans() * kSpanTiles));
  RETURN_IF_ERROR(take(&chunks_, sizes.max_chunks));
  RETURN_IF_ERROR(take(&pieces_, sizes.max_pieces));
  RETURN_IF_ERROR(take(&block_sums_, sizes.arena_bytes / 1024 * 8));
  RETURN_IF_ERROR(take(&leaves_, sizes.max_leaves));
  RETURN_IF_ERROR(take(&leaf_digests_, uint64_t{sizes.max_leaves} * 8));
  RETURN_IF_ERROR(take(&tile_digests_, digests * 8));
  const auto pin = [](auto* buffer, uint64_t count) {
    auto made = std::remove_pointer_t<decltype(buffer)>::Create(count);
    if (made.ok()) *buffer = *std::move(made);
    return made.status();
  };
  RETURN_IF_ERROR(pin(&host_counters_, 1));
  RETURN_IF_ERROR(pin(&host_sums_, table_.size()));
  RETURN_IF_ERROR(pin(&host_chunks_, sizes.max_chunks));
  RETURN_IF_ERROR(pin(&host_tiles_, digests));
  RETURN_IF_ERROR(pin(&host_digests_, digests));
  tables_ = {table_.tensors(),
             table_.tile_tensors(),
             table_.multipliers(),
             tiles_.get(),
             sums_.get(),
             counters_.get(),
             slab_.get(),
             arena_.get(),
             items_.get(),
             chunks_.get(),
             pieces_.get(),
             block_sums_.get(),
             leaves_.get(),
             leaf_digests_.get(),
             tile_digests_.get(),
             sizes.slab_bytes,
             sizes.arena_bytes,
             tile_count,
             0,
             kChunkTargetBytes,
             static_cast<uint32_t>(manifest_.spans()),
             sizes.max_chunks,
             sizes.max_pieces,
             sizes.max_leaves,
             options_.contributor,
             options_.with_touched_sums ? 1u : 0u,
             0};
  return Synchronize(options_.stream);
}

absl::Status Differ::Start(absl::Span<const void* const> shadow,
                           absl::Span<const void* const> weights, TransactionNumber transaction) {
  const CudaStream stream = options_.stream;
  stage_ = Stage::kIdle;
  if (shadow.size() != manifest_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("there are ", shadow.size(),
                                                   " addresses of the shadow, for ",
                                                   manifest_.size(), " tensors"));
  }
  RETURN_IF_ERROR(table_.SetAddresses(shadow, weights));
  tables_.transaction = transaction.value();
  RETURN_IF_ERROR(cuda::ZeroAsync(counters_.get(), 1, stream));
  RETURN_IF_ERROR(cuda::ZeroAsync(sums_.get(), sums_.count(), stream));
  RETURN_IF_ERROR(cuda::LaunchDiff(tables_, stream));
  RETURN_IF_ERROR(cuda::LaunchChunks(tables_, stream));
  if (options_.with_digest) RETURN_IF_ERROR(cuda::LaunchDigests(tables_, stream));
  RETURN_IF_ERROR(CopyAsync(counters_.get(), host_counters_.get(), 1, stream));
  RETURN_IF_ERROR(CopyAsync(sums_.get(), host_sums_.get(), sums_.count(), stream));
  stage_ = Stage::kStarted;
  return absl::OkStatus();
}

absl::Status Differ::CheckRoom() const {
  const cuda::Counters& counters = host_counters_[0];
  if (counters.slab_used > tables_.slab_bytes) {
    return absl::OutOfRangeError(absl::StrCat("the changes take ", counters.slab_used,
                                              " bytes; there is room for ", tables_.slab_bytes,
                                              ": make a differ with patch_bytes of that many"));
  }
  return absl::OkStatus();
}

absl::Status Differ::ReadChunkList(CudaDiff* diff) {
  const uint32_t count = host_counters_[0].chunks;
  for (uint32_t i = 0; i < count; ++i) {
    const cuda::ChunkRecord& chunk = host_chunks_[i];
    diff->chunks.push_back({{options_.contributor, chunk.span, static_cast<uint16_t>(chunk.part)},
                            arena_.get() + chunk.arena_at,
                            chunk.size,
                            chunk.changed});
  }
  std::sort(diff->chunks.begin(), diff->chunks.end(),
            [](const CudaChunk& a, const CudaChunk& b) { return a.key < b.key; });
  return absl::OkStatus();
}

Digest Differ::JoinDigests() const {
  std::vector<DigestedTile> changed;
  for (uint64_t i = 0; i < table_.size(); ++i) {
    const TensorIndex tensor = table_.index(i);
    const Manifest::Tensor& info = manifest_.tensor(tensor);
    for (uint32_t k = 0; k < info.tiles; ++k) {
      const cuda::TileRecord& tile = host_tiles_[info.first_tile + k];
      if (tile.bytes == 0) continue;
      changed.push_back({{tensor, k},
                         static_cast<TileForm>(tile.packed >> 16 & 3),
                         tile.changed,
                         &host_digests_[info.first_tile + k]});
    }
  }
  return DigestTiles(
      manifest_, changed.size(), [&](size_t i) { return changed[i]; },
      std::min(DefaultParallelism(), kDigestThreads));
}

absl::StatusOr<CudaDiff> Differ::Finish() {
  const CudaStream stream = options_.stream;
  if (stage_ == Stage::kIdle) return absl::FailedPreconditionError("no pass was started");
  RETURN_IF_ERROR(Synchronize(stream));
  CudaDiff diff;
  diff.sums.resize(manifest_.size());
  if (manifest_.tiles() > 0) {
    RETURN_IF_ERROR(CheckRoom());
    const cuda::Counters& counters = host_counters_[0];
    RETURN_IF_ERROR(CopyAsync(chunks_.get(), host_chunks_.get(), counters.chunks, stream));
    if (options_.with_digest) {
      RETURN_IF_ERROR(CopyAsync(tiles_.get(), host_tiles_.get(), manifest_.tiles(), stream));
      RETURN_IF_ERROR(CopyAsync(reinterpret_cast<const Digest*>(tile_digests_.get()),
                                host_digests_.get(), manifest_.tiles(), stream));
    }
    RETURN_IF_ERROR(Synchronize(stream));
    diff.changed = counters.changed;
    RETURN_IF_ERROR(ReadChunkList(&diff));
    for (uint64_t i = 0; i < table_.size(); ++i) {
      const cuda::TensorSumsEntry& entry = host_sums_[i];
      const TensorIndex tensor = table_.index(i);
      TouchedSums& whole = diff.sums[tensor];
      whole.after = ToFingerprint(entry.after);
      if (!options_.with_touched_sums) continue;
      const TouchedSums touched{ToFingerprint(entry.touched_before),
                                ToFingerprint(entry.touched_after)};
      // What does not change has one sum on both sides.
      whole.before = whole.after - touched.change();
      if (entry.is_touched != 0) diff.touched.push_back({tensor, touched});
    }
  }
  if (options_.with_digest) diff.digest = JoinDigests();
  stage_ = Stage::kFinished;
  return diff;
}

absl::Status Differ::ReadChunk(const CudaChunk& chunk, absl::Span<char> out) {
  if (out.size() != chunk.size_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("room for ", out.size(), " bytes, for a chunk of ", chunk.size_bytes));
  }
  RETURN_IF_ERROR(CopyAsync(reinterpret_cast<const char*>(chunk.data), out.data(), out.size(),
                            options_.stream));
  return Synchronize(options_.stream);
}

absl::Status Differ::MoveShadow() {
  if (stage_ != Stage::kFinished) {
    return absl::FailedPreconditionError(
        "the shadow moves once for each finished pass: there is none, or it has moved");
  }
  // Before the launch: whatever becomes of it, a second one would take the changes away again.
  stage_ = Stage::kIdle;
  return cuda::LaunchMove(tables_, options_.stream);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDiffer>> CudaDiffer::Create(const Manifest& manifest,
                                                               const FingerprintKey& key,
                                                               const CudaDifferOptions& options) {
  ASSIGN_OR_RETURN(cuda::TensorTable table,
                   cuda::TensorTable::Create(manifest, key, options.stream, options.memory));
  auto differ = std::make_unique<Differ>(manifest, options, std::move(table));
  RETURN_IF_ERROR(differ->Reserve());
  return differ;
}

}  // namespace wstore
