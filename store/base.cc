#include "store/base.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/strings.h"
#include "store/chain.h"
#include "store/checkpoint/base_digest.h"
#include "store/records.h"
#include "store/sums.h"

namespace wstore {
namespace {

constexpr size_t kMaxListed = 10;

// "'a', 'b' and 3 more".
std::string Listed(const std::vector<std::string>& items) {
  const size_t shown = std::min(items.size(), kMaxListed);
  std::string list = absl::StrJoin(items.begin(), items.begin() + shown, ", ");
  if (items.size() > shown) absl::StrAppend(&list, " and ", items.size() - shown, " more");
  return list;
}

std::string TypeAndShape(const TensorSpec& spec) {
  return absl::StrCat(ToAbsl(DtypeName(spec.dtype)), " ", ShapeString(spec.shape));
}

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

absl::Status CheckSameTensors(const Manifest& base, const Manifest& other) {
  std::vector<std::string> missing;
  std::vector<std::string> added;
  std::vector<std::string> different;
  for (const Manifest::Tensor& tensor : base.tensors()) {
    const std::optional<TensorIndex> found = other.Find(tensor.spec.name);
    if (!found.has_value()) {
      missing.push_back(absl::StrCat("'", tensor.spec.name, "'"));
    } else if (const TensorSpec& spec = other.tensor(*found).spec; spec != tensor.spec) {
      different.push_back(absl::StrCat("'", spec.name, "' is ", TypeAndShape(spec),
                                       ", the base has ", TypeAndShape(tensor.spec)));
    }
  }
  for (const Manifest::Tensor& tensor : other.tensors()) {
    if (base.Find(tensor.spec.name).has_value()) continue;
    std::string name = absl::StrCat("'", tensor.spec.name, "'");
    if (added.size() < kMaxListed) {
      const std::vector<std::string> near = base.NearMatches(tensor.spec.name, 1);
      if (!near.empty()) absl::StrAppend(&name, " (the base has '", near[0], "')");
    }
    added.push_back(std::move(name));
  }
  std::vector<std::string> faults;
  if (!missing.empty()) faults.push_back(absl::StrCat("tensors missing: ", Listed(missing)));
  if (!added.empty()) faults.push_back(absl::StrCat("unknown tensors: ", Listed(added)));
  if (!different.empty()) faults.push_back(absl::StrCat("tensors differ: ", Listed(different)));
  if (faults.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(faults, "; "));
}

}  // namespace wstore
