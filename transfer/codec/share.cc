#include "wstore/share.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace wstore {
namespace {

constexpr size_t kListedFaults = 100;

}  // namespace

absl::StatusOr<std::vector<ElementRange>> HeldRanges(const Manifest& manifest,
                                                     absl::Span<const TensorShare> share) {
  std::vector<ElementRange> held(manifest.size());
  if (share.empty()) {
    for (TensorIndex i = 0; i < manifest.size(); ++i) held[i] = {0, manifest.tensor(i).elements};
    return held;
  }
  std::vector<std::string> faults;
  std::vector<bool> is_named(manifest.size());
  for (const auto& [tensor, range] : share) {
    if (faults.size() == kListedFaults) break;
    if (tensor >= manifest.size()) {
      faults.push_back(absl::StrCat("tensor ", tensor, ", of ", manifest.size()));
      continue;
    }
    const Manifest::Tensor& info = manifest.tensor(tensor);
    const auto is_bound = [&info](uint64_t element) {
      return element == info.elements || (element < info.elements && element % kShareElements == 0);
    };
    if (is_named[tensor]) {
      faults.push_back(absl::StrCat("'", info.spec.name, "' twice"));
    } else if (range.first > range.end || !is_bound(range.first) || !is_bound(range.end)) {
      faults.push_back(absl::StrCat("elements ", range.first, " to ", range.end, " of '",
                                    info.spec.name, "', which has ", info.elements));
    }
    is_named[tensor] = true;
    held[tensor] = range;
  }
  if (faults.empty()) return held;
  return absl::InvalidArgumentError(absl::StrCat(
      "a share has for each tensor at most one range, between multiples of ", kShareElements,
      " elements or up to its end; refused: ", absl::StrJoin(faults, "; ")));
}

}  // namespace wstore
