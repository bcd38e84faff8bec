// The dense base under a store: recording it, and opening it again.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "store/checkpoint/checkpoint.h"
#include "store/state.h"
#include "wstore/progress.h"
#include "wstore/v1/journal.pb.h"

namespace wstore {

// Reads all of a checkpoint (twice: digests, then sums, whose key is the digest) and describes it.
// Everything but who and when.
absl::StatusOr<v1::BaseRecord> DescribeBase(const Checkpoint& checkpoint, int threads,
                                            const ProgressFn& progress);

// Opens the base's files.
//   kFailedPrecondition: files are missing, or not those that were recorded, by size, modification
//   time
//     and inode (each is named); or the tensors are others
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenRecordedBase(const BaseState& base);

}  // namespace wstore
