// The patch set of a committed version, read from the journal as it is asked for.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "wstore/journal.h"
#include "wstore/patch_source.h"

namespace wstore {

// Key of the chunk that holds a payload's TouchedTable: it sorts behind all patch chunks.
inline constexpr uint16_t kTableContributor = 0xffff;
inline constexpr ChunkKey kTouchedTableKey = {kTableContributor, 0, 0};

// Tiles of a model, ascending.
using TileList = std::vector<TilePlace>;

class JournalPatch final : public PatchSource {
 public:
  // All must outlive the object. `wanted`: what is to be known of the patch set; chunks without any
  // of these tiles are left out, and not unpacked. Null: all.
  JournalPatch(const Journal& journal, const Manifest& manifest, TransactionNumber transaction,
               std::shared_ptr<const TileList> wanted = nullptr)
      : journal_(journal),
        manifest_(manifest),
        transaction_(transaction),
        wanted_(std::move(wanted)) {}

  //   kDataLoss, with the transaction and span: damaged, missing or misplaced chunks.
  absl::Status ReadSpan(uint32_t span,
                        const std::function<absl::Status(const ChunkView&)>& visit) const override;

 private:
  const Journal& journal_;
  const Manifest& manifest_;
  TransactionNumber transaction_;
  std::shared_ptr<const TileList> wanted_;
};

// The serialized TouchedTable of a transaction.
absl::StatusOr<std::string> ReadTouchedTable(const Journal& journal, TransactionNumber transaction);

}  // namespace wstore
