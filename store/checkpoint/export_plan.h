// Which bytes an export puts where. A pure function of the manifest and the options, so that the
// same version gives the same files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "wstore/manifest.h"

namespace wstore {

struct ExportPlan {
  struct File {
    std::string name;    // final
    std::string header;  // the bytes before the data
    uint64_t size_bytes = 0;
  };
  struct Place {
    uint32_t file = 0;
    uint64_t offset_bytes = 0;  // in the file
  };
  std::vector<File> files;
  std::vector<Place> places;  // by tensor index
  std::string index;          // content of model.safetensors.index.json; empty: no index
};

// Tensors fill shards in canonical order; one goes to the next shard if it would take the data of
// this one above `shard_size_bytes`, so a larger tensor has a shard of its own. In a shard, tensors
// with wider storage elements come first, then names ascend: every tensor is aligned to its
// elements.
//   kInvalidArgument: a shard size of 0; more than 99,999 shards; a header that a reader would
//   refuse (too large; a name or metadata that is not UTF-8)
absl::StatusOr<ExportPlan> PlanExport(const Manifest& manifest, uint64_t shard_size_bytes,
                                      const std::map<std::string, std::string>& metadata);

}  // namespace wstore
