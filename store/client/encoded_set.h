// A patch set as chunks in memory: what a publish sends, and what a difference consists of.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "store/version/publish.h"
#include "wstore/manifest.h"
#include "wstore/patch_source.h"

namespace wstore::client {

struct EncodedSet {
  std::vector<std::string> chunks;  // in order of keys
  std::vector<size_t> first;        // of each span, and of the end: indices into `chunks`
  Digest digest;
  uint64_t elements = 0;
  // Of each tensor with changes; nothing: not known.
  std::optional<TouchedByTensor> touched;
  std::vector<Fingerprint> target_sums;  // where a whole new version was encoded
};

// Encodes what `input` describes (its `packed` and `transaction` are set here).
absl::StatusOr<EncodedSet> EncodeSet(PublishInput input);

// F(new) - F(old).
Fingerprint ChangeOf(const EncodedSet& set);

// A set as a source of patches. Owns it.
class EncodedSource final : public PatchSource {
 public:
  // `manifest` must outlive it.
  EncodedSource(const Manifest& manifest, EncodedSet set)
      : manifest_(manifest), set_(std::move(set)) {}
  absl::Status ReadSpan(uint32_t span,
                        const std::function<absl::Status(const ChunkView&)>& visit) const override;
  const EncodedSet& set() const { return set_; }

 private:
  const Manifest& manifest_;
  const EncodedSet set_;
};

}  // namespace wstore::client
