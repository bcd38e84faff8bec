#include "store/checkpoint/shard_index.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/fault_list.h"
#include "common/status_macros.h"
#include "store/checkpoint/json_visitor.h"

namespace wstore {
namespace {

constexpr char kWeightMap[] = "weight_map";

bool IsPlainFileName(std::string_view name) {
  if (name.empty() || name == "." || name == "..") return false;
  return std::none_of(name.begin(), name.end(),
                      [](char c) { return c == '/' || static_cast<unsigned char>(c) < 0x20; });
}

class IndexVisitor final : public JsonVisitor {
 public:
  void Key(std::string& key) override {
    if (depth_ == 2) {
      tensor_ = std::move(key);
      return;
    }
    is_weight_map_ = key == kWeightMap;
    if (is_weight_map_ && std::exchange(has_weight_map_, true)) {
      faults_.Add("weight_map twice");
      is_weight_map_ = false;
    }
  }

  bool Open(bool is_object) override {
    if (depth_ == 1 && !is_weight_map_) return false;
    if (depth_ == 1 && !is_object) {
      faults_.Add("weight_map is an array, not an object");
      return false;
    }
    if (depth_ == 2) {
      Unwanted(is_object ? "an object" : "an array");
      return false;
    }
    ++depth_;
    return true;
  }

  void Close() override { --depth_; }

  void Scalar(const JsonScalar& scalar) override {
    if (depth_ == 1) {
      if (is_weight_map_) {
        faults_.Add(absl::StrCat("weight_map is ", scalar.Description(), ", not an object"));
      }
    } else if (scalar.kind != JsonScalar::Kind::kString) {
      Unwanted(scalar.Description());
    } else if (!IsPlainFileName(*scalar.text)) {
      faults_.Add(absl::StrCat("tensor ", Quoted(tensor_), " is in ", Quoted(*scalar.text),
                               ", which is not the plain name of a file in the same directory"));
    } else {
      const auto file = static_cast<uint32_t>(files_.size());
      const auto [it, is_new] = files_.emplace(std::move(*scalar.text), file);
      entries_.push_back({std::move(tensor_), it->second});
    }
  }

  std::string Where() const override { return depth_ == 2 ? "in weight_map" : ""; }

  absl::StatusOr<ShardIndex> Finish() {
    if (!has_weight_map_) faults_.Add("it has no weight_map");
    std::sort(entries_.begin(), entries_.end(),
              [](const auto& a, const auto& b) { return a.tensor < b.tensor; });
    for (size_t i = 1; i < entries_.size(); ++i) {
      if (entries_[i].tensor == entries_[i - 1].tensor) {
        faults_.Add("duplicate tensor name " + Quoted(entries_[i].tensor));
      }
    }
    RETURN_IF_ERROR(faults_.ToStatus());
    if (entries_.empty()) {
      return absl::InvalidArgumentError(
          "weight_map names no tensors; remove the index if the model has no shards");
    }
    ShardIndex index;
    for (const auto& [name, number] : files_) index.files.push_back(name);
    std::sort(index.files.begin(), index.files.end());
    std::vector<uint32_t> sorted_number(files_.size());
    for (size_t i = 0; i < index.files.size(); ++i) {
      sorted_number[files_[index.files[i]]] = static_cast<uint32_t>(i);
    }
    for (ShardIndex::Entry& entry : entries_) entry.file = sorted_number[entry.file];
    index.entries = std::move(entries_);
    return index;
  }

 private:
  void Unwanted(std::string_view what) {
    faults_.Add(absl::StrCat("tensor ", Quoted(tensor_), " is given ",
                             absl::string_view(what.data(), what.size()), ", not a file name"));
  }

  FaultList faults_;
  int depth_ = 0;
  bool is_weight_map_ = false;
  bool has_weight_map_ = false;
  std::string tensor_;
  absl::flat_hash_map<std::string, uint32_t> files_;
  std::vector<ShardIndex::Entry> entries_;
};

}  // namespace

absl::StatusOr<ShardIndex> ParseShardIndex(std::string_view json) {
  IndexVisitor visitor;
  RETURN_IF_ERROR(VisitJsonObject(json, visitor));
  return visitor.Finish();
}

std::string FormatShardIndex(const ShardIndex& index, uint64_t total_size_bytes) {
  std::string json = absl::StrCat("{\n  \"metadata\": {\n    \"total_size\": ", total_size_bytes,
                                  "\n  },\n  \"weight_map\": {");
  for (const ShardIndex::Entry& entry : index.entries) {
    json += json.back() == '{' ? "\n    " : ",\n    ";
    AppendJsonString(entry.tensor, &json);
    json += ": ";
    AppendJsonString(index.files[entry.file], &json);
  }
  return json + "\n  }\n}\n";
}

}  // namespace wstore
