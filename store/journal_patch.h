// The patch set of a committed version, read from the journal as it is asked for.
#pragma once

#include "wstore/journal.h"
#include "wstore/patch_source.h"

namespace wstore {

// Key of the chunk that holds a payload's TouchedTable: it sorts behind all patch chunks.
inline constexpr uint16_t kTableContributor = 0xffff;
inline constexpr ChunkKey kTouchedTableKey = {kTableContributor, 0, 0};

class JournalPatch final : public PatchSource {
 public:
  // All must outlive the object.
  JournalPatch(const Journal& journal, const Manifest& manifest, TransactionNumber transaction)
      : journal_(journal), manifest_(manifest), transaction_(transaction) {}

  // kDataLoss, with the transaction and span: damaged, missing or misplaced chunks.
  absl::Status ReadSpan(uint32_t span,
                        const std::function<absl::Status(const ChunkView&)>& visit) const override;

 private:
  const Journal& journal_;
  const Manifest& manifest_;
  TransactionNumber transaction_;
};

// The serialized TouchedTable of a transaction.
absl::StatusOr<std::string> ReadTouchedTable(const Journal& journal, TransactionNumber transaction);

}  // namespace wstore
