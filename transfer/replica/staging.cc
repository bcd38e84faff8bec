#include "transfer/replica/staging.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"

namespace wstore {
namespace {

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
  if (piece != nullptr) RETURN_IF_ERROR(accept_(piece.get()));
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
  if (chunk_bytes > budget_bytes_ - size_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "transaction ", header_.transaction.value(), ": ", size_bytes_, " bytes are staged, ",
        Describe(key), " takes ", chunk_bytes, " more, but at most ", budget_bytes_,
        " may be; raise stage_budget_bytes or publish less at a time"));
  }
  counts_.resize(header_.contributors);
  chunks_.emplace(key, std::move(chunk));
  ++counts_[key.contributor];
  size_bytes_ += chunk_bytes;
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
  content.chunks = contributor < counts_.size() ? counts_[contributor] : 0;
  return content;
}

absl::Status Staging::Seal(absl::Span<const ContributorContent> contents) {
  if (!contents.empty() && contents.size() != header_.contributors) {
    return absl::InvalidArgumentError(
        absl::StrCat("transaction ", header_.transaction.value(), " was announced with ",
                     header_.contributors, " contributors, its summary has ", contents.size()));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::string> wrong;
  for (size_t i = 0; i < header_.contributors; ++i) {
    const uint64_t declared = i < contents.size() ? contents[i].chunks : 0;
    const uint64_t received = i < counts_.size() ? counts_[i] : 0;
    if (declared != received) {
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

absl::Status Staging::Verify(absl::Span<const ContributorContent> contents) const {
  const std::vector<PlacedTile> tiles = SortedTiles();
  // First: a digest is taken over tiles that ascend.
  RETURN_IF_ERROR(CheckClaims(tiles));
  RETURN_IF_ERROR(CheckDigests(tiles, contents));
  return CheckAliases(tiles);
}

StagedPatch Staging::Take() {
  std::lock_guard<std::mutex> lock(mutex_);
  StagedPatch patch;
  patch.pieces.reserve(chunks_.size());
  for (auto& [key, chunk] : chunks_) {
    if (chunk.piece != nullptr) patch.Add(std::move(chunk.piece));
  }
  chunks_.clear();
  counts_.clear();
  size_bytes_ = 0;
  builders_.clear();
  return patch;
}

}  // namespace wstore
