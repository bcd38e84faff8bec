#include "store/version/same_tensors.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/strings.h"

namespace wstore {
namespace {

constexpr size_t kMaxListed = 10;

std::string TypeAndShape(const TensorSpec& spec) {
  return absl::StrCat(ToAbsl(DtypeName(spec.dtype)), " ", ShapeString(spec.shape));
}

}  // namespace

std::string Listed(const std::vector<std::string>& items) {
  const size_t shown = std::min(items.size(), kMaxListed);
  std::string list = absl::StrJoin(items.begin(), items.begin() + shown, ", ");
  if (items.size() > shown) absl::StrAppend(&list, " and ", items.size() - shown, " more");
  return list;
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
