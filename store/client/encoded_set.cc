#include "store/client/encoded_set.h"

#include <utility>

#include "common/parallel.h"
#include "common/status_macros.h"

namespace wstore::client {

absl::StatusOr<EncodedSet> EncodeSet(PublishInput input) {
  input.packed = false;
  input.transaction = TransactionNumber();
  if (input.threads <= 0) input.threads = DefaultParallelism();
  EncodedSet set;
  const auto keep = [&set](const ChunkKey& key, std::string_view chunk) -> absl::Status {
    set.first.resize(key.span + 1, set.chunks.size());
    set.chunks.emplace_back(chunk);
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(PublishOutcome outcome, EncodePublish(input, keep));
  set.first.resize(input.manifest->spans() + 1, set.chunks.size());
  set.digest = outcome.patch_digest;
  set.elements = outcome.elements;
  if (input.parent != nullptr) set.touched = std::move(outcome.touched);
  set.target_sums = std::move(outcome.target_sums);
  return set;
}

Fingerprint ChangeOf(const EncodedSet& set) {
  Fingerprint change;
  if (!set.touched) return change;
  for (const auto& [tensor, sums] : *set.touched) change += sums.change();
  return change;
}

absl::Status EncodedSource::ReadSpan(
    uint32_t span, const std::function<absl::Status(const ChunkView&)>& visit) const {
  for (size_t i = set_.first[span]; i < set_.first[span + 1]; ++i) {
    ASSIGN_OR_RETURN(const ChunkView chunk, ChunkView::Parse(set_.chunks[i], manifest_));
    RETURN_IF_ERROR(visit(chunk));
  }
  return absl::OkStatus();
}

}  // namespace wstore::client
