// What a publish needs of its parent, at a cost that does not grow with the chain: bits of the
// tiles and sums of the tensors that it touches.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "store/records.h"
#include "store/store_impl.h"
#include "wstore/packed_places.h"

namespace wstore {
namespace {

// The directories of larger payloads are not worth reading: they touch many tiles anyway.
constexpr uint64_t kMostListedPayloadBytes = 256 << 10;

}  // namespace

absl::StatusOr<v1::TouchedTable> StoreImpl::ReadTouched(TransactionNumber transaction) const {
  ASSIGN_OR_RETURN(const std::string bytes, ReadTouchedTable(*journal_, transaction));
  return ParseTouched(transaction, bytes);
}

absl::StatusOr<v1::TouchedTable> StoreImpl::ParseTouched(TransactionNumber transaction,
                                                         const std::string& bytes) const {
  v1::TouchedTable table;
  if (!table.ParseFromString(bytes)) {
    return absl::DataLossError(absl::StrCat("transaction ", transaction.value(),
                                            ": the table of touched tensors cannot be read"));
  }
  for (const v1::TouchedTensor& entry : table.tensors()) {
    if (entry.tensor() < manifest_.size()) continue;
    return absl::DataLossError(absl::StrCat("transaction ", transaction.value(), " touches tensor ",
                                            entry.tensor(), " of ", manifest_.size()));
  }
  return table;
}

// With one pass over a small payload; of a large one only the table is read.
absl::StatusOr<StoreImpl::SetSummary> StoreImpl::Summarise(const ChainStep& step) const {
  SetSummary summary;
  if (step.payload_bytes > kMostListedPayloadBytes) {
    ASSIGN_OR_RETURN(summary.table, ReadTouched(step.transaction));
    return summary;
  }
  std::string table;
  TileList& tiles = summary.tiles.emplace();
  RETURN_IF_ERROR(journal_->ReadPayload(
      step.transaction, ChunkKey{},
      [&](const ChunkKey& key, std::string_view chunk) -> absl::StatusOr<bool> {
        if (key.contributor == kTableContributor) {
          table.append(chunk);
          return true;
        }
        ASSIGN_OR_RETURN(const TileList places, PackedTilePlaces(chunk, manifest_));
        tiles.insert(tiles.end(), places.begin(), places.end());
        return true;
      }));
  ASSIGN_OR_RETURN(summary.table, ParseTouched(step.transaction, table));
  return summary;
}

absl::Status StoreImpl::MapChainOf(VersionId version) const {
  std::vector<ChainStep> back;
  std::vector<ChainStep> forward;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    RETURN_IF_ERROR(state_.Find(version).status());
    if (!chain_.has_version()) chain_.Reset(state_.base().tensor_fingerprints);
    VersionId from = chain_.version();
    while (from != version) {
      const bool goes_back = from > version;
      VersionId& higher = goes_back ? from : version;
      const VersionInfo& info = state_.versions().at(higher).info;
      (goes_back ? back : forward)
          .push_back({higher, *info.parent, info.transaction, info.payload_bytes});
      higher = *info.parent;
    }
  }
  for (const ChainStep& step : back) {
    ASSIGN_OR_RETURN(const v1::TouchedTable table, ReadTouched(step.transaction));
    chain_.Remove(step.parent, table);
  }
  for (auto step = forward.rbegin(); step != forward.rend(); ++step) {
    ASSIGN_OR_RETURN(const SetSummary set, Summarise(*step));
    chain_.Append(step->version, set.table, set.tiles ? &*set.tiles : nullptr);
  }
  return absl::OkStatus();
}

absl::Status StoreImpl::WithChainOf(VersionId version,
                                    const std::function<void(ChainMap&)>& use) const {
  const std::lock_guard<std::mutex> lock(chain_mutex_);
  const absl::Status status = MapChainOf(version);
  if (!status.ok()) {
    chain_.Clear();  // it may be between two versions
    return status;
  }
  use(chain_);
  return absl::OkStatus();
}

absl::StatusOr<v1::TouchedTable> StoreImpl::TableOf(VersionId parent,
                                                    const TouchedByTensor& touched) const {
  v1::TouchedTable table;
  RETURN_IF_ERROR(WithChainOf(parent, [&](ChainMap& chain) {
    for (const auto& [tensor, sums] : touched) {
      v1::TouchedTensor* const entry = table.add_tensors();
      entry->set_tensor(tensor);
      *entry->mutable_fingerprint() = ToProto(chain.fingerprint(tensor) + sums.change());
      *entry->mutable_touched_before() = ToProto(sums.before);
      *entry->mutable_touched_after() = ToProto(sums.after);
    }
  }));
  return table;
}

absl::StatusOr<StoreImpl::PathPatches> StoreImpl::PatchesTouching(
    VersionId version, const std::shared_ptr<const TileList>& wanted) const {
  std::vector<VersionId> versions;
  RETURN_IF_ERROR(
      WithChainOf(version, [&](ChainMap& chain) { versions = chain.Touching(*wanted); }));
  const std::lock_guard<std::mutex> lock(mutex_);
  PathPatches path;
  for (const VersionId touching : versions) {
    path.owned.push_back(std::make_unique<JournalPatch>(
        *journal_, manifest_, state_.versions().at(touching).info.transaction, wanted));
  }
  return path;
}

absl::StatusOr<std::unique_ptr<DenseSource>> StoreImpl::ParentBits(
    VersionId parent, const std::shared_ptr<const TileList>& wanted, TileBits* tiles) const {
  if (!recent_.HasRoomFor(*wanted) || (image_ != nullptr && image_->version() == parent)) {
    return Bits(parent, wanted);
  }
  RETURN_IF_ERROR(OpenBase().status());  // a version that only memory has is not to be built on
  *tiles = recent_.Find(parent, *wanted);
  auto missing = std::make_shared<TileList>();
  for (const TilePlace place : *wanted) {
    if (!tiles->contains(place)) missing->push_back(place);
  }
  if (!missing->empty()) {
    ASSIGN_OR_RETURN(const std::unique_ptr<DenseSource> bits, Bits(parent, missing));
    RETURN_IF_ERROR(ReadTiles(manifest_, *bits, *missing, tiles));
    recent_.Keep(parent, *tiles);
  }
  return MakeDense(*tiles);
}

void StoreImpl::Published(VersionId parent, VersionId version, bool candidate,
                          const v1::TouchedTable& table, const TileList* touched,
                          const TileBits& tiles) const {
  if (candidate) return;
  recent_.Advance(parent, version, touched, tiles);
  // Whoever has the map locked may be reading a whole chain; then it is moved when it is needed.
  const std::unique_lock<std::mutex> lock(chain_mutex_, std::try_to_lock);
  if (!lock.owns_lock() || !chain_.has_version() || chain_.version() != parent) return;
  chain_.Append(version, table, touched);
}

}  // namespace wstore
