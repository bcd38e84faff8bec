#include "store/state.h"

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "store/records.h"
#include "store/version/chain.h"

namespace wstore {
namespace {

absl::StatusOr<Verified> RecordedVerified(const std::string& name) {
  if (const std::optional<Verified> verified = ParseVerified(name)) return *verified;
  return absl::DataLossError(absl::StrCat("unknown verification '", name, "'"));
}

}  // namespace

absl::Status StoreState::Apply(const v1::RecordBody& record) {
  if (!has_base() && !record.has_base()) {
    return absl::DataLossError("the first record does not describe the base");
  }
  switch (record.kind_case()) {
    case v1::RecordBody::kBase:
      return Apply(record.base());
    case v1::RecordBody::kVersion:
      return Apply(record.version());
    case v1::RecordBody::kMove:
      return Apply(record.move());
    case v1::RecordBody::kHold:
      return Apply(record.hold());
    case v1::RecordBody::kTag:
      return Apply(record.tag());
    case v1::RecordBody::kMark:
      return Apply(record.mark());
    case v1::RecordBody::kBaseFiles:
      return Apply(record.base_files());
    case v1::RecordBody::kEpoch:
      return Apply(record.epoch());
    default:
      break;
  }
  return absl::DataLossError(absl::StrCat("a record of unknown kind ", record.kind_case(),
                                          "; was it written by a newer wstore?"));
}

absl::Status StoreState::Apply(const v1::BaseRecord& record) {
  if (has_base()) return absl::DataLossError("a second record describes a base");
  BaseState base;
  ASSIGN_OR_RETURN(base.digest, DigestField(record.base_digest(), "base digest"));
  base.path = record.path();
  base.files = FromProto(record.files());
  std::vector<TensorSpec> specs;
  specs.reserve(record.tensors_size());
  for (const v1::Tensor& tensor : record.tensors()) {
    const std::optional<Dtype> dtype = ParseDtype(tensor.dtype());
    if (!dtype.has_value()) {
      return absl::DataLossError(absl::StrCat("unknown dtype '", tensor.dtype(), "' in the base"));
    }
    specs.push_back({tensor.name(), *dtype, Shape(tensor.shape().begin(), tensor.shape().end())});
    ASSIGN_OR_RETURN(const Digest digest, DigestField(tensor.digest(), "tensor digest"));
    base.tensor_digests.push_back(digest);
    base.tensor_fingerprints.push_back(FromProto(tensor.fingerprint()));
  }
  const auto by_name = [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; };
  if (!std::is_sorted(specs.begin(), specs.end(), by_name)) {
    return absl::DataLossError("the base's tensors are not in canonical order");
  }
  ASSIGN_OR_RETURN(base.manifest, Manifest::Create(std::move(specs)));

  VersionState version;
  version.info.chain_digest = BaseChainDigest(base.digest, FromProto(record.fingerprint()));
  version.info.fingerprint = FromProto(record.fingerprint());
  version.info.tensors = base.manifest.size();
  version.info.elements = base.manifest.elements();
  version.info.payload_bytes = base.manifest.size_bytes();
  version.info.verified = Verified::kMaterialised;
  version.info.created_unix_micros = record.created_unix_micros();
  version.info.actor = record.actor().name();
  if (ToBytes(version.info.chain_digest) != record.chain_digest()) {
    return absl::DataLossError("the chain digest of v0 does not follow from its base");
  }
  base_ = std::move(base);
  versions_.emplace(VersionId(0), std::move(version));
  return absl::OkStatus();
}

absl::Status StoreState::Apply(const v1::BaseFilesRecord& record) {
  base_->path = record.path();
  base_->files = FromProto(record.files());
  return absl::OkStatus();
}

absl::Status StoreState::Apply(const v1::VersionRecord& record) {
  VersionState version;
  VersionInfo& info = version.info;
  info.version = VersionId(record.version());
  info.parent = VersionId(record.parent());
  const std::string name = ToString(info.version);
  if (info.version <= versions_.rbegin()->first) {
    return absl::DataLossError(
        absl::StrCat(name, " comes after ", ToString(versions_.rbegin()->first)));
  }
  const auto parent = versions_.find(*info.parent);
  if (parent == versions_.end()) {
    return absl::DataLossError(
        absl::StrCat(name, " has the parent ", ToString(*info.parent), ", which does not exist"));
  }
  info.transaction = TransactionNumber(record.transaction());
  info.transaction_id = record.transaction_id();
  ASSIGN_OR_RETURN(info.chain_digest, DigestField(record.chain_digest(), "chain digest"));
  ASSIGN_OR_RETURN(info.patch_digest, DigestField(record.patch_digest(), "patch digest"));
  ASSIGN_OR_RETURN(version.touched_digest, DigestField(record.touched_digest(), "touched digest"));
  ASSIGN_OR_RETURN(info.verified, RecordedVerified(record.verified()));
  info.fingerprint = FromProto(record.fingerprint());
  info.tensors = record.tensors();
  info.elements = record.elements();
  info.payload_bytes = record.payload_bytes();
  info.created_unix_micros = record.created_unix_micros();
  info.actor = record.actor().name();
  info.message = record.message();
  info.meta = Metadata(record.meta().begin(), record.meta().end());
  info.candidate = record.candidate();
  if (info.chain_digest != VersionChainDigest(parent->second.info.chain_digest, info.patch_digest,
                                              info.fingerprint, info.message, info.meta)) {
    return absl::DataLossError(absl::StrCat(
        "the chain digest of ", name, " does not follow from its parent, patch and metadata"));
  }
  if (!info.transaction_id.empty()) {
    ids_.try_emplace(info.transaction_id, IdUse{info.transaction, info.version, "publish"});
  }
  versions_.emplace(info.version, std::move(version));
  return absl::OkStatus();
}

absl::Status StoreState::Apply(const v1::MoveRecord& record) {
  MoveInfo move;
  move.move = MoveNumber(record.move());
  move.from = VersionId(record.from_version());
  move.to = VersionId(record.to_version());
  move.why = record.why();
  move.transaction = TransactionNumber(record.transaction());
  move.transaction_id = record.transaction_id();
  move.policy = record.policy();
  move.outcome = record.outcome();
  move.actor = record.actor().name();
  move.peer = record.actor().peer();
  move.message = record.message();
  move.created_unix_micros = record.created_unix_micros();
  move.duration_micros = record.duration_micros();
  if (record.has_trial()) {
    move.trial = VersionId(record.trial().version());
    move.trial_instances.assign(record.trial().instances().begin(),
                                record.trial().instances().end());
    if (!versions_.contains(*move.trial)) {
      return absl::DataLossError(absl::StrCat("head move ", move.move.value(), " tries out ",
                                              ToString(*move.trial), ", which does not exist"));
    }
  }
  if (move.outcome != "committed") {
    moves_.push_back(std::move(move));
    return absl::OkStatus();
  }
  const HeadInfo now = head();
  if (move.move <= now.move || move.from != now.version || !versions_.contains(move.to)) {
    return absl::DataLossError(absl::StrCat(
        "head move ", move.move.value(), " from ", ToString(move.from), " to ", ToString(move.to),
        " does not follow move ", now.move.value(), " to ", ToString(now.version)));
  }
  if (move.why != "publish" && !move.transaction_id.empty()) {
    ids_.try_emplace(move.transaction_id,
                     IdUse{move.transaction, move.trial.value_or(move.to), move.why});
  }
  head_ = move.to;
  last_move_ = move.move;
  if (move.why == "promote") versions_.at(head_).info.candidate = false;
  moves_.push_back(std::move(move));
  return absl::OkStatus();
}

absl::Status StoreState::Apply(const v1::HoldRecord& record) {
  hold_.reset();
  if (record.hold()) {
    hold_ = HoldInfo{record.reason(), record.actor().name(), record.created_unix_micros()};
  }
  return absl::OkStatus();
}

absl::Status StoreState::Apply(const v1::TagRecord& record) {
  const VersionId version(record.version());
  if (!versions_.contains(version)) {
    return absl::DataLossError(absl::StrCat("tag '", record.name(), "' names ", ToString(version),
                                            ", which does not exist"));
  }
  tags_[record.name()] =
      TagInfo{record.name(), version, record.actor().name(), record.created_unix_micros()};
  return absl::OkStatus();
}

absl::Status StoreState::Apply(const v1::MarkRecord& record) {
  const auto version = versions_.find(VersionId(record.version()));
  if (version == versions_.end()) {
    return absl::DataLossError(absl::StrCat("a mark names ", ToString(VersionId(record.version())),
                                            ", which does not exist"));
  }
  version->second.info.bad.reset();
  if (record.bad()) version->second.info.bad = record.reason();
  return absl::OkStatus();
}

absl::Status StoreState::Apply(const v1::EpochRecord& record) {
  if (record.epoch() <= epoch_) {
    return absl::DataLossError(
        absl::StrCat("epoch ", record.epoch(), " comes after epoch ", epoch_));
  }
  epoch_ = record.epoch();
  return absl::OkStatus();
}

HeadInfo StoreState::head() const {
  return HeadInfo{head_, versions_.at(head_).info.chain_digest, base_->digest, last_move_};
}

absl::StatusOr<const VersionState*> StoreState::Find(VersionId version) const {
  const auto it = versions_.find(version);
  if (it == versions_.end()) {
    return absl::NotFoundError(absl::StrCat("no version ", ToString(version), "; the highest is ",
                                            ToString(versions_.rbegin()->first)));
  }
  return &it->second;
}

const IdUse* StoreState::FindId(const std::string& transaction_id) const {
  if (transaction_id.empty()) return nullptr;
  const auto it = ids_.find(transaction_id);
  return it == ids_.end() ? nullptr : &it->second;
}

std::vector<VersionId> StoreState::Path(VersionId from, VersionId to) const {
  // Parents have lower numbers, so climbing from the higher side meets at the common ancestor.
  std::vector<VersionId> path;
  while (from != to) {
    VersionId& higher = from > to ? from : to;
    path.push_back(higher);
    const VersionInfo& info = versions_.at(higher).info;
    WSTORE_CHECK(info.parent.has_value() && *info.parent < higher);
    higher = *info.parent;
  }
  return path;
}

}  // namespace wstore
