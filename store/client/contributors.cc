#include "store/client/contributors.h"

#include "absl/strings/str_cat.h"

namespace wstore::client {

absl::Status CheckContributors(const PublishOptions& options) {
  if (options.contributors == 0 || options.contributors > 65'535) {
    return absl::InvalidArgumentError(
        absl::StrCat("contributors is ", options.contributors, "; 1 to 65535 are allowed"));
  }
  if (options.contributor >= options.contributors) {
    return absl::InvalidArgumentError(absl::StrCat("contributor ", options.contributor, " of ",
                                                   options.contributors, ": they count from 0"));
  }
  if (options.contributors > 1 && options.begin.transaction_id.empty()) {
    return absl::InvalidArgumentError(
        "several contributors need a transaction id that all of them know");
  }
  return absl::OkStatus();
}

absl::Status Contribute(const Contribution& contribution, PublishOptions* options) {
  const bool says_nothing = options->contributor == 0 && options->contributors == 1;
  const bool says_same =
      options->contributor == contribution.number && options->contributors == contribution.count;
  if (!says_nothing && !says_same) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a publish as contributor ", options->contributor, " of ", options->contributors,
        ", by a publisher that was started as ", contribution.number, " of ", contribution.count));
  }
  options->contributor = contribution.number;
  options->contributors = contribution.count;
  return CheckContributors(*options);
}

absl::Status CheckSameParent(const Begun& begun, const HeadInfo& parent) {
  if (begun.parent.version == parent.version && begun.parent.chain_digest == parent.chain_digest &&
      begun.parent.move == parent.move) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "another contributor has begun this publish on ", ToString(begun.parent.version), ", move ",
      begun.parent.move.value(), "; this one's shadow is ", ToString(parent.version), ", move ",
      parent.move.value(), ": rebase all contributors, and publish again"));
}

absl::StatusOr<Decision> RepeatedPart(const Begun& begun, const std::string& id,
                                      const HeadInfo& parent, uint64_t changed) {
  if (changed == 0 || begun.repeated->version != parent.version) return *begun.repeated;
  return absl::AlreadyExistsError(
      absl::StrCat("the id '", id, "' was committed as ", ToString(parent.version),
                   ", from which these weights differ in ", changed, " elements; use another id"));
}

}  // namespace wstore::client
