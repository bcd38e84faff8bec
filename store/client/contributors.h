// What several contributors of one publish have to agree on.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/client/sending.h"
#include "wstore/upload.h"

namespace wstore::client {

// One of `count` contributors, numbered from 0.
struct Contribution {
  uint32_t number = 0;
  uint32_t count = 1;
};

//   kInvalidArgument: a number that is not below the count, a count of 0 or above 65,535; several
//     contributors without a transaction id
absl::Status CheckContributors(const PublishOptions& options);

// Has a publish say which contributor it is of. It may say so itself already.
//   kInvalidArgument: it says otherwise; or as above
absl::Status Contribute(const Contribution& contribution, PublishOptions* options);

// Whether the publish that was joined is built on the version that this contributor compared with:
// the contributor that came first has said on which.
//   kFailedPrecondition: it is not
absl::Status CheckSameParent(const Begun& begun, const HeadInfo& parent);

// Of a publish that was committed under this id before: the decision. None of several contributors
// has the whole content to compare; but what was committed has nothing left to change, if the
// shadow is there. changed: elements by which the weights differ from it.
//   kAlreadyExists: there is; it was committed with other content
absl::StatusOr<Decision> RepeatedPart(const Begun& begun, const std::string& id,
                                      const HeadInfo& parent, uint64_t changed);

}  // namespace wstore::client
