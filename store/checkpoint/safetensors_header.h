// The header of one safetensors file. docs/formats/checkpoint.md says what is accepted and why.
//
// A file is: u64 length of the header; the header, JSON, perhaps with white space behind; the data.
// Pure functions over bytes: no files here.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/tensor.h"

namespace wstore {

// The reference implementation's limit.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
// Limits of our own, far above real checkpoints, so that every message and record stays small.
inline constexpr uint64_t kMaxTensorNameBytes = 4096;
inline constexpr uint64_t kMaxRank = 64;

// A tensor and its bytes [begin, end) of the data.
struct PlacedTensor {
  TensorSpec spec;
  uint64_t begin = 0;
  uint64_t end = 0;

  friend bool operator==(const PlacedTensor&, const PlacedTensor&) = default;
};

struct SafetensorsHeader {
  std::vector<PlacedTensor> tensors;
  std::map<std::string, std::string> metadata;

  friend bool operator==(const SafetensorsHeader&, const SafetensorsHeader&) = default;
};

// The header's length, from the file's first 8 bytes (or fewer, if the file has no more). On
// success the header lies within the file.
//   kInvalidArgument: the file ends before its header does (and by how much), or the header is
//   larger than kMaxHeaderBytes
absl::StatusOr<uint64_t> ParseHeaderLength(absl::Span<const uint8_t> first_bytes,
                                           uint64_t file_size_bytes);

// A header whose every tensor has been checked: name, dtype, shape, size, and that the tensors
// cover the data exactly, without overlap. Tensors are sorted by name.
//   kInvalidArgument: anything else. All faults of a kind are listed, with tensor names.
absl::StatusOr<SafetensorsHeader> ParseHeader(std::string_view json, uint64_t data_size_bytes);

// The bytes of a file before its data: length and header, a multiple of 8. The same input gives the
// same bytes. Tensors are written in the order given.
std::string FormatHeader(const SafetensorsHeader& header);

}  // namespace wstore
