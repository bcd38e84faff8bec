#include "tools/wstore/store_access.h"

#include "absl/strings/str_cat.h"

namespace wstore::cli {

absl::Status TakeExpectations(const InterchangeFile& file, const std::string& path,
                              BeginOptions* options) {
  if (options->parent.has_value() && file.parent().has_value() &&
      *options->parent != *file.parent()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " was made for ", ToString(*file.parent()), ", but --parent says ",
                     ToString(*options->parent)));
  }
  if (!options->parent.has_value()) options->parent = file.parent();
  options->parent_chain_digest = file.parent_chain_digest();
  options->base_digest = file.base_digest();
  return absl::OkStatus();
}

}  // namespace wstore::cli
