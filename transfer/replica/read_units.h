// What an update finds in memory, and what it would leave there.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "transfer/replica/backend.h"
#include "wstore/regions.h"

namespace wstore {

// Fills in the expected sums of `units`, and adds to `cells`, which are sorted by cell, what is to
// be reported of them. Errors: as MemoryBackend::Read; then neither is of use.
absl::Status ReadUnits(MemoryBackend& backend, const MemoryPass& pass, absl::Span<Unit> units,
                       std::vector<CellSums>* cells);

// Joins those of one cell, in the order of cells.
void MergeByCell(std::vector<CellSums>* cells);

}  // namespace wstore
