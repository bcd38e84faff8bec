// A publisher for the suite: versions and updates by plain loops, without the store.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/transfer/placement_reference.h"
#include "wstore/fingerprint.h"
#include "wstore/patch_source.h"
#include "wstore/update.h"

namespace wstore::testing {

// The dense bytes of a version, by tensor.
using Model = std::vector<std::vector<uint8_t>>;
// XOR bits by tensor and element; none is zero.
using Changes = std::map<std::pair<TensorIndex, uint64_t>, uint64_t>;

Model RandomModel(const Manifest& manifest, std::mt19937_64& random);
// About `count` elements of each tensor.
Changes RandomChanges(const Manifest& manifest, uint64_t count, std::mt19937_64& random);
Model Changed(const Manifest& manifest, Model model, const Changes& changes);
// The changes that lead from one to the other.
Changes Difference(const Manifest& manifest, const Model& from, const Model& to);
// The fingerprints of all tensors.
std::vector<Fingerprint> SumsOf(const Manifest& manifest, const FingerprintKey& key,
                                const Model& model);
// The sums over the changed elements of each tensor.
std::vector<TensorSums> TouchedSumsOf(const Manifest& manifest, const FingerprintKey& key,
                                      const Model& model, const Changes& changes);

// Encodes changes as chunks of a transaction. With several contributors, blocks of 256 elements go
// to them by turns. contents: by contributor.
struct EncodeOptions {
  TransactionNumber transaction;
  uint16_t contributors = 1;
  uint64_t tiles_per_chunk = 3;
};
std::vector<std::string> EncodeChanges(const Manifest& manifest, const Changes& changes,
                                       const EncodeOptions& options,
                                       std::vector<ContributorContent>* contents);

struct Update {
  UpdateHeader header;
  UpdateSummary summary;
  std::vector<std::string> chunks;
  Model result;
};

// What the store knows: versions and head moves.
class Publisher {
 public:
  Publisher(const Manifest& manifest, Model base);

  const FingerprintKey& key() const { return key_; }
  const VersionName& head() const { return names_[head_]; }
  const Model& model() const { return models_[head_]; }
  const Model& model(VersionId version) const { return models_[version.value()]; }
  const VersionName& name(VersionId version) const { return names_[version.value()]; }
  uint64_t versions() const { return models_.size(); }
  MoveNumber move() const { return move_; }
  std::vector<Fingerprint> sums() const { return SumsOf(manifest_, key_, model()); }

  // An update from head to a new version. It is head only after Commit.
  Update Publish(const Changes& changes, uint16_t contributors = 1);
  // An update from `from` to `to`, both known. After Commit, `to` is head.
  Update Between(VersionId from, VersionId to, ChangeReason reason);
  void Commit(const Update& update);

 private:
  Update Make(const Model& from, const Changes& changes, uint16_t contributors);

  const Manifest& manifest_;
  const FingerprintKey key_;
  std::vector<Model> models_;
  std::vector<VersionName> names_;
  size_t head_ = 0;
  MoveNumber move_{100};
  uint64_t transaction_ = 500;
};

// A model as a source of dense tiles.
class ModelSource final : public TensorSource {
 public:
  explicit ModelSource(const Model& model) : model_(model) {}
  absl::Status Read(TensorIndex tensor, uint64_t offset_bytes,
                    absl::Span<uint8_t> out) const override {
    std::copy_n(model_[tensor].begin() + offset_bytes, out.size(), out.begin());
    return absl::OkStatus();
  }

 private:
  const Model& model_;
};

}  // namespace wstore::testing
