// The interchange file: a patch set as a safetensors file, so that any user of the reference
// library can write one. docs/formats/interchange.md describes it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "wstore/patch_set.h"
#include "wstore/transaction.h"
#include "wstore/version.h"

namespace wstore {

// A patch set read from a file. Owns what its patches point to.
class InterchangeFile {
 public:
  // Reads all of the file. Memory: its size.
  //   kNotFound: no such file
  //   kInvalidArgument: not a sound safetensors file, or not an interchange file: an unknown
  //   format,
  //     indices without values or the other way round, wrong types, lengths that differ, a tensor
  //     without a shape. All of one kind are listed
  static absl::StatusOr<InterchangeFile> Read(const std::string& path);

  // Valid as long as the object.
  std::vector<TensorPatch> patches() const;

  // What the file says that it was made for; to be copied into BeginOptions.
  const std::optional<VersionId>& parent() const { return parent_; }
  const std::optional<Digest>& parent_chain_digest() const { return parent_chain_digest_; }
  const std::optional<Digest>& base_digest() const { return base_digest_; }

 private:
  struct Patch {
    std::string name;
    Dtype dtype = Dtype::kU8;
    Shape shape;
    std::vector<int64_t> indices;
    std::vector<uint8_t> values;
  };

  std::vector<Patch> patches_;
  TensorPatch::Form form_ = TensorPatch::Form::kNew;
  std::optional<VersionId> parent_;
  std::optional<Digest> parent_chain_digest_;
  std::optional<Digest> base_digest_;
};

}  // namespace wstore
