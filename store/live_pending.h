// A publish whose content is coming. Private to live*.cc.
#pragma once

#include <memory>
#include <vector>

#include "store/live.h"
#include "store/recent_tiles.h"

namespace wstore {

// Whoever holds one holds the StoreImpl too, and lets go of it later: the payload belongs to its
// journal.
struct LiveStore::Pending {
  LivePublish publish;
  std::shared_ptr<StagedContent> content;

  // Set by CompleteContent, for Write.
  std::unique_ptr<PayloadWriter> payload;
  v1::VersionRecord record;  // but for number, id and who
  LiveContent result;
  v1::TouchedTable table;
  std::shared_ptr<const TileList> touched;  // null: not listed
  TileBits tiles;                           // after it, of these; empty if they were not read
};

}  // namespace wstore
