#include "transfer/replica/staging.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/parallel.h"
#include "common/reserve.h"
#include "common/status_macros.h"
#include "transfer/replica/read_units.h"
#include "wstore/patch_digest.h"

namespace wstore {
namespace {

constexpr size_t kCellsToMerge = 4096;
constexpr uint64_t kTilesToDigest = 2048;

std::string Describe(const ChunkKey& key) {
  return absl::StrCat("chunk of span ", key.span, ", contributor ", key.contributor, ", part ",
                      key.part);
}

}  // namespace

std::unique_ptr<PieceBuilder> Staging::BorrowBuilder() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (builders_.empty()) {
    return std::make_unique<PieceBuilder>(*plan_, allow_dense());
  }
  std::unique_ptr<PieceBuilder> builder = std::move(builders_.back());
  builders_.pop_back();
  builder->Clear();
  return builder;
}

absl::Status Staging::CheckContributor(const ChunkKey& key) const {
  if (key.contributor < header_.contributors) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(Describe(key), ": transaction ", header_.transaction.value(),
                   " was announced with ", header_.contributors, " contributors"));
}

absl::Status Staging::AddDecoded(DecodedChunk chunk) {
  RETURN_IF_ERROR(CheckContributor(chunk.header.key));
  return Keep(chunk.header.key, std::move(chunk.content));
}

absl::Status Staging::Add(const ChunkView& chunk, const ChunkKey& key) {
  RETURN_IF_ERROR(CheckContributor(key));
  StagedChunk kept;
  kept.tiles.reserve(chunk.tiles().size());
  std::unique_ptr<PieceBuilder> builder = BorrowBuilder();
  for (const EncodedTile& tile : chunk.tiles()) {
    kept.tiles.push_back({tile.place, tile.form, tile.changed, TileDigest(tile)});
    builder->AddTile(tile);
  }
  std::unique_ptr<StagedPiece> piece = builder->Finish();
  if (piece != nullptr) RETURN_IF_ERROR(backend_.accept(piece.get()));
  kept.piece = std::move(piece);
  RETURN_IF_ERROR(Keep(key, std::move(kept)));
  std::lock_guard<std::mutex> lock(mutex_);
  builders_.push_back(std::move(builder));
  return absl::OkStatus();
}

absl::Status Staging::Keep(const ChunkKey& key, StagedChunk chunk) {
  const uint64_t chunk_bytes = chunk.tiles.size() * sizeof(TileRecord) +
                               (chunk.piece == nullptr ? 0 : chunk.piece->size_bytes());
  std::lock_guard<std::mutex> lock(mutex_);
  if (const auto known = chunks_.find(key); known != chunks_.end()) {
    if (known->second.tiles == chunk.tiles) return absl::OkStatus();
    return absl::AlreadyExistsError(absl::StrCat(Describe(key), " of transaction ",
                                                 header_.transaction.value(),
                                                 " came before with other content"));
  }
  if (sealed_) {
    return absl::FailedPreconditionError(absl::StrCat(
        Describe(key), " of transaction ", header_.transaction.value(), " came after its summary"));
  }
  if (chunk_bytes > options_.budget_bytes - size_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "transaction ", header_.transaction.value(), ": ", size_bytes_, " bytes are staged, ",
        Describe(key), " takes ", chunk_bytes, " more, but at most ", options_.budget_bytes,
        " may be; raise stage_budget_bytes or publish less at a time"));
  }
  // From here on nothing fails, once there is room.
  incoming_.resize(header_.contributors);
  Incoming& incoming = incoming_[key.contributor];
  if (incoming.digester == nullptr) {
    incoming.digester = std::make_unique<ContentDigester>(plan_->manifest());
  }
  incoming.digester->Reserve();
  ReserveOneMore(&unread_);
  StagedChunk& kept = chunks_.emplace(key, std::move(chunk)).first->second;
  ++incoming.chunks;
  incoming.digester->Add(key, &kept);
  if (kept.piece != nullptr) {
    unread_.push_back(&kept);
    unread_groups_ += kept.piece->groups.size();
  }
  size_bytes_ += chunk_bytes;
  return absl::OkStatus();
}

void Staging::WorkAhead() {
  DigestAhead(kTilesToDigest, /*threads=*/1);
  if (const std::vector<StagedChunk*> chunks = ClaimUnread(); !chunks.empty()) ReadAhead(chunks);
}

void Staging::WorkAheadBeside(const std::shared_ptr<Staging>& staging, int threads,
                              JobThread& digests, JobThread& reads) {
  const std::vector<StagedChunk*> chunks = staging->ClaimUnread();
  bool reads_here = !chunks.empty();
  try {
    // Of an update that was dropped meanwhile, nothing is done.
    const std::weak_ptr<Staging> weak = staging;
    if (reads_here) {
      reads.Post([weak, chunks] {
        if (const auto alive = weak.lock()) alive->ReadAhead(chunks);
      });
    }
    reads_here = false;
    digests.Post([weak, threads] {
      try {
        if (const auto alive = weak.lock()) alive->DigestAhead(kTilesToDigest, threads);
      } catch (const std::bad_alloc&) {
        // They are taken in the end.
      }
    });
  } catch (const std::bad_alloc&) {
    if (reads_here) staging->ReadAhead(chunks);
  }
}

void Staging::DigestAhead(uint64_t least_tiles, int threads) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (is_digesting_ && least_tiles != ContentDigester::kAll) return;
  digested_.wait(lock, [this] { return !is_digesting_; });
  is_digesting_ = true;
  const auto end = absl::MakeCleanup([&] {
    if (!lock.owns_lock()) lock.lock();
    is_digesting_ = false;
    digested_.notify_all();
  });
  for (Incoming& incoming : incoming_) {
    if (incoming.digester == nullptr) continue;
    const std::vector<const StagedChunk*> chunks = incoming.digester->Take(least_tiles);
    if (chunks.empty()) continue;
    lock.unlock();
    const bool is_done = incoming.digester->Hash(chunks, threads);
    lock.lock();
    if (!is_done) incoming.digester->GiveUp();
  }
}

std::vector<StagedChunk*> Staging::ClaimUnread() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (sealed_ || unread_groups_ < options_.read_ahead_groups) return {};
  unread_groups_ = 0;
  ++reading_;
  return std::exchange(unread_, {});
}

void Staging::ReadAhead(absl::Span<StagedChunk* const> chunks) {
  std::vector<CellSums> cells;
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  absl::Status status;
  try {
    status = ReadChunks(chunks, &cells);
    lock.lock();
    if (status.ok()) {
      cells_.insert(cells_.end(), cells.begin(), cells.end());
      // Not each time: that would cost the square of what comes.
      if (cells_.size() >= 2 * merged_cells_ + kCellsToMerge) {
        MergeByCell(&cells_);
        merged_cells_ = cells_.size();
      }
    }
  } catch (const std::bad_alloc&) {
    status = absl::ResourceExhaustedError("");
    if (!lock.owns_lock()) lock.lock();
  }
  // They are read in the end, and then it is said what is wrong.
  if (!status.ok()) {
    for (StagedChunk* const chunk : chunks) chunk->units.clear();
  }
  --reading_;
  read_.notify_all();
}

absl::Status Staging::ReadChunks(absl::Span<StagedChunk* const> chunks,
                                 std::vector<CellSums>* cells) {
  std::vector<Unit> units;
  std::vector<size_t> ends;
  for (const StagedChunk* const chunk : chunks) {
    AppendUnits(*chunk->piece, &units);
    ends.push_back(units.size());
  }
  RETURN_IF_ERROR(backend_.read(pass_, absl::MakeSpan(units), cells));
  size_t begin = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    chunks[i]->units.assign(units.begin() + begin, units.begin() + ends[i]);
    begin = ends[i];
  }
  return absl::OkStatus();
}

absl::StatusOr<ContributorContent> Staging::Content(uint16_t contributor) const {
  ContributorContent content;
  PatchDigester digester(plan_->manifest());
  const std::vector<PlacedTile> tiles = SortedTiles();
  RETURN_IF_ERROR(CheckClaims(tiles));
  for (const PlacedTile& placed : tiles) {
    if (placed.contributor != contributor) continue;
    digester.Add(placed.tile->place, placed.tile->form, placed.tile->changed, placed.tile->digest);
  }
  content.digest = digester.Finish();
  std::lock_guard<std::mutex> lock(mutex_);
  content.chunks = contributor < incoming_.size() ? incoming_[contributor].chunks : 0;
  return content;
}

absl::Status Staging::Seal(const UpdateSummary& summary) {
  const absl::Span<const ContributorContent> contents = summary.contents;
  if (!contents.empty() && contents.size() != header_.contributors) {
    return absl::InvalidArgumentError(
        absl::StrCat("transaction ", header_.transaction.value(), " was announced with ",
                     header_.contributors, " contributors, its summary has ", contents.size()));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::string> wrong;
  for (size_t i = 0; i < header_.contributors; ++i) {
    const uint64_t declared = i < contents.size() ? contents[i].chunks : 0;
    const uint64_t received = i < incoming_.size() ? incoming_[i].chunks : 0;
    if (declared != received && !summary.is_partial) {
      wrong.push_back(absl::StrCat(received, " of ", declared, " from contributor ", i));
    }
  }
  sealed_ = wrong.empty();
  if (sealed_) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("transaction ", header_.transaction.value(),
                                          ": not the chunks that were declared: ",
                                          absl::StrJoin(wrong, ", "), "; send what is missing"));
}

std::vector<Staging::PlacedTile> Staging::SortedTiles() const {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t count = 0;
  for (const auto& [key, chunk] : chunks_) count += chunk.tiles.size();
  std::vector<PlacedTile> tiles;
  tiles.reserve(count);
  for (const auto& [key, chunk] : chunks_) {
    for (const TileRecord& tile : chunk.tiles) {
      tiles.push_back({&tile, key.contributor, chunk.piece.get()});
    }
  }
  const auto is_before = [](const PlacedTile& a, const PlacedTile& b) {
    return std::tie(a.tile->place, a.contributor) < std::tie(b.tile->place, b.contributor);
  };
  // Those of one contributor are in order already.
  if (!std::is_sorted(tiles.begin(), tiles.end(), is_before)) {
    std::sort(tiles.begin(), tiles.end(), is_before);
  }
  return tiles;
}

absl::Status Staging::Verify(const UpdateSummary& summary) {
  const absl::Span<const ContributorContent> contents = summary.contents;
  DigestAhead(ContentDigester::kAll, std::min(DefaultParallelism(), kDigestThreads));
  const bool is_sound =
      std::all_of(incoming_.begin(), incoming_.end(), [](const Incoming& incoming) {
        return incoming.digester == nullptr || incoming.digester->is_sound();
      });
  // Then the tiles of a contributor ascend, and each is there once.
  if (is_sound && contents.size() <= 1 && plan_->layout().aliases().empty()) {
    return summary.is_partial ? absl::OkStatus() : CheckDigests({}, contents);
  }
  const std::vector<PlacedTile> tiles = SortedTiles();
  // First: a digest is taken over tiles that ascend.
  RETURN_IF_ERROR(CheckClaims(tiles));
  if (!summary.is_partial) RETURN_IF_ERROR(CheckDigests(tiles, contents));
  return CheckAliases(tiles, summary.is_partial);
}

Staging::Collected Staging::Take() {
  std::unique_lock<std::mutex> lock(mutex_);
  read_.wait(lock, [this] { return reading_ == 0; });
  Collected collected;
  collected.patch.pieces.reserve(chunks_.size());
  if (!pass_.is_over()) {
    for (auto& [key, chunk] : chunks_) {
      if (!chunk.units.empty()) collected.patch.Add(std::move(chunk.piece), chunk.units);
    }
    collected.read_units = collected.patch.units.size();
    MergeByCell(&cells_);
    collected.cells = std::move(cells_);
  }
  for (auto& [key, chunk] : chunks_) {
    if (chunk.piece != nullptr) collected.patch.Add(std::move(chunk.piece));
  }
  chunks_.clear();
  incoming_.clear();
  unread_.clear();
  size_bytes_ = 0;
  builders_.clear();
  return collected;
}

}  // namespace wstore
