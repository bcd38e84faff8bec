// model.safetensors.index.json: which tensor is in which file of a directory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace wstore {

inline constexpr char kSingleFileName[] = "model.safetensors";
inline constexpr char kIndexFileName[] = "model.safetensors.index.json";
inline constexpr uint64_t kMaxIndexBytes = 100'000'000;

struct ShardIndex {
  struct Entry {
    std::string tensor;
    uint32_t file = 0;  // of `files`
  };
  std::vector<std::string> files;  // plain names, sorted
  std::vector<Entry> entries;      // sorted by tensor
};

// Reads "weight_map"; other keys are ignored, as they differ from tool to tool.
//   kInvalidArgument: not JSON; no weight_map, or it twice, or it names no tensor; a tensor twice;
//   a file name that is not a string or not plain (empty, ".", "..", or with '/' or a control
//   character)
absl::StatusOr<ShardIndex> ParseShardIndex(std::string_view json);

// As the Hugging Face tools write it: indented by two, keys sorted, a line feed at the end.
std::string FormatShardIndex(const ShardIndex& index, uint64_t total_size_bytes);

}  // namespace wstore
