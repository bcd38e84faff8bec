// The committed updates that can still be taken back, newest last.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/reserve.h"
#include "transfer/replica/plan.h"
#include "transfer/replica/reaper.h"
#include "transfer/replica/staged_patch.h"
#include "wstore/update.h"

namespace wstore {

class UndoHistory {
 public:
  struct Entry {
    VersionName from;
    VersionName to;
    std::shared_ptr<StagedPatch> patch;
  };

  // `reaper` frees what is dropped, and must outlive the history.
  UndoHistory(uint64_t budget_bytes, Reaper* reaper)
      : budget_bytes_(budget_bytes), reaper_(reaper) {}

  // Makes room, so that the next Add needs no memory.
  void Reserve() { ReserveOneMore(&entries_); }
  // entry.from is what the newest entry leads to. Drops the oldest while there is more than the
  // budget.
  void Add(Entry entry);
  // Drops the newest.
  void DropNewest(size_t count);
  void Clear() { Drop(0, entries_.size()); }

  absl::Span<const Entry> entries() const { return entries_; }
  // How many of the newest entries must be taken back to be at `version`; nothing: it is not here.
  std::optional<size_t> StepsTo(VersionId version) const;

 private:
  void Drop(size_t first, size_t last);

  const uint64_t budget_bytes_;
  Reaper* const reaper_;
  std::vector<Entry> entries_;
};

// The XOR of the patches of these entries, each element once.
std::shared_ptr<StagedPatch> ComposeStaged(const Plan& plan,
                                           absl::Span<const UndoHistory::Entry> entries);

}  // namespace wstore
