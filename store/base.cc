#include "store/base.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/strings.h"
#include "store/checkpoint/base_digest.h"
#include "store/records.h"
#include "store/version/chain.h"
#include "store/version/same_tensors.h"
#include "store/version/sums.h"

namespace wstore {
namespace {

// Progress of two passes as one.
ProgressFn Pass(const ProgressFn& progress, uint64_t before_bytes, uint64_t total_bytes) {
  if (!progress) return {};
  return [progress, before_bytes, total_bytes](uint64_t done_bytes, uint64_t) {
    progress(before_bytes + done_bytes, total_bytes);
  };
}

std::string DescribeChange(const FileIdentity& was, const FileIdentity* is) {
  if (is == nullptr) return absl::StrCat(was.path, " is not part of it any more");
  std::vector<std::string> changes;
  if (is->size_bytes != was.size_bytes) {
    changes.push_back(absl::StrCat("has ", is->size_bytes, " bytes, had ", was.size_bytes));
  }
  if (is->mtime_ns != was.mtime_ns) changes.emplace_back("was modified");
  if (is->inode != was.inode) changes.emplace_back("is another file");
  return absl::StrCat(was.path, " ", absl::StrJoin(changes, ", "));
}

}  // namespace

absl::StatusOr<v1::BaseRecord> DescribeBase(const Checkpoint& checkpoint, int threads,
                                            const ProgressFn& progress) {
  const Manifest& manifest = checkpoint.manifest();
  const uint64_t total_bytes = 2 * manifest.size_bytes();
  ASSIGN_OR_RETURN(const BaseDigest digest,
                   DigestCheckpoint(manifest, checkpoint, threads, Pass(progress, 0, total_bytes)));
  const FingerprintKey key(digest.digest);
  const std::unique_ptr<DenseSource> dense = MakeDense(manifest, checkpoint);
  ASSIGN_OR_RETURN(const std::vector<Fingerprint> sums,
                   SumVersion(manifest, key, *dense, threads,
                              Pass(progress, manifest.size_bytes(), total_bytes)));
  RETURN_IF_ERROR(checkpoint.CheckUnchanged());

  v1::BaseRecord record;
  record.set_base_digest(ToBytes(digest.digest));
  record.set_path(checkpoint.path());
  ToProto(checkpoint.files(), record.mutable_files());
  for (TensorIndex i = 0; i < manifest.size(); ++i) {
    const TensorSpec& spec = manifest.tensor(i).spec;
    v1::Tensor* const tensor = record.add_tensors();
    tensor->set_name(spec.name);
    tensor->set_dtype(std::string(DtypeName(spec.dtype)));
    tensor->mutable_shape()->Add(spec.shape.begin(), spec.shape.end());
    tensor->set_digest(ToBytes(digest.tensors[i]));
    *tensor->mutable_fingerprint() = ToProto(sums[i]);
  }
  const Fingerprint total = Total(sums);
  *record.mutable_fingerprint() = ToProto(total);
  record.set_chain_digest(ToBytes(BaseChainDigest(digest.digest, total)));
  return record;
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenRecordedBase(const BaseState& base) {
  constexpr absl::string_view kAdvice =
      "if its content is still the same, 'wstore verify --base' finds out and accepts it";
  absl::StatusOr<std::unique_ptr<Checkpoint>> opened = Checkpoint::Open(base.path);
  if (!opened.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the base at ", base.path, " cannot be used: ", opened.status().message()));
  }
  const std::vector<FileIdentity>& now = (*opened)->files();
  std::vector<std::string> changes;
  for (const FileIdentity& was : base.files) {
    const auto is = std::find_if(
        now.begin(), now.end(), [&was](const FileIdentity& file) { return file.path == was.path; });
    if (is == now.end()) {
      changes.push_back(DescribeChange(was, nullptr));
    } else if (*is != was) {
      changes.push_back(DescribeChange(was, &*is));
    }
  }
  if (!changes.empty() || now.size() != base.files.size()) {
    if (changes.empty()) changes.emplace_back("it has more files than it had");
    return absl::FailedPreconditionError(
        absl::StrCat("the base at ", base.path,
                     " has changed since it was recorded: ", Listed(changes), "; ", kAdvice));
  }
  RETURN_IF_ERROR(CheckSameTensors(base.manifest, (*opened)->manifest()));
  return std::move(*opened);
}

}  // namespace wstore
