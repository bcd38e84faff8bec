// Patch sets from single elements, checked as they come.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "wstore/manifest.h"
#include "wstore/patch_source.h"

namespace wstore {

class TensorChanges;

// Changed elements of one tensor, as a caller has them.
struct TensorPatch {
  std::string name;
  Dtype dtype = Dtype::kU8;
  Shape shape;  // of the whole tensor
  // Flat row-major indices of storage elements (see StorageElementBytes), in any order. Signed, as
  // Python and torch have them; negative ones are refused.
  absl::Span<const int64_t> indices;
  // indices.size() storage elements, raw little-endian bits.
  absl::Span<const uint8_t> values;
  enum class Form {
    kXor,  // old XOR new; a zero changes nothing
    kNew,  // new bits; need the old ones to become a patch
  } form = Form::kNew;
};

// Collects the patches of one set in memory and is then a source of its chunks. Add and Resolve
// from one thread; afterwards reading is thread-safe. Holds two bytes and the value for each
// change, and sixteen bytes for each tile that changes, whatever the size of the tensors.
class PatchSetBuilder final : public PatchSource {
 public:
  // `manifest` must outlive the builder.
  explicit PatchSetBuilder(const Manifest& manifest);
  ~PatchSetBuilder() override;

  // Checks patches against the manifest and keeps copies of them; all or none. Uses all cores;
  // unsorted indices take sixteen bytes each during the call.
  //   kInvalidArgument: names that the base does not have (near matches shown for the first few); a
  //     tensor twice, in this call or an earlier one; dtype or shape other than the base's (both
  //     sides shown); other than one value for each index; an index twice (its value and both
  //     positions shown), even with equal values. Packed types are patched by whole bytes.
  //   kOutOfRange: an index below zero or not below the number of elements (its value, its position
  //     and the limit shown)
  // Faults of one kind are listed together, up to a hundred. Kinds are checked in this order.
  // Unsorted indices are sorted. A patch without elements is accepted.
  absl::Status Add(absl::Span<const TensorPatch> patches);

  // Turns patches of form kNew into XOR against the bits in `old`, on all cores; elements that do
  // not change drop out of the set. Until then such a set cannot be read. Blocks for the reads of
  // `old`; needs room for the values once more meanwhile. Returns an error of `old` as it is; the
  // set is then as before.
  absl::Status Resolve(const DenseSource& old);

  // Whether any patch still needs its old bits.
  bool needs_resolve() const { return unresolved_ > 0; }
  // The tiles that its patches touch, ascending; resolved or not.
  std::vector<TilePlace> Places() const;
  // Bytes held.
  uint64_t size_bytes() const;

  //   kFailedPrecondition: not resolved
  absl::Status ReadSpan(uint32_t span,
                        const std::function<absl::Status(const ChunkView&)>& visit) const override;

 private:
  absl::Status CheckOnce(std::vector<TensorIndex> tensors) const;

  const Manifest& manifest_;
  std::map<TensorIndex, std::unique_ptr<TensorChanges>> tensors_;
  uint64_t unresolved_ = 0;  // of tensors_
};

}  // namespace wstore
