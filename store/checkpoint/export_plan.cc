#include "store/checkpoint/export_plan.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "store/checkpoint/safetensors_header.h"
#include "store/checkpoint/shard_index.h"

namespace wstore {
namespace {

constexpr uint64_t kMaxShards = 99'999;  // five digits in the name
constexpr uint64_t kLengthBytes = 8;

// First tensor of each shard, then the number of tensors.
std::vector<TensorIndex> CutShards(const Manifest& manifest, uint64_t shard_size_bytes) {
  std::vector<TensorIndex> cuts = {0};
  uint64_t size = 0;
  for (TensorIndex i = 0; i < manifest.size(); ++i) {
    const uint64_t tensor_bytes = manifest.tensor(i).size_bytes();
    const bool fits = tensor_bytes <= shard_size_bytes && size <= shard_size_bytes - tensor_bytes;
    if (size > 0 && tensor_bytes > 0 && !fits) {
      cuts.push_back(i);
      size = 0;
    }
    size += tensor_bytes;
  }
  cuts.push_back(static_cast<TensorIndex>(manifest.size()));
  return cuts;
}

// What is written must be what is accepted: the reader's own rules decide.
absl::Status CheckHeader(const ExportPlan::File& file, SafetensorsHeader header) {
  const std::string_view json = std::string_view(file.header).substr(kLengthBytes);
  if (json.size() > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(file.name, ": its header takes ", json.size(),
                                                   " bytes, the limit is ", kMaxHeaderBytes,
                                                   "; choose a smaller shard size"));
  }
  const absl::StatusOr<SafetensorsHeader> parsed =
      ParseHeader(json, file.size_bytes - file.header.size());
  if (!parsed.ok()) return Prefixed(parsed.status(), absl::StrCat(file.name, " to be written"));
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const auto& a, const auto& b) { return a.spec.name < b.spec.name; });
  WSTORE_CHECK(*parsed == header);
  return absl::OkStatus();
}

// Adds the shard of tensors [first, last) to the plan.
absl::Status AddShard(const Manifest& manifest, TensorIndex first, TensorIndex last,
                      std::string name, const std::map<std::string, std::string>& metadata,
                      ExportPlan* plan) {
  std::vector<TensorIndex> order(last - first);
  std::iota(order.begin(), order.end(), first);
  std::stable_sort(order.begin(), order.end(), [&manifest](TensorIndex a, TensorIndex b) {
    return manifest.tensor(a).element_bytes > manifest.tensor(b).element_bytes;
  });
  SafetensorsHeader header;
  header.metadata = metadata;
  uint64_t end = 0;
  for (const TensorIndex tensor : order) {
    const uint64_t begin = end;
    end += manifest.tensor(tensor).size_bytes();
    header.tensors.push_back({manifest.tensor(tensor).spec, begin, end});
  }
  ExportPlan::File file;
  file.name = std::move(name);
  file.header = FormatHeader(header);
  file.size_bytes = file.header.size() + end;
  for (size_t i = 0; i < order.size(); ++i) {
    plan->places[order[i]] = {static_cast<uint32_t>(plan->files.size()),
                              file.header.size() + header.tensors[i].begin};
  }
  RETURN_IF_ERROR(CheckHeader(file, std::move(header)));
  plan->files.push_back(std::move(file));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ExportPlan> PlanExport(const Manifest& manifest, uint64_t shard_size_bytes,
                                      const std::map<std::string, std::string>& metadata) {
  if (shard_size_bytes == 0) {
    return absl::InvalidArgumentError("the shard size is 0 bytes; it must be at least 1");
  }
  const std::vector<TensorIndex> cuts = CutShards(manifest, shard_size_bytes);
  const size_t shards = cuts.size() - 1;
  if (shards > kMaxShards) {
    return absl::InvalidArgumentError(
        absl::StrCat("a shard size of ", shard_size_bytes, " bytes makes ", shards,
                     " shards; the limit is ", kMaxShards, ": choose a larger one"));
  }
  ExportPlan plan;
  plan.places.resize(manifest.size());
  ShardIndex index;
  for (size_t i = 0; i < shards; ++i) {
    std::string name = shards == 1
                           ? kSingleFileName
                           : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, shards);
    index.files.push_back(name);
    RETURN_IF_ERROR(AddShard(manifest, cuts[i], cuts[i + 1], std::move(name), metadata, &plan));
  }
  if (shards == 1) return plan;
  for (TensorIndex i = 0; i < manifest.size(); ++i) {
    index.entries.push_back({manifest.tensor(i).spec.name, plan.places[i].file});
  }
  plan.index = FormatShardIndex(index, manifest.size_bytes());
  return plan;
}

}  // namespace wstore
