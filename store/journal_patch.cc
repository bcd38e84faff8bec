#include "store/journal_patch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "wstore/packed_places.h"

namespace wstore {
namespace {

// Both ascend.
bool HaveCommon(const TileList& few, const TileList& many) {
  return std::any_of(few.begin(), few.end(), [&many](const TilePlace& place) {
    return std::binary_search(many.begin(), many.end(), place);
  });
}

}  // namespace

absl::Status JournalPatch::ReadSpan(
    uint32_t span, const std::function<absl::Status(const ChunkView&)>& visit) const {
  uint16_t next_part = 0;
  const auto read_chunk = [&](const ChunkKey& key,
                              std::string_view packed) -> absl::StatusOr<bool> {
    if (key.contributor != 0 || key.span != span) return false;
    if (wanted_ != nullptr) {
      ASSIGN_OR_RETURN(const TileList places, PackedTilePlaces(packed, manifest_));
      if (!HaveCommon(places, *wanted_)) {
        ++next_part;
        return true;
      }
    }
    ASSIGN_OR_RETURN(const std::string bytes, UnpackChunk(packed, manifest_));
    ASSIGN_OR_RETURN(const ChunkView chunk, ChunkView::Parse(bytes, manifest_));
    if (key.part != next_part++ || chunk.header() != ChunkHeader{transaction_, key}) {
      return absl::DataLossError(absl::StrCat("part ", key.part, " is not where it belongs"));
    }
    RETURN_IF_ERROR(visit(chunk));
    return true;
  };
  const absl::Status status = journal_.ReadPayload(transaction_, ChunkKey{0, span, 0}, read_chunk);
  return Prefixed(status, absl::StrCat("transaction ", transaction_.value(), ", span ", span));
}

absl::StatusOr<std::string> ReadTouchedTable(const Journal& journal,
                                             TransactionNumber transaction) {
  std::string table;
  bool found = false;
  RETURN_IF_ERROR(
      journal.ReadPayload(transaction, kTouchedTableKey,
                          [&](const ChunkKey& key, std::string_view chunk) -> absl::StatusOr<bool> {
                            if (key.contributor == kTableContributor) {
                              table.append(chunk);
                              found = true;
                            }
                            return true;
                          }));
  if (!found) {
    return absl::DataLossError(
        absl::StrCat("transaction ", transaction.value(), " has no table of touched tensors"));
  }
  return table;
}

}  // namespace wstore
