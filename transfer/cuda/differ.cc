#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

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
      : manifest_(manifest), options_(options), table_(std::move(table)), digester_(manifest) {}

  // Takes all memory.
  absl::Status Reserve();

  using CudaDiffer::Start;
  absl::Status Start(absl::Span<const void* const> shadow,
                     absl::Span<const void* const> weights) override;
  absl::Status Seal(TransactionNumber transaction) override;
  absl::StatusOr<CudaDiffPart> NextPart() override;
  absl::StatusOr<CudaDiff> Finish() override;
  absl::Status ReadChunk(const CudaChunk& chunk, absl::Span<char> out) override;
  absl::Status MoveShadow() override;

 private:
  // kCompared: it has no number yet.
  enum class Stage { kIdle, kCompared, kSealed, kFinished };

  absl::Status ReserveOnHost(const cuda::TableSizes& sizes);
  absl::Status Compare(uint32_t part);
  absl::Status SealPart(uint32_t part);
  absl::Status CheckRoom(uint32_t part);
  std::vector<CudaChunk> ChunksOf(uint32_t part) const;
  void DigestPart(uint32_t part);
  void ReadSums(CudaDiff* diff) const;

  const Manifest& manifest_;
  const CudaDifferOptions options_;
  cuda::TensorTable table_;
  Stage stage_ = Stage::kIdle;

  cuda::DiffTables tables_{};
  DeviceBuffer<cuda::TileRecord> tiles_;
  DeviceBuffer<cuda::TensorSumsEntry> sums_;
  DeviceBuffer<cuda::Counters> counters_;
  DeviceBuffer<cuda::Counters> marks_;  // before each part, and behind the last
  DeviceBuffer<uint8_t> slab_;
  DeviceBuffer<uint8_t> arena_;
  DeviceBuffer<cuda::ChunkItem> items_;
  DeviceBuffer<cuda::ChunkRecord> chunks_;
  DeviceBuffer<cuda::Piece> pieces_;
  DeviceBuffer<unsigned long long> block_sums_;
  DeviceBuffer<cuda::LeafJob> leaves_;
  DeviceBuffer<uint32_t> leaf_digests_;
  DeviceBuffer<uint32_t> tile_digests_;

  PinnedBuffer<cuda::Counters> host_marks_;  // as marks_
  PinnedBuffer<cuda::TensorSumsEntry> host_sums_;
  PinnedBuffer<cuda::ChunkRecord> host_chunks_;  // the whole list, as each part has left it
  PinnedBuffer<cuda::TileRecord> host_tiles_;
  PinnedBuffer<Digest> host_digests_;

  // Of the pass under way.
  std::array<cuda::Event, kMaxDiffParts> done_;  // of each part
  uint32_t taken_ = 0;                           // parts that were waited for
  uint32_t digested_ = 0;                        // and whose digests were joined
  std::vector<CudaChunk> found_;                 // the chunks of these
  PatchDigester digester_;
  std::optional<Digest> digest_;
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
  // Passes write those of tiles that are held.
  RETURN_IF_ERROR(cuda::ZeroAsync(tiles_.get(), tiles_.count(), options_.stream));
  RETURN_IF_ERROR(take(&sums_, table_.size()));
  RETURN_IF_ERROR(take(&counters_, 1));
  RETURN_IF_ERROR(take(&marks_, options_.parts + 1));
  RETURN_IF_ERROR(take(&slab_, sizes.slab_bytes));
  RETURN_IF_ERROR(take(&arena_, sizes.arena_bytes));
  RETURN_IF_ERROR(take(&items_, manifest_.spans() * kSpanTiles));
  RETURN_IF_ERROR(take(&chunks_, sizes.max_chunks));
  RETURN_IF_ERROR(take(&pieces_, sizes.max_pieces));
  RETURN_IF_ERROR(take(&block_sums_, sizes.arena_bytes / 1024 * 8));
  RETURN_IF_ERROR(take(&leaves_, sizes.max_leaves));
  RETURN_IF_ERROR(take(&leaf_digests_, uint64_t{sizes.max_leaves} * 8));
  RETURN_IF_ERROR(take(&tile_digests_, digests * 8));
  RETURN_IF_ERROR(ReserveOnHost(sizes));
  tables_ = {table_.tensors(), table_.tile_tensors(), table_.held_tiles(), table_.multipliers(),
             tiles_.get(), sums_.get(), counters_.get(), marks_.get(), slab_.get(), arena_.get(),
             items_.get(), chunks_.get(), pieces_.get(), block_sums_.get(), leaves_.get(),
             leaf_digests_.get(), tile_digests_.get(), sizes.slab_bytes, sizes.arena_bytes, 0,
             tile_count, 0, table_.host().held_count(), 0, kChunkTargetBytes, 0,
             static_cast<uint32_t>(manifest_.spans()), sizes.max_chunks, sizes.max_pieces,
             sizes.max_leaves, options_.contributor, options_.with_touched_sums ? 1u : 0u, 0,
             // In parts, so that somebody may stage the one before.
             options_.parts > 1 ? cuda::kFewTurns : cuda::kAllTurns};
  return Synchronize(options_.stream);
}

absl::Status Differ::ReserveOnHost(const cuda::TableSizes& sizes) {
  const uint64_t digests = options_.with_digest ? manifest_.tiles() : 0;
  const auto pin = [](auto* buffer, uint64_t count) {
    auto made = std::remove_pointer_t<decltype(buffer)>::Create(count);
    if (made.ok()) *buffer = *std::move(made);
    return made.status();
  };
  RETURN_IF_ERROR(pin(&host_marks_, options_.parts + 1));
  RETURN_IF_ERROR(pin(&host_sums_, table_.size()));
  RETURN_IF_ERROR(pin(&host_chunks_, uint64_t{options_.parts} * sizes.max_chunks));
  RETURN_IF_ERROR(pin(&host_tiles_, digests));
  RETURN_IF_ERROR(pin(&host_digests_, digests));
  std::memset(&host_marks_[0], 0, sizeof(cuda::Counters));
  for (uint32_t part = 0; part < options_.parts; ++part) {
    ASSIGN_OR_RETURN(done_[part], cuda::Event::Create());
  }
  return absl::OkStatus();
}

absl::Status Differ::Start(absl::Span<const void* const> shadow,
                           absl::Span<const void* const> weights) {
  const CudaStream stream = options_.stream;
  stage_ = Stage::kIdle;
  taken_ = 0;
  digested_ = 0;
  found_.clear();
  digester_.Finish();  // of a pass that was given up
  digest_.reset();
  if (shadow.size() != manifest_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("there are ", shadow.size(),
                                                   " addresses of the shadow, for ",
                                                   manifest_.size(), " tensors"));
  }
  RETURN_IF_ERROR(table_.SetAddresses(shadow, weights));
  RETURN_IF_ERROR(cuda::ZeroAsync(counters_.get(), 1, stream));
  RETURN_IF_ERROR(cuda::ZeroAsync(marks_.get(), 1, stream));
  RETURN_IF_ERROR(cuda::ZeroAsync(sums_.get(), sums_.count(), stream));
  // It is copied as a whole.
  RETURN_IF_ERROR(cuda::ZeroAsync(chunks_.get(), chunks_.count(), stream));
  RETURN_IF_ERROR(Compare(0));
  stage_ = Stage::kCompared;
  return absl::OkStatus();
}

absl::Status Differ::Compare(uint32_t part) {
  RETURN_IF_ERROR(cuda::ZeroAsync(&counters_.get()->next_tile, 1, options_.stream));
  return cuda::LaunchDiff(cuda::PartOf(tables_, table_.host(), part, options_.parts),
                          options_.stream);
}

absl::Status Differ::Seal(TransactionNumber transaction) {
  if (stage_ == Stage::kIdle) return absl::FailedPreconditionError("no pass was started");
  if (stage_ != Stage::kCompared) {
    return absl::FailedPreconditionError("the pass has a transaction's number already");
  }
  stage_ = Stage::kIdle;
  tables_.transaction = transaction.value();
  for (uint32_t part = 0; part < options_.parts; ++part) {
    if (part > 0) RETURN_IF_ERROR(Compare(part));
    RETURN_IF_ERROR(SealPart(part));
  }
  stage_ = Stage::kSealed;
  return absl::OkStatus();
}

absl::Status Differ::SealPart(uint32_t part) {
  const CudaStream stream = options_.stream;
  const cuda::DiffTables tables = cuda::PartOf(tables_, table_.host(), part, options_.parts);
  RETURN_IF_ERROR(cuda::LaunchChunks(tables, stream));
  if (options_.with_digest) {
    RETURN_IF_ERROR(cuda::LaunchDigests(tables, stream));
    const uint64_t first = tables.first_tile;
    const uint64_t count = tables.end_tile - first;
    RETURN_IF_ERROR(CopyAsync(tiles_.get() + first, host_tiles_.get() + first, count, stream));
    RETURN_IF_ERROR(CopyAsync(reinterpret_cast<const Digest*>(tile_digests_.get()) + first,
                              host_digests_.get() + first, count, stream));
  }
  RETURN_IF_ERROR(CopyAsync(counters_.get(), marks_.get() + part + 1, 1, stream));
  RETURN_IF_ERROR(CopyAsync(counters_.get(), host_marks_.get() + part + 1, 1, stream));
  RETURN_IF_ERROR(CopyAsync(chunks_.get(), host_chunks_.get() + part * chunks_.count(),
                            chunks_.count(), stream));
  if (part + 1 == options_.parts) {
    RETURN_IF_ERROR(CopyAsync(sums_.get(), host_sums_.get(), sums_.count(), stream));
  }
  return done_[part].Record(stream);
}

// What is missing is known at the end.
absl::Status Differ::CheckRoom(uint32_t part) {
  if (host_marks_[part + 1].slab_used <= tables_.slab_bytes) return absl::OkStatus();
  RETURN_IF_ERROR(done_[options_.parts - 1].Await());
  return absl::OutOfRangeError(absl::StrCat(
      "the changes take ", host_marks_[options_.parts].slab_used, " bytes; there is room for ",
      tables_.slab_bytes, ": make a differ with patch_bytes of that many"));
}

std::vector<CudaChunk> Differ::ChunksOf(uint32_t part) const {
  std::vector<CudaChunk> chunks;
  for (uint32_t i = host_marks_[part].chunks; i < host_marks_[part + 1].chunks; ++i) {
    const cuda::ChunkRecord& chunk = host_chunks_[part * chunks_.count() + i];
    chunks.push_back({{options_.contributor, chunk.span, static_cast<uint16_t>(chunk.part)},
                      arena_.get() + chunk.arena_at,
                      chunk.size,
                      chunk.changed});
  }
  std::sort(chunks.begin(), chunks.end(),
            [](const CudaChunk& a, const CudaChunk& b) { return a.key < b.key; });
  return chunks;
}

void Differ::DigestPart(uint32_t part) {
  const cuda::DiffTables tables = cuda::PartOf(tables_, table_.host(), part, options_.parts);
  std::vector<DigestedTile> changed;
  uint64_t number = tables.first_tile;
  while (number < tables.end_tile) {
    const TensorIndex tensor = manifest_.PlaceOf(number).tensor;
    const Manifest::Tensor& info = manifest_.tensor(tensor);
    const uint64_t end = std::min(tables.end_tile, info.first_tile + info.tiles);
    for (; number < end; ++number) {
      const cuda::TileRecord& tile = host_tiles_[number];
      if (tile.bytes == 0) continue;
      changed.push_back({{tensor, static_cast<uint32_t>(number - info.first_tile)},
                         static_cast<TileForm>(tile.packed >> 16 & 3),
                         tile.changed,
                         &host_digests_[number]});
    }
  }
  digester_.Add(
      changed.size(), [&](size_t i) { return changed[i]; },
      std::min(DefaultParallelism(), kDigestThreads));
}

absl::StatusOr<CudaDiffPart> Differ::NextPart() {
  if (stage_ != Stage::kSealed) {
    return absl::FailedPreconditionError("there is no pass under way that has a number");
  }
  if (taken_ == options_.parts) {
    return absl::FailedPreconditionError(
        absl::StrCat("all ", options_.parts, " parts of the pass have been taken"));
  }
  // While the device works.
  if (options_.with_digest && digested_ < taken_) DigestPart(digested_++);
  const uint32_t part = taken_;
  RETURN_IF_ERROR(done_[part].Await());
  RETURN_IF_ERROR(CheckRoom(part));
  ++taken_;
  CudaDiffPart found{ChunksOf(part), taken_ == options_.parts};
  found_.insert(found_.end(), found.chunks.begin(), found.chunks.end());
  return found;
}

void Differ::ReadSums(CudaDiff* diff) const {
  if (options_.with_touched_sums) diff->touched.reserve(table_.size());
  for (uint64_t i = 0; i < table_.size(); ++i) {
    const cuda::TensorSumsEntry& entry = host_sums_[i];
    const TensorIndex tensor = table_.index(i);
    TouchedSums& whole = diff->sums[tensor];
    whole.after = ToFingerprint(entry.after);
    if (!options_.with_touched_sums) continue;
    const TouchedSums touched{ToFingerprint(entry.touched_before),
                              ToFingerprint(entry.touched_after)};
    // What does not change has one sum on both sides.
    whole.before = whole.after - touched.change();
    if (entry.is_touched != 0) diff->touched.push_back({tensor, touched});
  }
}

absl::StatusOr<CudaDiff> Differ::Finish() {
  if (stage_ == Stage::kIdle) return absl::FailedPreconditionError("no pass was started");
  if (stage_ == Stage::kCompared) {
    return absl::FailedPreconditionError("the pass has no transaction's number yet: Seal");
  }
  while (stage_ == Stage::kSealed && taken_ < options_.parts) {
    RETURN_IF_ERROR(NextPart().status());
  }
  CudaDiff diff;
  diff.chunks = found_;
  diff.changed = host_marks_[options_.parts].changed;
  diff.sums.resize(manifest_.size());
  ReadSums(&diff);
  if (options_.with_digest) {
    while (digested_ < options_.parts) DigestPart(digested_++);
    if (!digest_) digest_ = digester_.Finish();
    diff.digest = digest_;
  }
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
  if (options.parts == 0 || options.parts > kMaxDiffParts) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pass in ", options.parts, " parts; 1 to ", kMaxDiffParts, " are allowed"));
  }
  ASSIGN_OR_RETURN(
      cuda::TensorTable table,
      cuda::TensorTable::Create(manifest, key, options.share, options.stream, options.memory));
  auto differ = std::make_unique<Differ>(manifest, options, std::move(table));
  RETURN_IF_ERROR(differ->Reserve());
  return differ;
}

}  // namespace wstore
