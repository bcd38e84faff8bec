// What belongs to a checkpoint's directory and not to its tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "store/checkpoint/checkpoint.h"

namespace wstore {

// A larger file beside a checkpoint is not carried along.
inline constexpr uint64_t kMaxCarriedBytes = 64 << 20;

struct CarryList {
  std::vector<std::string> carried;  // paths, sorted
  std::vector<std::string> skipped;  // names of files that one might expect to be carried, sorted
};

// config.json, the tokenizer, and every other regular file (or link to one) of the directory,
// without subfolders and hidden files. Weights in other formats and their indices are skipped:
// beside an export they would look like its version and hold another. So are files above
// kMaxCarriedBytes. A checkpoint that was opened as a single file has none.
//   errors as the system says
absl::StatusOr<CarryList> ListCarryFiles(const Checkpoint& checkpoint);

}  // namespace wstore
