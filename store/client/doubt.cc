#include "store/client/doubt.h"

#include <utility>

#include "absl/status/statusor.h"
#include "store/client/sending.h"

namespace wstore::client {

void Doubt::Raise(std::string id, Follow follow) {
  id_ = std::move(id);
  follow_ = std::move(follow);
}

absl::Status Doubt::Settle(const Connection& connection, Deadline deadline) {
  if (!id_) return absl::OkStatus();
  const absl::StatusOr<Decision> decision = client::Settle(
      connection, *id_, absl::UnknownError("an earlier publish has not been settled"), deadline);
  if (absl::IsUnknown(decision.status())) return decision.status();
  id_.reset();
  const Follow follow = std::exchange(follow_, nullptr);
  if (!decision.ok()) return absl::OkStatus();  // it came to nothing
  return follow(*decision);
}

}  // namespace wstore::client
